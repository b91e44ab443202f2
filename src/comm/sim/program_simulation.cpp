#include "comm/sim/program_simulation.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "slip/stream.hpp"

namespace slip::comm {
namespace {

using Kind = Primitive::Kind;

const Kernel& user_kernel() {
  static const Kernel kKernel{"caller", [](const Args&) {}};
  return kKernel;
}

Program all_pieces(const MessageProgramBuilder& builder, int channel) {
  Program program;
  for (std::uint64_t piece = 0; piece < builder.pieces(channel); ++piece) builder.write(channel, piece, program);
  return program;
}

Program all_pieces(HostProgramBuilder& builder, bool refused) {
  Program program;
  for (std::uint64_t piece = 0; piece < builder.pieces(); ++piece) {
    builder.write(piece, program);
    if (refused && piece == 1 && builder.path() == HostPath::kRead) builder.refuse();
  }
  return program;
}

// Whether the rank has an input and an output, so the call may be in place.
bool has_both(const Call& call, int rank, int nranks) {
  const Blocks blocks = blocks_of(call, rank, nranks);
  return blocks.in > 0 && blocks.out > 0;
}

}  // namespace

RankPrograms rank_programs(const CallSpec& spec, std::span<const CommGraph> graphs) {
  const auto nranks = static_cast<int>(graphs.front().order.size());
  RankPrograms programs;
  programs.call = spec.call;
  programs.in_place = spec.in_place;
  programs.channels = static_cast<int>(graphs.size());
  for (int channel = 0; channel < programs.channels; ++channel) {
    for (int rank = 0; rank < nranks; ++rank) {
      const bool in_place = spec.in_place && has_both(spec.call, rank, nranks);
      const MessageProgramBuilder builder(*spec.schedule, {spec.call, rank, nranks, in_place, spec.chunk_bytes},
                                          graphs);
      programs.by_rank.push_back(all_pieces(builder, channel));
      programs.scratch = std::max(programs.scratch, builder.scratch(channel));
    }
  }
  return programs;
}

std::vector<RankPrograms> host_rank_programs(std::span<const Call> calls, int nranks, const Reachable& reachable) {
  std::vector<RankPrograms> sequence;
  std::uint64_t chunks = 0, phase = 0;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    RankPrograms& programs = sequence.emplace_back();
    programs.call = call;
    programs.in_place = reachable.in_place;
    programs.number = i + 1;
    programs.phase = phase;
    std::vector<HostProgramBuilder> builders;
    HostProgramBuilder::Offers offers;
    const bool by_kernel = reachable.by_kernel && DirectProgramBuilder::can_read(call, nranks);
    for (int rank = 0; rank < nranks; ++rank) {
      const DirectProgramBuilder::NeededBuffers needs = DirectProgramBuilder::needed_buffers(call, rank);
      // In an in-place all_to_all a rank would overwrite input that its peers still have to read.
      const bool clobbers = reachable.in_place && call.kind == Collective::kAllToAll;
      const bool offered = reachable.offers && !clobbers && reachable.offers(i, rank);
      const PeerAccess access = !needs.input && !needs.output ? PeerAccess::kNotNeeded
                                : !offered                    ? PeerAccess::kUnreachable
                                : by_kernel                   ? PeerAccess::kReadable
                                                              : PeerAccess::kShared;
      builders.emplace_back(call, programs.number, chunks, rank, nranks, by_kernel).take(access);
      if (DirectProgramBuilder::depends_on(call, rank)) offers.add(access);
    }
    for (HostProgramBuilder& builder : builders) {
      if (builder.asks()) builder.choose(offers);
      programs.direct = builder.is_direct();
      programs.by_rank.push_back(all_pieces(builder, reachable.refused));
    }
    chunks += builders.front().chunks();
    phase += builders.front().phases();
  }
  return sequence;
}

ProgramSimulation::ProgramSimulation(std::vector<Device> devices, WireKind wires, int tracks)
    : devices_(std::move(devices)), tracks_each_(tracks), player_(*this, nranks(), wires) {}

Plan ProgramSimulation::plan() {
  open_tracks();
  const Stream origin = devices_.front().stream(StreamFlags::kNonBlocking);
  origin.begin_capture();
  begun_ = origin.record();
  for (const auto& [stream, name] : streams_) stream.wait(begun_);
  for (const auto& [programs, track] : sequence_) {
    std::vector<RankBuffers> buffers;
    for (int rank = 0; rank < nranks(); ++rank) buffers.push_back(buffers_of(programs, rank, track));
    for (int rank = 0; rank < nranks(); ++rank) {
      for (int channel = 0; channel < programs.channels; ++channel) play(programs, buffers, rank, track, channel);
      end_call(programs, buffers[static_cast<std::size_t>(rank)], rank, track);
    }
  }
  player_.deliver();
  for (const auto& [stream, name] : streams_) origin.wait(stream.record());
  return origin.end_capture();
}

void ProgramSimulation::open_tracks() {
  std::uint64_t scratch = 1, addressed = 1;  // bytes
  bool stages = false;  // any program is a host program: only these have a number, and only these use staging memory
  for (const auto& [programs, track] : sequence_) {
    scratch = std::max(scratch, programs.scratch);
    stages = stages || programs.number > 0;
    for (const Program& program : programs.by_rank) {
      for (const Primitive& step : program.steps) {
        if (step.kind != Kind::kSend && step.kind != Kind::kReceive) continue;
        const BufferLocation& location = program.locations[step.first];
        if (location.space == BufferSpace::kAddress) addressed = std::max(addressed, location.offset + step.bytes);
      }
    }
  }
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const auto number = static_cast<int>(i);
    const int rank = number / tracks_each_;
    const Name name(fmt::format("{} / rank {}", track_name(rank, number % tracks_each_), rank));
    const StreamId stream = open_stream(devices_[i], name, name);
    tracks_.push_back({stream, devices_[i].alloc(scratch), devices_[i].alloc(addressed)});
  }
  for (int rank = 0; stages && rank < nranks(); ++rank) {
    staging_.push_back(buffers_.emplace_back(device_of(rank, 0).alloc(StagingLayout::kRankBytes)));
  }
}

// If the call is in place, the smaller of input and output is the rank's part of the larger.
RankBuffers ProgramSimulation::buffers_of(const RankPrograms& programs, int rank, int track) {
  const Blocks blocks = blocks_of(programs.call, rank, nranks());
  const std::uint64_t block = programs.call.block_bytes(), in = blocks.in * block, out = blocks.out * block;
  const Device& device = device_of(rank, track);
  const auto fresh = [&](std::uint64_t bytes, const char* name) -> Range {
    if (bytes == 0) return {};
    return buffers_.emplace_back(device.alloc(bytes, MemoryKind::kDevice, name));
  };
  if (!programs.in_place || in == 0 || out == 0) {
    const Range input = fresh(in, "input");
    return {input, fresh(out, "output")};
  }
  const Range larger = fresh(std::max(in, out), "input and output");
  const std::uint64_t own = static_cast<std::uint64_t>(rank) * block;
  return {in < out ? larger.slice(own, in) : larger, out < in ? larger.slice(own, out) : larger, true};
}

void ProgramSimulation::play(const RankPrograms& programs, std::span<const RankBuffers> buffers, int rank, int track,
                             int channel) {
  const Track& own = track_of(rank, track + channel);
  // Until this rank joins the call, the user's program may write the buffers. This write simulates it: if a peer
  // accesses the buffers before this rank has joined, the checker finds a race.
  if (programs.direct) overwrite(buffers[static_cast<std::size_t>(rank)], rank, track + channel);
  player_.play({.program = &programs.by_rank[static_cast<std::size_t>(channel * nranks() + rank)],
                .rank = rank,
                .track = track + channel,
                .buffers = buffers,
                .scratch = own.scratch,
                .addressed = own.addressed,
                .staging = staging_,
                .number = programs.number,
                .phase = programs.phase},
               own.stream);
}

// A call is done when all its channels are done. No channel begins the next call before that.
void ProgramSimulation::end_call(const RankPrograms& programs, const RankBuffers& buffers, int rank, int track) {
  const Stream& first = stream_of(rank, track);
  for (int other = track + 1; other < track + programs.channels; ++other) {
    overwrite({}, rank, other);
    first.wait(stream_of(rank, other).record());
  }
  overwrite(buffers, rank, track);
  for (int other = track + 1; other < track + programs.channels; ++other) stream_of(rank, other).wait(first.record());
}

// Writes to all memory of a call. Once a call is done, nothing may still use its memory: the user may overwrite the
// buffers, and scratch memory may be freed. The checker finds a race if a program violates this.
void ProgramSimulation::overwrite(const RankBuffers& buffers, int rank, int track) {
  const Track& own = track_of(rank, track);
  std::vector<Range> writes;
  for (const Range& range : {buffers.input, buffers.output, own.scratch.range(), own.addressed.range()}) {
    if (range.bytes > 0) writes.push_back(range);
  }
  launch(own.stream, user_kernel(), {.writes = writes}, {.time = 1});
}

// --- OpSink ---

OpSink::StreamId ProgramSimulation::open_wire_stream(int from, int to, int track) {
  const std::string channel = tracks_each_ > 1 ? fmt::format(", channel {}", track) : "";
  const std::string note = wire_note_ ? wire_note_(from, to, track) : "";
  const std::string link = fmt::format("link rank {} to {}", from, to);
  // The name of the device, then that of the stream: the timeline shows the streams of a device in one group.
  const Name stream_name(fmt::format("{} / {}{}", track_name(from, track), link, note));
  const StreamId stream = open_stream(device_of(from, track), stream_name, Name(link + channel + note));
  streams_[stream].first.wait(begun_);
  return stream;
}

std::string ProgramSimulation::track_name(int rank, int track) const {
  return tracks_each_ > 1 ? fmt::format("rank {}, channel {}", rank, track) : fmt::format("rank {}", rank);
}

}  // namespace slip::comm
