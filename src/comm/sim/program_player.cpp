#include "comm/sim/program_player.hpp"

#include <algorithm>

#include "base/fail.hpp"
#include "comm/link/link.hpp"
#include "comm/plan/host_program.hpp"
#include "runtime/core.hpp"

namespace slip::comm {
namespace {

using Kind = Primitive::Kind;
using Layout = StagingLayout;

constexpr std::uint64_t kFlagBytes = sizeof(std::uint32_t);
// The flags of a rank: one for each slot of its staging memory, in which it posts calls, then one for its phase.
constexpr std::uint64_t kPhaseFlag = Layout::kSlots, kFlagsPerRank = kPhaseFlag + 1;

struct Kernels {  // their functions do nothing: only the time and the accesses of their ops matter
  Kernel reduce{"reduce", [](const Args&) {}}, copy{"copy", [](const Args&) {}};
  Kernel kept{"kept for retransmission", [](const Args&) {}}, latency{"latency of a flag", [](const Args&) {}};
};
const Kernels& kernels() {
  static const Kernels kKernels;
  return kKernels;
}

Range flag_at(const Range& flags, std::uint64_t index) { return flags.slice(index * kFlagBytes, kFlagBytes); }

Range range_of(const BufferLocation& location, std::uint64_t bytes, const ProgramPart& part) {
  if (bytes == 0) return part.scratch.slice(0, 0);
  const RankBuffers& own = part.buffers[static_cast<std::size_t>(part.rank)];
  switch (location.space) {
    case BufferSpace::kInput: return own.input.slice(location.offset, bytes);
    case BufferSpace::kOutput: return own.output.slice(location.offset, bytes);
    case BufferSpace::kStaging: return part.staging[location.rank].slice(location.offset, bytes);
    case BufferSpace::kPeerInput: return part.buffers[location.rank].input.slice(location.offset, bytes);
    case BufferSpace::kPeerOutput: return part.buffers[location.rank].output.slice(location.offset, bytes);
    case BufferSpace::kScratch: return part.scratch.slice(location.offset, bytes);
    case BufferSpace::kAddress: return part.addressed.slice(location.offset, bytes);
  }
  return {};
}

// How many of the first `count` messages of a pipelined wire the stream carries. Message i is on stream i % `streams`.
// REQUIRES: stream < count.
std::uint64_t on_stream(std::uint64_t count, std::uint64_t stream, std::uint64_t streams) {
  return (count - stream + streams - 1) / streams;
}

}  // namespace

void ProgramPlayer::play(const ProgramPart& part, StreamId stream) {
  const std::uint64_t post_flag = part.number % Layout::kSlots;
  for (const Primitive& step : part.program->steps) {
    switch (step.kind) {
      case Kind::kCopy:
      case Kind::kReduce: work(part, step, stream); break;
      case Kind::kSend:
      case Kind::kReceive: begin_message(part, step, stream); break;
      case Kind::kSent:
      case Kind::kReceived: {
        const bool sends = step.kind == Kind::kSent;
        const Wire& wire = wire_of(step, part, sends);
        if (wire.begun(sends) > step.value) await_messages(wire, sends, wire.begun(sends) - step.value, stream);
        break;
      }
      case Kind::kRoom: {
        const std::uint64_t earlier = part.number < step.value ? 0 : part.number - step.value;
        await_peers(part, step, stream, earlier % Layout::kSlots, earlier);
        break;
      }
      case Kind::kPost: sink_.write_flag(stream, rank_flag(part.rank, post_flag), part.number); break;
      case Kind::kMeet: await_peers(part, step, stream, post_flag, part.number); break;
      case Kind::kEnter:
      case Kind::kSignal: sink_.write_flag(stream, rank_flag(part.rank, kPhaseFlag), part.phase + step.value); break;
      case Kind::kWait: await_peers(part, step, stream, kPhaseFlag, part.phase + step.value); break;
    }
  }
}

ProgramPlayer::Wire& ProgramPlayer::wire(int from, int to, int track) {
  const auto [found, fresh] = wires_.try_emplace({track, from, to}, Wire{from, to, track, {}, {}, {}, 0, {}, {}});
  if (fresh) found->second.flags = sink_.add_flags(kWireFlags);
  return found->second;
}

std::vector<ProgramPlayer::StreamId>& ProgramPlayer::streams_of(Wire& wire) {
  const std::size_t count = kind_ == WireKind::kBuffered ? 3 : is_pipelined() ? wire_streams_ : 1;
  while (wire.streams.size() < count) wire.streams.push_back(sink_.open_wire_stream(wire.from, wire.to, wire.track));
  return wire.streams;
}

void ProgramPlayer::work(const ProgramPart& part, const Primitive& step, StreamId stream) {
  const BufferLocation* const locations = part.program->locations.data() + step.first;
  reads_.clear();
  writes_.clear();
  for (int i = 0; i < step.targets; ++i) writes_.push_back(range_of(locations[i], step.bytes, part));
  for (int i = 0; i < step.sources; ++i) reads_.push_back(range_of(locations[step.targets + i], step.bytes, part));
  const bool copies = step.kind == Kind::kCopy;
  if (copies && reads_[0].block == writes_[0].block && reads_[0].offset == writes_[0].offset)
    return;  // comm::copy() does nothing then, too
  sink_.launch(stream, copies ? kernels().copy : kernels().reduce, {.reads = reads_, .writes = writes_},
               {.bytes = step.bytes * (reads_.size() + writes_.size())});
}

void ProgramPlayer::begin_message(const ProgramPart& part, const Primitive& step, StreamId stream) {
  const bool sends = step.kind == Kind::kSend;
  Wire& wire = wire_of(step, part, sends);
  const std::uint64_t before = wire.begun(sends);
  if (before >= LinkEnd::kDepth) await_messages(wire, sends, before - LinkEnd::kDepth + 1, stream);
  (sends ? wire.out : wire.in).push_back(range_of(part.program->locations[step.first], step.bytes, part));
  sink_.write_flag(stream, flag_at(wire.flags, sends ? kSendBegun : kReceiveBegun), before + 1);
}

// The stream waits until the first `count` messages of the wire are done at the sender (`sends`) or at the receiver.
void ProgramPlayer::await_messages(const Wire& wire, bool sends, std::uint64_t count, StreamId stream) {
  if (!is_pipelined()) return sink_.wait_flag(stream, flag_at(wire.flags, sends ? kSendDone : kReceiveDone), count);
  for (std::uint64_t i = 0; i < std::min(wire_streams_, count); ++i)
    sink_.wait_flag(stream, flag_at(wire.flags, kStreamsDone + i), on_stream(count, i, wire_streams_));
}

void ProgramPlayer::deliver() {
  for (auto& [key, wire] : wires_) {
    require_matching(wire);
    if (wire.out.empty()) continue;
    if (kind_ == WireKind::kBuffered) deliver_buffered(wire);
    else deliver(wire, true);
  }
}

void ProgramPlayer::require_matching(const Wire& wire) const {
  const auto require = [&](bool good, const std::string& what) {
    if (good) return;
    base::fail(ErrorCode::kMismatch, {}, "program simulation: from rank {} to rank {}: {}", wire.from, wire.to, what);
  };
  require(wire.out.size() == wire.in.size(),
          fmt::format("{} messages sent, {} received", wire.out.size(), wire.in.size()));
  for (std::size_t i = 0; i < wire.out.size(); ++i)
    require(wire.out[i].bytes == wire.in[i].bytes,
            fmt::format("message {} is sent as {} bytes, received as {}", i, wire.out[i].bytes, wire.in[i].bytes));
}

// `await_ranks`: the wire waits until the programs of both ranks have begun the message. An eager wire waits until the
// sender has begun it and the receiver has a free slot.
void ProgramPlayer::deliver(Wire& wire, bool await_ranks) {
  const std::vector<StreamId>& streams = streams_of(wire);
  std::uint64_t slot_bytes = 0;
  if (kind_ == WireKind::kEager) {
    for (const Range& range : wire.in) slot_bytes = std::max<std::uint64_t>(slot_bytes, range.bytes);
    wire.slots = sink_.add_buffer(wire.to, wire.track, kSlots * slot_bytes);
  }
  for (std::size_t i = 0; i < wire.out.size(); ++i) {
    const std::uint64_t index = wire.delivered++;
    const StreamId stream = streams[index % streams.size()];
    if (await_ranks) {
      sink_.wait_flag(stream, flag_at(wire.flags, kSendBegun), index + 1);
      const std::uint64_t ahead = kind_ == WireKind::kEager ? kSlots : 0;
      if (index >= ahead) sink_.wait_flag(stream, flag_at(wire.flags, kReceiveBegun), index + 1 - ahead);
    }
    const std::uint64_t bytes = wire.in[i].bytes;
    sink_.copy(stream, slot_bytes > 0 ? wire.slots.slice(index % kSlots * slot_bytes, bytes) : wire.in[i], wire.out[i]);
    if (is_pipelined()) {
      sink_.write_flag(stream, flag_at(wire.flags, kStreamsDone + index % wire_streams_), index / wire_streams_ + 1);
    } else {
      sink_.write_flag(stream, flag_at(wire.flags, kSendDone), index + 1);
      sink_.write_flag(stream, flag_at(wire.flags, kReceiveDone), index + 1);
    }
  }
  wire.out.clear();
  wire.in.clear();
}

void ProgramPlayer::deliver_buffered(Wire& wire) {
  const std::vector<StreamId>& streams = streams_of(wire);
  const StreamId out = streams[0], in = streams[1], kept = streams[2];
  std::uint64_t bytes = 0, at = 0;
  for (const Range& message : wire.out) bytes += message.bytes;
  const Range inside = sink_.add_buffer(wire.from, wire.track, std::max<std::uint64_t>(bytes, 1));
  for (std::size_t i = 0; i < wire.out.size(); ++i) {
    const std::uint64_t count = ++wire.delivered;
    const Range source = wire.out[i], cell = inside.slice(at, source.bytes);
    at += source.bytes;
    sink_.wait_flag(out, flag_at(wire.flags, kSendBegun), count);
    sink_.copy(out, cell, source);
    sink_.write_flag(out, flag_at(wire.flags, kGone), count);
    sink_.wait_flag(in, flag_at(wire.flags, kGone), count);
    sink_.wait_flag(in, flag_at(wire.flags, kReceiveBegun), count);
    sink_.copy(in, wire.in[i], cell);
    sink_.write_flag(in, flag_at(wire.flags, kReceiveDone), count);
    sink_.wait_flag(kept, flag_at(wire.flags, kGone), count);
    if (source.bytes > 0) sink_.launch(kept, kernels().kept, {.reads = {source}}, {});
    sink_.write_flag(kept, flag_at(wire.flags, kSendDone), count);
  }
  wire.out.clear();
  wire.in.clear();
}

std::uint64_t ProgramPlayer::carry(int from, int to, const Range& out, const Range& in) {
  Wire& wire = this->wire(from, to, 0);
  wire.out.push_back(out);
  wire.in.push_back(in);
  deliver(wire, false);
  return wire.delivered;
}

// relaxed: the thread that drives the sim world has written the flags, and the same thread calls this.
bool ProgramPlayer::carried(int from, int to, std::uint64_t number) const {
  const Wire& wire = wires_.at({0, from, to});
  for (std::uint64_t i = 0; i < std::min(wire_streams_, number); ++i) {
    const auto* const done =
        reinterpret_cast<const std::uint32_t*>(runtime::address(flag_at(wire.flags, kStreamsDone + i)));
    if (__atomic_load_n(done, __ATOMIC_RELAXED) < on_stream(number, i, wire_streams_)) return false;
  }
  return true;
}

Range ProgramPlayer::rank_flag(int rank, std::uint64_t index) {
  if (rank_flags_.bytes == 0) rank_flags_ = sink_.add_flags(static_cast<std::size_t>(nranks_) * kFlagsPerRank);
  return flag_at(rank_flags_, static_cast<std::uint64_t>(rank) * kFlagsPerRank + index);
}

// Calls and phases count from 1, so a rank need not wait for 0.
void ProgramPlayer::await_peers(const ProgramPart& part, const Primitive& step, StreamId stream, std::uint64_t index,
                                std::uint64_t value) {
  if (value == 0) return;
  for (int peer = 0; peer < nranks_; ++peer) {
    if (peer == part.rank) continue;
    if (step.peer != kAllPeers && step.peer != static_cast<std::uint64_t>(peer)) continue;
    sink_.wait_flag(stream, rank_flag(peer, index), value);
  }
  if (flag_latency_ > 0) sink_.launch(stream, kernels().latency, {}, {.time = flag_latency_});
}

}  // namespace slip::comm
