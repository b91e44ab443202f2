#include "comm/sim/sim_wires.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "runtime/backend.hpp"
#include "runtime/core.hpp"

namespace slip::comm {
namespace {

constexpr std::size_t kScratchBytes = std::numeric_limits<std::size_t>::max() / 2;  // more than any program uses

void submit(runtime::StreamState& stream, const Op& op) { stream.core->backend->submit(stream, op); }

}  // namespace

SimWires::Flags::Flags(std::size_t count)
    : values_(new std::uint32_t[count]{}),
      block_(runtime::take_block(nullptr, MemoryKind::kPinned, values_.get(), count * sizeof(std::uint32_t), {})) {}

SimWires::Flags::~Flags() { runtime::drop_block(block_); }

Range SimWires::Flags::range() const { return {block_, block_->id.load(std::memory_order_relaxed), 0, block_->bytes}; }

// relaxed: the thread that drives the sim world has written it, and the same thread calls this.
std::uint32_t SimWires::Flags::value() const { return __atomic_load_n(&values_[0], __ATOMIC_RELAXED); }

SimWires::SimWires(std::vector<Device> devices)
    : devices_(std::move(devices)), player_(*this, nranks(), WireKind::kPipelined) {
  for (const Device& device : devices_) {
    cores_.push_back(device.legacy_stream().state()->core);
    scratch_.push_back(runtime::take_block(cores_.back(), MemoryKind::kDevice, nullptr, kScratchBytes, {}));
  }
}

SimWires::~SimWires() {
  for (runtime::StreamState* stream : streams_) {
    stream->core->backend->wait(stream, runtime::kEverything, 0);
    stream->core->backend->close_stream(*stream);
  }
  for (runtime::Block* block : scratch_) runtime::drop_block(block);
}

Range SimWires::scratch_of(int rank, std::size_t bytes) const {
  runtime::Block* const block = scratch_[static_cast<std::size_t>(rank)];
  return {block, block->id.load(std::memory_order_relaxed), 0, bytes};
}

void SimWires::play(const Call& call, const ScheduleChoice& how, std::span<const CommGraph> graphs,
                    std::span<const RankBuffers> buffers) {
  Program program;
  if (nranks() == 1) {  // schedules are for two ranks or more
    channels_ = 1;
    if (buffers[0].input.bytes > 0 && !buffers[0].in_place)
      program.copy({BufferSpace::kOutput, 0, 0}, {BufferSpace::kInput, 0, 0}, buffers[0].input.bytes);
    return play(program, buffers, 0, 0);
  }
  channels_ = how.channels;
  for (int rank = 0; rank < nranks(); ++rank) {
    const bool in_place = buffers[static_cast<std::size_t>(rank)].in_place;
    const MessageProgramBuilder builder(*how.schedule, {call, rank, nranks(), in_place, how.chunk_bytes},
                                        graphs.first(static_cast<std::size_t>(how.channels)));
    for (int channel = 0; channel < channels_; ++channel) {
      program.clear();
      for (std::uint64_t piece = 0; piece < builder.pieces(channel); ++piece) builder.write(channel, piece, program);
      play(program, buffers, rank, channel);
    }
  }
  player_.deliver();
}

void SimWires::play(const Program& program, std::span<const RankBuffers> buffers, int rank, int channel) {
  Track& own = tracks_[{rank, channel}];
  if (!own.done) {
    own.done = std::make_unique<Flags>(1);
    own.stream = open_stream(rank);
  }
  player_.play({.program = &program,
                .rank = rank,
                .track = channel,
                .buffers = buffers,
                .scratch = scratch_of(rank, kScratchBytes)},
               own.stream);
  write_flag(own.stream, own.done->range(), ++own.played);
}

bool SimWires::played(int rank) const {
  for (int channel = 0; channel < channels_; ++channel) {
    const Track& one = tracks_.at({rank, channel});
    if (one.done->value() < one.played) return false;
  }
  return true;
}

// --- OpSink ---

OpSink::StreamId SimWires::open_stream(int rank) {
  runtime::DeviceCore& core = *cores_[static_cast<std::size_t>(rank)];
  runtime::StreamState* const stream = core.backend->open_stream({.flags = StreamFlags::kNonBlocking, .wire = true});
  stream->core = &core;
  stream->failure.clear();
  streams_.push_back(stream);
  return streams_.size() - 1;
}

void SimWires::write_flag(StreamId stream, const Range& flag, std::uint64_t value) {
  submit(*streams_[stream], {.kind = OpKind::kWriteValue,
                             .value = static_cast<std::uint32_t>(value),
                             .writes = std::span<const Range>(&flag, 1)});
}

void SimWires::wait_flag(StreamId stream, const Range& flag, std::uint64_t value) {
  submit(*streams_[stream], {.kind = OpKind::kWaitValue,
                             .value = static_cast<std::uint32_t>(value),
                             .reads = std::span<const Range>(&flag, 1)});
}

// A message without bytes is copied as one byte, so that it takes the latency of the link, too.
void SimWires::copy(StreamId stream, const Range& to, const Range& from) {
  Range target = to, source = from;
  target.bytes = source.bytes = std::max<std::size_t>(from.bytes, 1);
  submit(*streams_[stream], {.kind = OpKind::kCopy,
                             .reads = std::span<const Range>(&source, 1),
                             .writes = std::span<const Range>(&target, 1)});
}

// The channels of a rank share the bandwidth of its memory, so each op costs as many times its bytes.
void SimWires::launch(StreamId stream, const Kernel& kernel, const Operands&, const Cost& cost) {
  submit(*streams_[stream], {.kind = OpKind::kKernel,
                             .kernel = &kernel,
                             .cost = {.bytes = cost.bytes * static_cast<std::uint64_t>(channels_)}});
}

LinkRates SimWires::measure() {
  constexpr std::size_t kSmall = 64, kLarge = std::size_t{1} << 20;
  std::array<runtime::Stamp*, 3> marks{};
  for (const int from : {1, 0}) {  // the copies of rank 0 are measured, so those of rank 1 are submitted before
    const StreamId stream = player_.wire_stream(from, 1 - from, 0);
    const auto mark = [&](std::size_t index) {
      if (from != 0) return;
      marks[index] = new runtime::Stamp;
      submit(*streams_[stream], {.kind = OpKind::kRecord, .event = marks[index]});
    };
    const auto send = [&](std::size_t bytes) { copy(stream, scratch_of(1 - from, bytes), scratch_of(from, bytes)); };
    mark(0);
    send(kSmall);
    mark(1);
    send(kLarge);
    mark(2);
  }
  runtime::StreamState& last = *streams_[player_.wire_stream(0, 1, 0)];
  last.core->backend->wait(&last, runtime::kEverything, 0);
  const auto us = [&](std::size_t from, std::size_t to) {
    return static_cast<double>(marks[to]->since(*marks[from])) / 1e6;
  };
  LinkRates rates{.latency_us = us(0, 1), .gbps = 0, .message_us = 0};
  rates.gbps = static_cast<double>(kLarge) / (std::max(us(1, 2) - rates.latency_us, 1e-3) * 1e3);
  // Ranks 0 and 1 are mostly of one machine.
  rates.host_latency_us = rates.latency_us;
  rates.host_gbps = rates.gbps;
  for (runtime::Stamp* stamp : marks) stamp->release();
  return rates;
}

}  // namespace slip::comm
