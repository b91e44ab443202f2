// Rehearsal: the programs of all ranks as one plan of streams on sim devices, so that the checker proves them and the
// simulator times them. Nothing is communicated.
//
// Each rank is a stream, and each way from one rank to another is a wire, a stream of its own. To begin a message is to
// write a word that counts; the wire waits for it, copies, and writes the words that count what is done; kSent and
// kReceived wait for these. Messages that would be too many for a link wait for room, as they do there. Posts and
// phases of programs through shared memory are words, too.
//
// Two kinds of wires for proofs, because no real link is as strict as both, and one for times:
//   kRendezvous  a message moves when both ranks have begun it, and then both are told. Ranks that wait in a circle
//   with
//                some link do so with this one.
//   kBuffered    a message leaves when it is sent, whenever it is received, and the sender's bytes are read (for they
//                may have to be sent again) until the sender is told that it is done, though they may have come long
//                before. What is ordered here is ordered by every link, so a race with some link is one here.
//   kPipelined   as kRendezvous, but a few messages are under way at the same time: a link's latency is not paid for
//                each of many.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "comm/plan/host_plan.hpp"
#include "comm/plan/message_plan.hpp"
#include "slip/device.hpp"
#include "slip/plan.hpp"

namespace slip {

// A call as all ranks do it.
struct Scene {
  Call call;
  bool in_place = false;          // where a rank has an input and an output
  int channels = 1;               // that go on side by side in the same memory
  std::vector<Program> programs;  // by rank, those of the first channel first; whole
  std::uint64_t scratch = 0;      // bytes, of each rank and channel
  std::uint64_t number = 0;       // through shared memory: the call's number, and
  std::uint64_t phase = 0;        // the phases of those before it
  bool direct = false;            // done where the ranks' buffers lie
};

struct Practice {
  const Recipe* recipe = nullptr;
  Call call;
  bool in_place = false;
  std::uint64_t chunk_bytes = 0;
};
// A channel for each formation.
Scene scene_of(const Practice& practice, std::span<const Formation> formations);
inline Scene scene_of(const Practice& practice, const Formation& formation) {
  return scene_of(practice, std::span(&formation, 1));
}
// Sends and receives: the addresses of rank i's messages are offsets into memory of its own.
Scene scene_of(std::span<const std::vector<UserMessage>> messages);
// Who lets others at its buffers, by call and rank (null: nobody); and whether they are one, as with Scene.
struct Reachable {
  std::function<bool(std::size_t call, int rank)> offers;
  bool in_place = false;
};
// Calls between ranks of one host, one after the other from the first on.
std::vector<Scene> shared_scenes(std::span<const Call> calls, int nranks, const Reachable& reachable = {});

enum class Wires : std::uint8_t { kRendezvous, kBuffered, kPipelined };

class Rehearsal {
 public:
  // `tracks`: how many scenes, or channels of one, may go on side by side. `devices`: the sim device of each track of
  // each rank, those of rank 0 first; they may all be one.
  Rehearsal(std::vector<Device> devices, Wires wires, int tracks = 1);

  // After those of the same track; channels take the tracks from there on. The caller's memory is used again when the
  // call is done, and scratch memory is that of all calls of a track. Throws kMismatch if what is sent is not what is
  // received.
  void add(const Scene& scene, int track = 0);
  // What it takes until a rank sees what others posted or signalled; for times only.
  void set_sight(Picos time) { sight_ = time; }
  Plan plan();  // once; of memory that lives as long as the rehearsal

 private:
  struct Track {  // of a rank
    Stream stream;
    Buffer scratch, own;  // `own`: what addresses are offsets into
  };
  struct Message {
    Range range;
    std::uint64_t bytes = 0;
  };
  struct Wire {
    int from = 0, to = 0, track = 0;
    std::uint64_t words = 0;  // the first of kWireWords
    std::vector<Message> out, in;
  };
  struct Memory {  // of a rank in a call
    Range input, output;
  };
  struct View {  // of a rank in a call: what it can reach
    int rank = 0;
    std::span<const Memory> all;  // by rank
    const Track* track = nullptr;
    const Memory& own() const { return all[static_cast<std::size_t>(rank)]; }
  };
  static constexpr std::uint64_t kLanes = 4;  // messages under way in a pipelined wire
  enum Word : std::uint64_t {
    kSendBegun,
    kReceiveBegun,
    kGone,
    kSendDone,
    kReceiveDone,
    kLanesDone,
    kWireWords = kLanesDone + kLanes
  };

  int nranks() const { return static_cast<int>(devices_.size()) / tracks_each_; }
  const Device& device_of(int rank, int track) const {
    return devices_[static_cast<std::size_t>(rank * tracks_each_ + track)];
  }
  Track& track_of(int rank, int track) { return tracks_[static_cast<std::size_t>(rank * tracks_each_ + track)]; }
  Memory memory_of(const Scene& scene, int rank, int track);
  void perform(const Scene& scene, std::span<const Memory> all, int rank, int track, int channel);
  void end_call(const Scene& scene, const Memory& memory, int rank, int track);
  void shared_step(const Scene& scene, const Primitive& step, int rank, const Stream& stream);
  void await_others(const Primitive& step, int rank, const Stream& stream, std::uint64_t index, std::uint64_t value);
  void work(const Program& program, const Primitive& step, const View& view) const;
  void message(const Program& program, const Primitive& step, const View& view, int track);
  void done(const Primitive& step, int rank, int track);
  void await_done(const Wire& wire, bool sends, std::uint64_t count, const Stream& stream) const;
  void use_again(const Memory& memory, const Track& track) const;
  Range range(const Place& place, std::uint64_t bytes, const View& view) const;
  Wire& wire(int from, int to, int track);
  void run(const Wire& wire);
  void run_rendezvous(const Wire& wire, Name name, const Stream& stream) const;
  void run_pipelined(const Wire& wire, Name name, std::span<const Stream> streams) const;
  std::size_t streams_of_wire() const {
    return kind_ == Wires::kBuffered ? 3 : kind_ == Wires::kPipelined ? kLanes : 1;
  }
  void run_buffered(const Wire& wire, Name name, std::span<const Stream> streams);
  Range word(std::uint64_t index) const { return words_.slice(index * 4, 4); }
  std::uint64_t shared_word(int rank, std::uint64_t index) const;

  std::vector<Device> devices_;
  const Wires kind_;
  const int tracks_each_;
  Picos sight_ = 0;
  std::vector<std::pair<Scene, int>> scenes_;
  std::vector<Track> tracks_;
  std::map<std::tuple<int, int, int>, Wire> wires_;  // by track and ranks
  Buffer words_;
  std::vector<Buffer> buffers_, staging_;  // of calls; of ranks, through shared memory
  std::vector<Stream> wire_streams_;
};

}  // namespace slip
