#include "comm/sim/rehearsal.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/link/link.hpp"
#include "slip/kernel.hpp"

namespace slip {
namespace {

using Kind = Primitive::Kind;
using Layout = SharedLayout;

constexpr std::uint64_t kSharedWords = Layout::kSlots + 1;  // of a rank: posts, and its phase

const Kernel& reduce_kernel() {
  static const Kernel kKernel{"reduce", [](const Args&) {}};
  return kKernel;
}
const Kernel& copy_kernel() {
  static const Kernel kKernel{"copy", [](const Args&) {}};
  return kKernel;
}
const Kernel& kept_kernel() {
  static const Kernel kKernel{"kept to be sent again", [](const Args&) {}};
  return kKernel;
}
const Kernel& sight_kernel() {
  static const Kernel kKernel{"sees the others", [](const Args&) {}};
  return kKernel;
}
const Kernel& user_kernel() {
  static const Kernel kKernel{"caller", [](const Args&) {}};
  return kKernel;
}

Program whole(const HostPlan& plan) {
  Program program;
  for (std::uint64_t piece = 0; piece < plan.pieces(); ++piece) plan.write(piece, program);
  return program;
}
Program whole(const MessagePlan& plan, int channel) {
  Program program;
  for (std::uint64_t piece = 0; piece < plan.pieces(channel); ++piece) plan.write(channel, piece, program);
  return program;
}

bool has_both(const Call& call, int rank, int nranks) {
  const Blocks blocks = blocks_of(call, rank, nranks);
  return blocks.in > 0 && blocks.out > 0;
}

}  // namespace

Scene scene_of(const Practice& practice, std::span<const Formation> formations) {
  const auto nranks = static_cast<int>(formations.front().order.size());
  Scene scene;
  scene.call = practice.call;
  scene.in_place = practice.in_place;
  scene.channels = static_cast<int>(formations.size());
  for (int channel = 0; channel < scene.channels; ++channel) {
    for (int rank = 0; rank < nranks; ++rank) {
      const bool in_place = practice.in_place && has_both(practice.call, rank, nranks);
      const MessagePlan plan(*practice.recipe, {practice.call, rank, nranks, in_place, practice.chunk_bytes},
                             formations);
      scene.programs.push_back(whole(plan, channel));
      scene.scratch = std::max(scene.scratch, plan.scratch(channel));
    }
  }
  return scene;
}

Scene scene_of(std::span<const std::vector<UserMessage>> messages) {
  Scene scene;
  scene.call = {.kind = Collective::kMessage, .type = DataType::kU8};
  for (const std::vector<UserMessage>& own : messages) scene.programs.push_back(whole(MessagePlan(own), 0));
  return scene;
}

std::vector<Scene> shared_scenes(std::span<const Call> calls, int nranks, const Reachable& reachable) {
  std::vector<Scene> scenes;
  std::uint64_t chunks = 0, phase = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    Scene& scene = scenes.emplace_back();
    scene.call = call;
    scene.in_place = reachable.in_place;
    scene.number = i + 1;
    scene.phase = phase;
    std::vector<HostPlan> plans;
    bool any_private = false, any_offered = false;
    for (int rank = 0; rank < nranks; ++rank) {
      const DirectPlan::Needs needs = DirectPlan::needs(call, rank);
      const bool one_way = reachable.in_place && call.kind == Collective::kAllToAll;  // nobody could read the input
      const PeerAccess access = !needs.input && !needs.output                               ? PeerAccess::kNotNeeded
                                : reachable.offers && !one_way && reachable.offers(i, rank) ? PeerAccess::kShared
                                                                                            : PeerAccess::kUnreachable;
      plans.emplace_back(call, scene.number, chunks, rank, nranks).take(access);
      if (!DirectPlan::depends_on(call, rank)) continue;
      any_private = any_private || access == PeerAccess::kUnreachable;
      any_offered = any_offered || access == PeerAccess::kShared;
    }
    for (HostPlan& plan : plans) {
      if (plan.asks()) plan.choose(any_private, any_offered);
      scene.programs.push_back(whole(plan));
    }
    scene.direct = plans.front().path() == Path::kDirect;
    chunks += plans.front().chunks();
    phase += plans.front().phases();
  }
  return scenes;
}

Rehearsal::Rehearsal(std::vector<Device> devices, Wires wires, int tracks)
    : devices_(std::move(devices)), kind_(wires), tracks_each_(tracks) {}

void Rehearsal::add(const Scene& scene, int track) { scenes_.emplace_back(scene, track); }

// The caller's input and output; in place the smaller is its part of the larger.
Rehearsal::Memory Rehearsal::memory_of(const Scene& scene, int rank, int track) {
  const Blocks blocks = blocks_of(scene.call, rank, nranks());
  const std::uint64_t block = scene.call.block_bytes(), in = blocks.in * block, out = blocks.out * block;
  const Device& device = device_of(rank, track);
  const auto fresh = [&](std::uint64_t bytes, const char* name) -> Range {
    if (bytes == 0) return {};
    return buffers_.emplace_back(device.alloc(bytes, MemoryKind::kDevice, name));
  };
  if (!scene.in_place || in == 0 || out == 0) {
    const Range input = fresh(in, "input");
    return {input, fresh(out, "output")};
  }
  const Range larger = fresh(std::max(in, out), "input and output");
  const std::uint64_t own = static_cast<std::uint64_t>(rank) * block;
  return {in < out ? larger.slice(own, in) : larger, out < in ? larger.slice(own, out) : larger};
}

Range Rehearsal::range(const Place& place, std::uint64_t bytes, const View& view) const {
  if (bytes == 0) return {};
  switch (place.space) {
    case Space::kInput: return view.own().input.slice(place.offset, bytes);
    case Space::kOutput: return view.own().output.slice(place.offset, bytes);
    case Space::kStaging: return staging_[place.rank].slice(place.offset, bytes);
    case Space::kPeerInput: return view.all[place.rank].input.slice(place.offset, bytes);
    case Space::kPeerOutput: return view.all[place.rank].output.slice(place.offset, bytes);
    case Space::kScratch: return view.track->scratch.slice(place.offset, bytes);
    case Space::kAddress: return view.track->own.slice(place.offset, bytes);
  }
  return {};
}

Rehearsal::Wire& Rehearsal::wire(int from, int to, int track) {
  const auto [place, fresh] = wires_.try_emplace({track, from, to}, Wire{from, to, track, 0, {}, {}});
  if (fresh) {
    const std::uint64_t before = static_cast<std::uint64_t>(nranks()) * kSharedWords;
    place->second.words = before + (wires_.size() - 1) * kWireWords;
  }
  return place->second;
}

std::uint64_t Rehearsal::shared_word(int rank, std::uint64_t index) const {
  return static_cast<std::uint64_t>(rank) * kSharedWords + index;
}

Plan Rehearsal::plan() {
  std::uint64_t scratch = 0, own = 0;
  bool shares = false;
  for (const auto& [scene, track] : scenes_) {
    scratch = std::max(scratch, scene.scratch);
    shares = shares || scene.number > 0;
    for (std::size_t i = 0; i < scene.programs.size(); ++i) {
      const int rank = static_cast<int>(i) % nranks(), own_track = track + static_cast<int>(i) / nranks();
      for (const Primitive& step : scene.programs[i].steps) {
        if (step.kind != Kind::kSend && step.kind != Kind::kReceive) continue;
        const auto other = static_cast<int>(step.whom);
        static_cast<void>(step.kind == Kind::kSend ? wire(rank, other, own_track) : wire(other, rank, own_track));
        const Place& place = scene.programs[i].places[step.first];
        if (place.space == Space::kAddress) own = std::max(own, place.offset + step.bytes);
      }
    }
  }
  const std::uint64_t words = static_cast<std::uint64_t>(nranks()) * kSharedWords + wires_.size() * kWireWords;
  words_ = devices_.front().alloc(words * 4, MemoryKind::kPinned, "words");
  for (const Device& device : devices_)
    tracks_.push_back({device.stream(StreamFlags::kNonBlocking), device.alloc(std::max<std::uint64_t>(scratch, 1)),
                       device.alloc(std::max<std::uint64_t>(own, 1))});
  for (int rank = 0; shares && rank < nranks(); ++rank)
    staging_.push_back(device_of(rank, 0).alloc(Layout::kRankBytes));
  const Stream origin = devices_.front().stream(StreamFlags::kNonBlocking);
  origin.begin_capture();
  const Event begun = origin.record();
  for (const Track& track : tracks_) track.stream.wait(begun);
  for (const auto& [scene, track] : scenes_) {
    std::vector<Memory> all;
    for (int rank = 0; rank < nranks(); ++rank) all.push_back(memory_of(scene, rank, track));
    for (int rank = 0; rank < nranks(); ++rank) {
      for (int channel = 0; channel < scene.channels; ++channel) perform(scene, all, rank, track, channel);
      end_call(scene, all[static_cast<std::size_t>(rank)], rank, track);
    }
  }
  for (const auto& [key, one] : wires_) {
    for (std::size_t i = 0; i < streams_of_wire(); ++i) {
      wire_streams_.push_back(device_of(one.from, one.track).stream(StreamFlags::kNonBlocking));
      wire_streams_.back().wait(begun);
    }
    run(one);
  }
  for (const Track& track : tracks_) origin.wait(track.stream.record());
  for (const Stream& stream : wire_streams_) origin.wait(stream.record());
  return origin.end_capture();
}

void Rehearsal::perform(const Scene& scene, std::span<const Memory> all, int rank, int track, int channel) {
  const Program& program = scene.programs[static_cast<std::size_t>(channel * nranks() + rank)];
  const Track& own = track_of(rank, track + channel);
  const View view{rank, all, &own};
  if (scene.direct) use_again(view.own(), own);  // nobody is at them before this rank has come
  for (const Primitive& step : program.steps) {
    switch (step.kind) {
      case Kind::kCopy:
      case Kind::kReduce: work(program, step, view); break;
      case Kind::kSend:
      case Kind::kReceive: message(program, step, view, track + channel); break;
      case Kind::kSent:
      case Kind::kReceived: done(step, rank, track + channel); break;
      case Kind::kRoom:
      case Kind::kPost:
      case Kind::kMeet:
      case Kind::kSignal:
      case Kind::kEnter:
      case Kind::kWait: shared_step(scene, step, rank, own.stream); break;
    }
  }
}

// It is done when all its channels are, and none begins the next one before.
void Rehearsal::end_call(const Scene& scene, const Memory& memory, int rank, int track) {
  const Track& first = track_of(rank, track);
  for (int other = track + 1; other < track + scene.channels; ++other) {
    use_again({}, track_of(rank, other));
    first.stream.wait(track_of(rank, other).stream.record());
  }
  use_again(memory, first);
  for (int other = track + 1; other < track + scene.channels; ++other)
    track_of(rank, other).stream.wait(first.stream.record());
}

// What a call leaves behind is in nobody's way: the caller overwrites its memory, and scratch memory may be replaced.
void Rehearsal::use_again(const Memory& memory, const Track& track) const {
  std::vector<Range> writes;
  for (const Range& range : {memory.input, memory.output, track.scratch.range(), track.own.range()}) {
    if (range.bytes > 0) writes.push_back(range);
  }
  track.stream.launch(user_kernel(), {.writes = writes}, {.time = 1});
}

void Rehearsal::work(const Program& program, const Primitive& step, const View& view) const {
  const Place* const places = program.places.data() + step.first;
  std::vector<Range> reads, writes;
  for (int i = 0; i < step.targets; ++i) writes.push_back(range(places[i], step.bytes, view));
  for (int i = 0; i < step.sources; ++i) reads.push_back(range(places[step.targets + i], step.bytes, view));
  if (step.kind == Kind::kCopy && reads[0].block == writes[0].block && reads[0].offset == writes[0].offset)
    return;  // as copy() does
  view.track->stream.launch(step.kind == Kind::kCopy ? copy_kernel() : reduce_kernel(),
                            {.reads = reads, .writes = writes}, {.bytes = step.bytes * (reads.size() + writes.size())});
}

void Rehearsal::message(const Program& program, const Primitive& step, const View& view, int track) {
  const bool sends = step.kind == Kind::kSend;
  const auto other = static_cast<int>(step.whom);
  const Stream& stream = view.track->stream;
  Wire& link = sends ? wire(view.rank, other, track) : wire(other, view.rank, track);
  std::vector<Message>& all = sends ? link.out : link.in;
  if (all.size() >= LinkEnd::kDepth) await_done(link, sends, all.size() - LinkEnd::kDepth + 1, stream);
  all.push_back({range(program.places[step.first], step.bytes, view), step.bytes});
  stream.write_value(word(link.words + (sends ? kSendBegun : kReceiveBegun)), static_cast<std::uint32_t>(all.size()));
}

void Rehearsal::done(const Primitive& step, int rank, int track) {
  const bool sends = step.kind == Kind::kSent;
  const auto other = static_cast<int>(step.whom);
  const Wire& link = sends ? wire(rank, other, track) : wire(other, rank, track);
  const std::uint64_t begun = (sends ? link.out : link.in).size();
  if (begun > step.value) await_done(link, sends, begun - step.value, track_of(rank, track).stream);
}

void Rehearsal::await_done(const Wire& wire, bool sends, std::uint64_t count, const Stream& stream) const {
  if (kind_ != Wires::kPipelined)
    return stream.wait_value(word(wire.words + (sends ? kSendDone : kReceiveDone)), static_cast<std::uint32_t>(count));
  for (std::uint64_t lane = 0; lane < std::min(kLanes, count); ++lane)
    stream.wait_value(word(wire.words + kLanesDone + lane),
                      static_cast<std::uint32_t>((count - lane + kLanes - 1) / kLanes));
}

void Rehearsal::run(const Wire& wire) {
  const auto require = [&](bool good, const std::string& what) {
    if (good) return;
    throw Error(Code::kMismatch, fmt::format("rehearsal: from rank {} to rank {}: {}", wire.from, wire.to, what), {});
  };
  require(wire.out.size() == wire.in.size(),
          fmt::format("{} messages sent, {} received", wire.out.size(), wire.in.size()));
  for (std::size_t i = 0; i < wire.out.size(); ++i)
    require(wire.out[i].bytes == wire.in[i].bytes,
            fmt::format("message {} is sent as {} bytes, received as {}", i, wire.out[i].bytes, wire.in[i].bytes));
  const Name name(fmt::format("{} to {}", wire.from, wire.to));
  const std::span<const Stream> streams = std::span<const Stream>(wire_streams_).last(streams_of_wire());
  if (kind_ == Wires::kRendezvous) run_rendezvous(wire, name, streams[0]);
  else if (kind_ == Wires::kPipelined) run_pipelined(wire, name, streams);
  else run_buffered(wire, name, streams);
}

void Rehearsal::run_rendezvous(const Wire& wire, Name name, const Stream& stream) const {
  for (std::size_t i = 0; i < wire.out.size(); ++i) {
    const auto count = static_cast<std::uint32_t>(i + 1);
    stream.wait_value(word(wire.words + kSendBegun), count);
    stream.wait_value(word(wire.words + kReceiveBegun), count);
    if (wire.out[i].bytes > 0) stream.copy(wire.in[i].range, wire.out[i].range, name);
    stream.write_value(word(wire.words + kSendDone), count);
    stream.write_value(word(wire.words + kReceiveDone), count);
  }
}

void Rehearsal::run_pipelined(const Wire& wire, Name name, std::span<const Stream> streams) const {
  for (std::size_t i = 0; i < wire.out.size(); ++i) {
    const Stream& stream = streams[i % kLanes];
    const auto count = static_cast<std::uint32_t>(i + 1);
    stream.wait_value(word(wire.words + kSendBegun), count);
    stream.wait_value(word(wire.words + kReceiveBegun), count);
    if (wire.out[i].bytes > 0) stream.copy(wire.in[i].range, wire.out[i].range, name);
    stream.write_value(word(wire.words + kLanesDone + i % kLanes), static_cast<std::uint32_t>(i / kLanes + 1));
  }
}

void Rehearsal::run_buffered(const Wire& wire, Name name, std::span<const Stream> streams) {
  const Stream &out = streams[0], &in = streams[1], &kept = streams[2];
  std::uint64_t bytes = 0, at = 0;
  for (const Message& message : wire.out) bytes += message.bytes;
  const Buffer& inside = buffers_.emplace_back(devices_.front().alloc(std::max<std::uint64_t>(bytes, 1)));
  for (std::size_t i = 0; i < wire.out.size(); ++i) {
    const auto count = static_cast<std::uint32_t>(i + 1);
    const Range source = wire.out[i].range;
    const Range cell = wire.out[i].bytes > 0 ? inside.slice(at, wire.out[i].bytes) : Range{};
    at += wire.out[i].bytes;
    out.wait_value(word(wire.words + kSendBegun), count);
    if (cell.bytes > 0) out.copy(cell, source, name);
    out.write_value(word(wire.words + kGone), count);
    in.wait_value(word(wire.words + kGone), count);
    in.wait_value(word(wire.words + kReceiveBegun), count);
    if (cell.bytes > 0) in.copy(wire.in[i].range, cell, name);
    in.write_value(word(wire.words + kReceiveDone), count);
    kept.wait_value(word(wire.words + kGone), count);
    if (cell.bytes > 0) kept.launch(kept_kernel(), {.reads = {source}});
    kept.write_value(word(wire.words + kSendDone), count);
  }
}

// Words count from 1: what is to be reached before the first call is reached before anybody says so.
void Rehearsal::await_others(const Primitive& step, int rank, const Stream& stream, std::uint64_t index,
                             std::uint64_t value) {
  if (value == 0) return;
  for (int other = 0; other < nranks(); ++other) {
    if (other == rank) continue;
    if (step.whom != kEverybody && step.whom != static_cast<std::uint64_t>(other)) continue;
    stream.wait_value(word(shared_word(other, index)), static_cast<std::uint32_t>(value));
  }
  if (sight_ > 0) stream.launch(sight_kernel(), {}, {.time = sight_});
}

void Rehearsal::shared_step(const Scene& scene, const Primitive& step, int rank, const Stream& stream) {
  const std::uint64_t slot = scene.number % Layout::kSlots;
  switch (step.kind) {
    case Kind::kRoom: {
      const std::uint64_t needed = scene.number < step.value ? 0 : scene.number - step.value;
      return await_others(step, rank, stream, needed % Layout::kSlots, needed);
    }
    case Kind::kPost:
      return stream.write_value(word(shared_word(rank, slot)), static_cast<std::uint32_t>(scene.number));
    case Kind::kMeet: return await_others(step, rank, stream, slot, scene.number);
    case Kind::kEnter:
    case Kind::kSignal:
      return stream.write_value(word(shared_word(rank, Layout::kSlots)),
                                static_cast<std::uint32_t>(scene.phase + step.value));
    case Kind::kWait: return await_others(step, rank, stream, Layout::kSlots, scene.phase + step.value);
    default: break;
  }
}

}  // namespace slip
