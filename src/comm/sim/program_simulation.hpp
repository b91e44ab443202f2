// ProgramSimulation: the programs of all ranks as one plan on streams of sim devices (see ProgramPlayer). The checker
// proves that the plan has no race and no deadlock; a launch of the plan gives its time. No bytes move between ranks.
// predict.cpp and the tests use it.
#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "comm/plan/host_program.hpp"
#include "comm/plan/message_program.hpp"
#include "comm/sim/program_player.hpp"
#include "slip/device.hpp"
#include "slip/plan.hpp"

namespace slip::comm {

// The programs of all ranks for one call.
struct RankPrograms {
  Call call;
  bool in_place = false;         // for the ranks that have both an input and an output
  int channels = 1;              // they run at the same time on the same buffers
  std::vector<Program> by_rank;  // all pieces of each rank's program; the programs of channel 0 come first
  std::uint64_t scratch = 0;     // bytes that each rank and channel needs
  std::uint64_t number = 0;      // host programs: the call's number
  std::uint64_t phase = 0;       // host programs: the phases of all calls before it
  bool direct = false;           // host programs: the ranks access each other's buffers
};

// A collective by messages.
struct CallSpec {
  const Schedule* schedule = nullptr;
  Call call;
  bool in_place = false;
  std::uint64_t chunk_bytes = 0;
};
// With one channel for each graph.
RankPrograms rank_programs(const CallSpec& spec, std::span<const CommGraph> graphs);
inline RankPrograms rank_programs(const CallSpec& spec, const CommGraph& graph) {
  return rank_programs(spec, std::span(&graph, 1));
}

// Which buffers the other ranks of the host can reach.
struct Reachable {
  std::function<bool(std::size_t call, int rank)> offers;  // null: no rank offers its buffers
  bool in_place = false;
  bool by_kernel = false;  // the peers let the kernel copy from the buffers that a rank offers
  bool refused = false;    // and the kernel refuses
};
// The programs of calls between ranks of one host, from the first call of the communicator on.
std::vector<RankPrograms> host_rank_programs(std::span<const Call> calls, int nranks, const Reachable& reachable = {});

class ProgramSimulation final : private OpSink {
 public:
  // `tracks`: how many calls, or channels of a call, may run at the same time. `devices`: the sim device of each track
  // of each rank, those of rank 0 first; they may all be the same device.
  ProgramSimulation(std::vector<Device> devices, WireKind wires, int tracks = 1);

  // The call runs after the calls that were added to the same track before. Its channels use the tracks from `track`
  // on. When a call is done, the simulated user overwrites its buffers. All calls of a track share one scratch memory.
  void add(const RankPrograms& programs, int track = 0) { sequence_.emplace_back(programs, track); }
  // Returns a text that the timeline shows after the name of a wire, for example the NICs that the wire uses.
  using WireNote = std::function<std::string(int from, int to, int track)>;
  void set_wire_note(WireNote note) { wire_note_ = std::move(note); }
  // See ProgramPlayer.
  void set_wire_streams(std::uint64_t count) { player_.set_wire_streams(count); }
  void set_flag_latency(Picos time) { player_.set_flag_latency(time); }
  // May be called once. The plan uses memory of this object. Throws kMismatch if messages sent and received differ.
  Plan plan();

 private:
  struct Track {  // of a rank
    StreamId stream = 0;
    Buffer scratch, addressed;
  };

  StreamId open_stream(const Device& device, Name name, Name copies) {
    streams_.emplace_back(device.stream(name, StreamFlags::kNonBlocking), copies);
    return streams_.size() - 1;
  }
  // "rank 3, channel 1": the group of streams in the timeline.
  std::string track_name(int rank, int track) const;
  StreamId open_wire_stream(int from, int to, int track) override;
  Range add_flags(std::size_t count) override {
    return buffers_.emplace_back(devices_.front().alloc(count * sizeof(std::uint32_t), MemoryKind::kPinned, "flags"));
  }
  Range add_buffer(int rank, int track, std::uint64_t bytes) override {
    return buffers_.emplace_back(device_of(rank, track).alloc(bytes, MemoryKind::kDevice, "wire"));
  }
  void write_flag(StreamId stream, const Range& flag, std::uint64_t value) override {
    streams_[stream].first.write_value(flag, static_cast<std::uint32_t>(value));
  }
  void wait_flag(StreamId stream, const Range& flag, std::uint64_t value) override {
    streams_[stream].first.wait_value(flag, static_cast<std::uint32_t>(value));
  }
  void copy(StreamId stream, const Range& to, const Range& from) override {
    if (from.bytes > 0) streams_[stream].first.copy(to, from, streams_[stream].second);
  }
  void launch(StreamId stream, const Kernel& kernel, const Operands& operands, const Cost& cost) override {
    streams_[stream].first.launch(kernel, operands, cost);
  }

  int nranks() const { return static_cast<int>(devices_.size()) / tracks_each_; }
  const Device& device_of(int rank, int track) const {
    return devices_[static_cast<std::size_t>(rank * tracks_each_ + track)];
  }
  const Track& track_of(int rank, int track) const {
    return tracks_[static_cast<std::size_t>(rank * tracks_each_ + track)];
  }
  const Stream& stream_of(int rank, int track) const { return streams_[track_of(rank, track).stream].first; }
  void open_tracks();
  RankBuffers buffers_of(const RankPrograms& programs, int rank, int track);
  void play(const RankPrograms& programs, std::span<const RankBuffers> buffers, int rank, int track, int channel);
  void end_call(const RankPrograms& programs, const RankBuffers& buffers, int rank, int track);
  void overwrite(const RankBuffers& buffers, int rank, int track);

  std::vector<Device> devices_;
  const int tracks_each_;
  WireNote wire_note_;
  ProgramPlayer player_;
  std::vector<std::pair<RankPrograms, int>> sequence_;  // with their tracks
  std::vector<Track> tracks_;
  std::vector<std::pair<Stream, Name>> streams_;  // by StreamId; Name: of the copies on the stream
  std::vector<Buffer> buffers_;
  std::vector<Range> staging_;  // by rank
  Event begun_;
};

}  // namespace slip::comm
