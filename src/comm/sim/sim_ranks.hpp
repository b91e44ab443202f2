// SimRanks: the ranks of a communicator on sim devices, all in one process and of one world.
//
// A call is the same run as on the cpu device (CallRun), which moves the bytes, compares what the ranks ask for, and
// knows deadlines; it goes on when the world does, without a thread that waits. In virtual time a rank comes when its
// stream does. When all have come the bytes are there at once, as functions of sim ops run when their op starts, and
// from then on the call takes what its programs take on the wires (SimWires). So bits are those of the cpu device with
// the same options, whatever algorithm the model chooses for the links.
//
// Who drives the world is the only one to use it, once all ranks have joined.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "comm/host/call_run.hpp"
#include "comm/sim/sim_wires.hpp"

namespace slip {

class SimRanks;

// What a call is to virtual time.
struct SimCall {
  struct Letter {
    bool out = true;
    int rank = 0;  // the other one
    Range range;   // empty: no bytes
  };
  Call call;
  RankBuffers memory;
  std::vector<Letter> letters;  // kMessage
};

// A call of one rank under way.
class SimRun final : public Exchange {
 public:
  SimRun(SimRanks& ranks, CallContext& calls, CallRun& run)
      : ranks_(ranks), calls_(calls), run_(run), rank_(calls.rank) {}
  // After the run's own. `turn`: as there.
  void prepare(std::uint64_t turn, SimCall call);

  bool advance(By thread) noexcept override;
  bool can_advance() noexcept override;
  bool moves() noexcept override { return begun_ || failed(); }
  std::int64_t began_ns() const noexcept override { return 0; }
  void finish(const Failure* cause) override;

 private:
  friend class SimRanks;
  bool is_message() const { return call_.call.kind == Collective::kMessage; }
  bool failed() const { return trouble_.has_value() || (moved_ && run_.failed()); }
  bool over() const;
  bool concerns(int rank) const;
  void look_for_trouble();

  struct Way {  // of a letter that moves
    int from, to;
    std::uint64_t number;
  };
  SimRanks& ranks_;
  CallContext& calls_;
  CallRun& run_;
  const int rank_;
  std::uint64_t turn_ = 0;
  SimCall call_;
  bool come_ = false;
  bool moved_ = false;         // its bytes are there, or it failed
  bool begun_ = false;         // in virtual time: the others are there
  std::size_t unmatched_ = 0;  // of its letters
  std::vector<Way> ways_;
  std::int64_t deadline_ns_ = 0;  // by which the others must come, when its bytes are there before; 0: not yet
  std::optional<Error> trouble_;  // of virtual time itself
};

class SimRanks {
 public:
  // How the model chooses.
  struct Manner {
    TuningInputs tuning;
    std::vector<CommGraph> graphs;
    Algorithm algorithm = Algorithm::kAuto;
    bool rank_order = false;
  };
  // All ranks call it, and get the same. Null if they are not in virtual time; throws on all of them if not all are in
  // the same. Measures the links, in virtual time.
  static std::shared_ptr<SimRanks> meet(Bootstrap& bootstrap, const Device& device, Manner manner, Here here);

  explicit SimRanks(Manner manner);

 private:
  friend class SimRun;
  struct Seat {
    std::optional<Device> device;
    std::uint64_t turn = 1;  // of the call that may come
    SimRun* here = nullptr;
  };
  using Letters = std::deque<std::pair<SimRun*, Range>>;
  void begin();
  Seat& seat(int rank) { return seats_[static_cast<std::size_t>(rank)]; }
  void come(SimRun& run);
  void leave(SimRun& run);
  bool move();  // the bytes of those that are here, as far as they go; false: nothing moved
  void try_begin(SimRun& run);
  void begin_collective();
  bool ask_for_the_same();  // false: they do not, and all calls have failed
  void post_letters(SimRun& run);
  void match(int from, int to);
  ScheduleChoice choice_of(const Call& call);

  Manner manner_;
  std::vector<Seat> seats_;
  std::optional<SimWires> wires_;
  std::map<std::pair<int, int>, Letters> out_, in_;  // by ranks from and to: not matched yet
  std::set<std::string> explained_;                  // SLIP_DEBUG=tune: each choice once
};

}  // namespace slip
