#include "comm/sim/sim_wires.hpp"

#include <algorithm>
#include <limits>

#include "comm/link/link.hpp"
#include "runtime/core.hpp"
#include "runtime/backend.hpp"
#include "slip/kernel.hpp"

namespace slip {
namespace {

using Kind = Primitive::Kind;

const Kernel& work_kernel() {
  static const Kernel kKernel{"part of a collective", [](const Args&) {}};
  return kKernel;
}

void submit(StreamState& stream, const Op& op) { stream.core->backend->submit(stream, op); }

void write_word(StreamState& stream, const Range& word, std::uint64_t value) {
  const Range writes[] = {word};
  submit(stream, {.kind = OpKind::kWriteValue,
                  .value = static_cast<std::uint32_t>(value),
                  .writes = std::span<const Range>(writes)});
}

void wait_word(StreamState& stream, const Range& word, std::uint64_t value) {
  const Range reads[] = {word};
  submit(
      stream,
      {.kind = OpKind::kWaitValue, .value = static_cast<std::uint32_t>(value), .reads = std::span<const Range>(reads)});
}

void copy_range(StreamState& stream, const Range& to, const Range& from) {
  const Range reads[] = {from}, writes[] = {to};
  submit(stream,
         {.kind = OpKind::kCopy, .reads = std::span<const Range>(reads), .writes = std::span<const Range>(writes)});
}

}  // namespace

SimWires::Words::Words(std::size_t count) : values_(new std::uint32_t[count]{}), block_(take_block()) {
  block_->core = nullptr;
  block_->data = reinterpret_cast<std::byte*>(values_.get());
  block_->bytes = count * sizeof(std::uint32_t);
  block_->kind = MemoryKind::kPinned;
}

SimWires::Words::~Words() { drop_block(block_); }

Range SimWires::Words::at(std::size_t index) const {
  return {block_, block_->id.load(std::memory_order_relaxed), index * sizeof(std::uint32_t), sizeof(std::uint32_t)};
}

// relaxed: who drives the world wrote it.
std::uint32_t SimWires::Words::value(std::size_t index) const {
  return __atomic_load_n(&values_[index], __ATOMIC_RELAXED);
}

SimWires::SimWires(std::vector<Device> devices) : devices_(std::move(devices)) {
  for (const Device& device : devices_) {
    cores_.push_back(device.legacy_stream().state()->core);
    Block* const block = scratch_.emplace_back(take_block());
    block->core = cores_.back();
    block->data = nullptr;
    block->bytes = std::numeric_limits<std::size_t>::max() / 2;
    block->kind = MemoryKind::kDevice;
  }
}

SimWires::~SimWires() {
  for (StreamState* stream : streams_) {
    stream->core->backend->wait(stream, kEverything, 0);
    stream->core->backend->close_stream(*stream);
  }
  for (Block* block : scratch_) drop_block(block);
}

StreamState* SimWires::open(int rank) {
  DeviceCore& core = *cores_[static_cast<std::size_t>(rank)];
  StreamState* const stream = core.backend->open_stream({.flags = StreamFlags::kNonBlocking, .wire = true});
  stream->core = &core;
  stream->failure.clear();
  return streams_.emplace_back(stream);
}

SimWires::Track& SimWires::track(int rank, int channel) {
  Track& found = tracks_[{rank, channel}];
  if (!found.stream) {
    found.done = std::make_unique<Words>(1);
    found.stream = open(rank);
  }
  return found;
}

SimWires::Wire& SimWires::wire(int from, int to, int channel) {
  Wire& found = wires_[{channel, from, to}];
  if (!found.words) {
    for (StreamState*& lane : found.lanes) lane = open(from);
    found.words = std::make_unique<Words>(kWords);
  }
  return found;
}

void SimWires::play(const Call& call, const Choice& how, std::span<const Formation> formations,
                    std::span<const Memory> memory) {
  const std::span<const Formation> used = formations.first(static_cast<std::size_t>(how.channels));
  channels_ = how.channels;
  Program program;
  if (nranks() == 1) {  // algorithms are for several
    if (memory[0].input.bytes > 0 && !memory[0].in_place)
      program.copy({Space::kOutput, 0, 0}, {Space::kInput, 0, 0}, memory[0].input.bytes);
    return perform({0, 0, channels_ = 1, &memory[0], &program});
  }
  for (int rank = 0; rank < nranks(); ++rank) {
    const Memory& own = memory[static_cast<std::size_t>(rank)];
    const MessagePlan plan(*how.recipe, {call, rank, nranks(), own.in_place, how.chunk_bytes}, used);
    for (int channel = 0; channel < channels_; ++channel) {
      program.clear();
      for (std::uint64_t piece = 0; piece < plan.pieces(channel); ++piece) plan.write(channel, piece, program);
      perform({rank, channel, channels_, &own, &program});
    }
  }
  for (auto& [key, one] : wires_) move(one, false);
}

bool SimWires::played(int rank) const {
  for (int channel = 0; channel < channels_; ++channel) {
    const Track& one = tracks_.at({rank, channel});
    if (one.done->value(0) < one.played) return false;
  }
  return true;
}

void SimWires::perform(const Part& part) {
  Track& own = track(part.rank, part.channel);
  for (const Primitive& step : part.program->steps) {
    switch (step.kind) {
      case Kind::kCopy:
      case Kind::kReduce: work(part, step, *own.stream); break;
      case Kind::kSend:
      case Kind::kReceive: message(part, step, *own.stream); break;
      case Kind::kSent:
      case Kind::kReceived: {
        const bool sends = step.kind == Kind::kSent;
        const auto other = static_cast<int>(step.whom);
        const Wire& link = sends ? wire(part.rank, other, part.channel) : wire(other, part.rank, part.channel);
        const std::uint64_t begun = sends ? link.sends() : link.receives();
        if (begun > step.value) await_done(link, begun - step.value, *own.stream);
        break;
      }
      default: break;  // of programs through shared memory
    }
  }
  write_word(*own.stream, own.done->at(0), ++own.played);
}

// Channels of a rank share its memory.
void SimWires::work(const Part& part, const Primitive& step, StreamState& stream) {
  const Place* const places = part.program->places.data() + step.first;
  if (step.kind == Kind::kCopy) {
    const Range to = range(part, places[0], step.bytes), from = range(part, places[1], step.bytes);
    if (to.block == from.block && to.offset == from.offset) return;  // as copy() does
  }
  const auto touched = static_cast<std::uint64_t>(step.targets + step.sources);
  submit(stream, {.kind = OpKind::kKernel,
                  .kernel = &work_kernel(),
                  .cost = {.bytes = step.bytes * touched * static_cast<std::uint64_t>(part.channels)}});
}

void SimWires::message(const Part& part, const Primitive& step, StreamState& stream) {
  const bool sends = step.kind == Kind::kSend;
  const auto other = static_cast<int>(step.whom);
  Wire& link = sends ? wire(part.rank, other, part.channel) : wire(other, part.rank, part.channel);
  const std::uint64_t before = sends ? link.sends() : link.receives();
  if (before >= LinkEnd::kDepth) await_done(link, before - LinkEnd::kDepth + 1, stream);
  (sends ? link.out : link.in).push_back(range(part, part.program->places[step.first], step.bytes));
  write_word(stream, link.words->at(sends ? kSendBegun : kReceiveBegun), before + 1);
}

void SimWires::await_done(const Wire& wire, std::uint64_t count, StreamState& stream) const {
  for (std::uint64_t lane = 0; lane < std::min<std::uint64_t>(kLanes, count); ++lane)
    wait_word(stream, wire.words->at(kLanesDone + lane), (count - lane + kLanes - 1) / kLanes);
}

// What both sides begin. A message without bytes takes the way's latency all the same.
void SimWires::move(Wire& wire, bool both_begin) {
  for (std::size_t i = 0; i < wire.out.size(); ++i) {
    const std::uint64_t index = wire.carried++, lane = index % kLanes;
    StreamState& stream = *wire.lanes[lane];
    if (!both_begin) {
      wait_word(stream, wire.words->at(kSendBegun), index + 1);
      wait_word(stream, wire.words->at(kReceiveBegun), index + 1);
    }
    Range to = wire.in[i], from = wire.out[i];
    to.bytes = from.bytes = std::max<std::size_t>(from.bytes, 1);
    copy_range(stream, to, from);
    write_word(stream, wire.words->at(kLanesDone + lane), index / kLanes + 1);
  }
  wire.out.clear();
  wire.in.clear();
}

Range SimWires::range(const Part& part, const Place& place, std::uint64_t bytes) const {
  if (bytes > 0 && place.space == Space::kInput) return part.memory->input.slice(place.offset, bytes);
  if (bytes > 0 && place.space == Space::kOutput) return part.memory->output.slice(place.offset, bytes);
  Block* const block = scratch_[static_cast<std::size_t>(part.rank)];
  return {block, block->id.load(std::memory_order_relaxed), place.offset, bytes};
}

std::uint64_t SimWires::carry(int from, int to, Range out, Range in) {
  Wire& way = wire(from, to, 0);
  const auto place = [&](int rank, const Range& given) {
    return given.block ? given : range({.rank = rank}, {.space = Space::kScratch}, 0);
  };
  way.out.push_back(place(from, out));
  way.in.push_back(place(to, in));
  move(way, true);
  return way.carried;
}

bool SimWires::carried(int from, int to, std::uint64_t number) const {
  const Wire& way = wires_.at({0, from, to});
  for (std::uint64_t lane = 0; lane < std::min<std::uint64_t>(kLanes, number); ++lane) {
    if (way.words->value(kLanesDone + lane) < (number - lane + kLanes - 1) / kLanes) return false;
  }
  return true;
}

LinkRates SimWires::measure() {
  constexpr std::size_t kSmall = 64, kLarge = std::size_t{1} << 20;
  std::array<Stamp*, 3> marks{};
  for (const int from : {1, 0}) {  // rank 0's comes last and is looked at
    StreamState& stream = *wire(from, 1 - from, 0).lanes[0];
    const auto mark = [&](std::size_t index) {
      if (from != 0) return;
      marks[index] = new Stamp;
      submit(stream, {.kind = OpKind::kRecord, .event = marks[index]});
    };
    const auto copy = [&](std::size_t bytes) {
      const Range to = range({.rank = 1 - from}, {.space = Space::kScratch}, bytes);
      copy_range(stream, to, range({.rank = from}, {.space = Space::kScratch}, bytes));
    };
    mark(0);
    copy(kSmall);
    mark(1);
    copy(kLarge);
    mark(2);
  }
  StreamState& last = *wire(0, 1, 0).lanes[0];
  last.core->backend->wait(&last, kEverything, 0);
  const auto us = [&](std::size_t from, std::size_t to) {
    return static_cast<double>(marks[to]->since(*marks[from])) / 1e6;
  };
  LinkRates rates{.latency_us = us(0, 1), .gbps = 0, .message_us = 0};
  rates.gbps = static_cast<double>(kLarge) / (std::max(us(1, 2) - rates.latency_us, 1e-3) * 1e3);
  for (Stamp* stamp : marks) stamp->release();
  return rates;
}

}  // namespace slip
