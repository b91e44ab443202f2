// SimRanks: the ranks of a communicator on sim devices. All are in one process and in one sim world.
//
// A call is the same CallRun as on the cpu device: it moves the bytes, compares the calls of the ranks and enforces
// deadlines. The thread that drives the sim world advances it; no thread waits for it. In virtual time a rank joins a
// call when its stream reaches the call. When all ranks have joined, the bytes move at once, and the call then takes
// the virtual time that its programs take on the links (SimWires). So the results have the same bits as on the cpu
// device with the same options, whatever algorithm the model chooses for the simulated links.
//
// Once all ranks have joined the communicator, only the thread that drives the sim world uses it.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/sync.hpp"
#include "comm/host/call_run.hpp"
#include "comm/plan/message_program.hpp"
#include "comm/plan/tuning.hpp"
#include "comm/sim/program_player.hpp"
#include "slip/device.hpp"

namespace slip::comm {

// Gives each call its virtual time: it plays the programs of all ranks (see ProgramPlayer) on the links of their
// devices. No byte moves here: CallRun moves the bytes. It opens all its streams with StreamSpec::wire. They live as
// long as the communicator.
//
// Only the thread that drives the sim world may call it; before that, the thread that creates it.
class SimWires final : private OpSink, base::NoCopy {
 public:
  // `devices`: by rank; all in one sim world.
  explicit SimWires(std::vector<Device> devices);
  ~SimWires();  // waits until nothing is under way

  int nranks() const { return static_cast<int>(devices_.size()); }

  // All ranks begin a collective now. `buffers`: by rank; only the device that holds each buffer matters.
  // REQUIRES: no collective is under way.
  void play(const Call& call, const ScheduleChoice& how, std::span<const CommGraph> graphs,
            std::span<const RankBuffers> buffers);
  bool played(int rank) const;  // whether the rank has done its part of the collective

  // Begins to move a message now; an empty range is a message without bytes. Returns its number on the wire, from 1.
  std::uint64_t carry(int from, int to, const Range& out, const Range& in) {
    return player_.carry(from, to, out.block ? out : scratch_of(from, 0), in.block ? in : scratch_of(to, 0));
  }
  // Whether the message and all before it on the wire have arrived.
  bool carried(int from, int to, std::uint64_t number) const { return player_.carried(from, to, number); }

  // Measures the link between ranks 0 and 1 in both directions at the same time. Takes virtual time.
  LinkRates measure();

 private:
  // Flags in host memory, which ops of the streams write and wait for.
  class Flags : base::NoCopy {
   public:
    explicit Flags(std::size_t count);
    ~Flags();
    Range range() const;
    std::uint32_t value() const;  // of the first

   private:
    std::unique_ptr<std::uint32_t[]> values_;
    runtime::Block* block_;
  };
  struct Track {  // of a rank and a channel
    StreamId stream = 0;
    std::unique_ptr<Flags> done;  // how many collectives its stream has done
    std::uint32_t played = 0;     // how many were issued
  };

  StreamId open_stream(int rank);
  StreamId open_wire_stream(int from, int, int) override { return open_stream(from); }
  Range add_flags(std::size_t count) override { return flags_.emplace_back(std::make_unique<Flags>(count))->range(); }
  Range add_buffer(int, int, std::uint64_t) override { return {}; }  // pipelined wires hold no bytes
  void write_flag(StreamId stream, const Range& flag, std::uint64_t value) override;
  void wait_flag(StreamId stream, const Range& flag, std::uint64_t value) override;
  void copy(StreamId stream, const Range& to, const Range& from) override;
  void launch(StreamId stream, const Kernel& kernel, const Operands& operands, const Cost& cost) override;

  void play(const Program& program, std::span<const RankBuffers> buffers, int rank, int channel);
  Range scratch_of(int rank, std::size_t bytes) const;

  std::vector<Device> devices_;
  std::vector<runtime::DeviceCore*> cores_;
  std::vector<runtime::Block*> scratch_;  // by rank: blocks without memory, which only name the device
  ProgramPlayer player_;
  std::map<std::pair<int, int>, Track> tracks_;  // by rank and channel
  std::vector<std::unique_ptr<Flags>> flags_;
  std::vector<runtime::StreamState*> streams_;  // by StreamId
  int channels_ = 0;                            // of the collective
};

class SimRanks;

// The parts of a call that determine its virtual time.
struct SimCall {
  struct Message {
    bool out = true;
    int rank = 0;  // the peer
    Range range;   // empty: no bytes
  };
  Call call;
  RankBuffers memory;
  std::vector<Message> messages;  // of Collective::kMessage
};

// A call of one rank in virtual time. It wraps the CallRun that moves the bytes.
class SimRun final : public runtime::Exchange {
 public:
  SimRun(SimRanks& ranks, CallContext& calls, CallRun& run)
      : ranks_(ranks), calls_(calls), run_(run), rank_(calls.rank) {}
  // Call it after CallRun::prepare(). `ticket`: the number of the call on this rank.
  void prepare(std::uint64_t ticket, SimCall call);

  bool advance(By thread) noexcept override;
  bool can_advance() noexcept override;
  bool moves() noexcept override { return begun_ || failed(); }
  std::int64_t began_ns() const noexcept override { return 0; }
  void finish(const runtime::Failure* cause) override;

 private:
  friend class SimRanks;
  bool is_message() const { return call_.call.kind == Collective::kMessage; }
  bool failed() const { return trouble_.has_value() || (moved_ && run_.failed()); }
  bool over() const;
  bool concerns(int rank) const;
  void check_peers();

  struct Transfer {  // a message under way: SimWires::carry() returned its number
    int from, to;
    std::uint64_t number;
  };
  SimRanks& ranks_;
  CallContext& calls_;
  CallRun& run_;
  const int rank_;
  std::uint64_t ticket_ = 0;
  SimCall call_;
  bool joined_ = false;
  bool moved_ = false;         // its bytes have moved, or it failed
  bool begun_ = false;         // in virtual time: all ranks that it needs have joined
  std::size_t unmatched_ = 0;  // its messages that the peer has not posted yet
  std::vector<Transfer> transfers_;
  std::int64_t deadline_ns_ = 0;  // until which the peers must join, if the bytes moved before they did; 0: not set
  std::optional<Error> trouble_;  // an error that this class or SimRanks found, not the CallRun
};

class SimRanks {
 public:
  // The inputs for the choice of schedules.
  struct Settings {
    TuningInputs tuning;
    std::vector<CommGraph> graphs;
    Algorithm algorithm = Algorithm::kAuto;
    bool rank_order = false;
  };
  // Collective: all ranks call it and get the same object, or null if no rank is in virtual time. Throws on all ranks
  // if they are not in the same sim world. Measures the links, in virtual time.
  static std::shared_ptr<SimRanks> meet(transport::Bootstrap& bootstrap, const Device& device, Settings settings,
                                        Here here);

  explicit SimRanks(Settings settings);

 private:
  friend class SimRun;
  struct RankSlot {
    std::optional<Device> device;
    std::uint64_t ticket = 1;  // the number of the call that may join next
    SimRun* here = nullptr;    // the call that this rank has joined
  };
  using PendingMessages = std::deque<std::pair<SimRun*, Range>>;
  void begin();
  RankSlot& slot(int rank) { return slots_[static_cast<std::size_t>(rank)]; }
  void join(SimRun& run) {
    run.joined_ = true;
    slot(run.rank_).here = &run;
    if (run.is_message()) post_messages(run);
  }
  void leave(SimRun& run);
  bool move();  // advances the CallRuns of all ranks that have joined a call; false: none could advance
  void try_begin(SimRun& run);
  void begin_collective();
  bool ask_for_the_same();  // false: the ranks have joined different calls, and all of these calls have failed
  void post_messages(SimRun& run);
  void match(int from, int to);
  ScheduleChoice choice_of(const Call& call);

  Settings settings_;
  std::atomic<int> order_ = 0;  // see meet()
  std::vector<RankSlot> slots_;
  std::optional<SimWires> wires_;
  std::map<std::pair<int, int>, PendingMessages> out_, in_;  // by sender and receiver: not matched yet
  std::set<std::string> explained_;                          // SLIP_DEBUG=tune: choices that were logged
};

}  // namespace slip::comm
