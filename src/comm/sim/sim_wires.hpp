// SimWires: what the calls of ranks on sim devices take. The programs of all ranks are played in virtual time, on the
// links of their devices, without a byte that moves: that is the business of CallRun.
//
// As in a Rehearsal each rank is a stream, and each way from one rank to another is a wire, a few streams on which as
// many messages are under way at the same time. To begin a message is to write a word that counts, a wire waits for
// both sides, copies, and writes the word that counts what is done. All streams are wires as the backend knows them
// (StreamSpec::wire), and live as long as the communicator.
//
// Only who drives the world uses it, and, before that, who makes it.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "comm/plan/message_plan.hpp"
#include "comm/plan/tuning.hpp"
#include "slip/device.hpp"

namespace slip {

class SimWires {
 public:
  // By rank; all of one world.
  explicit SimWires(std::vector<Device> devices);
  ~SimWires();  // waits until nothing is under way
  SimWires(const SimWires&) = delete;
  SimWires& operator=(const SimWires&) = delete;

  int nranks() const { return static_cast<int>(devices_.size()); }

  // Where a rank's bytes lie; only whose memory it is counts.
  struct Memory {
    Range input, output;
    bool in_place = false;
  };
  // All ranks begin a collective now, of which none is under way. `memory`: by rank.
  void play(const Call& call, const Choice& how, std::span<const Formation> formations, std::span<const Memory> memory);
  bool played(int rank) const;  // it has done its part of it

  // A message begins to move now. Returns its number on its way, from 1.
  std::uint64_t carry(int from, int to, Range out, Range in);
  bool carried(int from, int to, std::uint64_t number) const;  // and all before it

  // Of the way between ranks 0 and 1, both directions at the same time; takes virtual time.
  LinkRates measure();

 private:
  // Words that streams count in.
  class Words {
   public:
    explicit Words(std::size_t count);
    ~Words();
    Words(const Words&) = delete;
    Words& operator=(const Words&) = delete;
    Range at(std::size_t index) const;
    std::uint32_t value(std::size_t index) const;

   private:
    std::unique_ptr<std::uint32_t[]> values_;
    Block* block_;
  };
  struct Track {  // of a rank and a channel
    StreamState* stream = nullptr;
    std::unique_ptr<Words> done;  // how many collectives
    std::uint32_t played = 0;
  };
  static constexpr std::size_t kLanes = 4;  // messages under way on a wire
  enum Word : std::size_t { kSendBegun, kReceiveBegun, kLanesDone, kWords = kLanesDone + kLanes };
  struct Wire {
    std::array<StreamState*, kLanes> lanes{};
    std::unique_ptr<Words> words;
    std::uint64_t carried = 0;   // messages that were given to the lanes
    std::vector<Range> out, in;  // of those that were not
    std::uint64_t sends() const { return carried + out.size(); }
    std::uint64_t receives() const { return carried + in.size(); }
  };
  struct Part {  // a rank's program of a channel
    int rank = 0, channel = 0, channels = 1;
    const Memory* memory = nullptr;
    const Program* program = nullptr;
  };

  StreamState* open(int rank);
  Track& track(int rank, int channel);
  Wire& wire(int from, int to, int channel);
  void perform(const Part& part);
  void work(const Part& part, const Primitive& step, StreamState& stream);
  void message(const Part& part, const Primitive& step, StreamState& stream);
  void await_done(const Wire& wire, std::uint64_t count, StreamState& stream) const;
  void move(Wire& wire, bool both_begin);
  Range range(const Part& part, const Place& place, std::uint64_t bytes) const;

  std::vector<Device> devices_;
  std::vector<DeviceCore*> cores_;
  std::vector<Block*> scratch_;  // by rank: memory that is only a name
  std::map<std::pair<int, int>, Track> tracks_;
  std::map<std::tuple<int, int, int>, Wire> wires_;  // by channel and ranks
  std::vector<StreamState*> streams_;
  int channels_ = 0;  // of the collective
};

}  // namespace slip
