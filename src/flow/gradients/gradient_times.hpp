// The times of a step of gradients. GradientClock records them on the device. Pure functions compute the results: when
// each gradient is needed, how long streams stalled for communication, and the report of the step. Those functions also
// take simulated times.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "slip/event.hpp"
#include "slip/gradient_report.hpp"
#include "slip/op.hpp"
#include "slip/stream.hpp"

namespace slip::flow {

// A recorded step, in picoseconds since the arrival of its first gradient. The lists are empty if nothing was recorded.
struct GradientTimes {
  static constexpr std::uint32_t kAll = ~std::uint32_t{0};
  struct WaitTimes {
    std::uint32_t parameter = 0;  // kAll: all parameters, as clip_norm() waits for
    std::uint32_t call = 0;       // the call whose end it waits for
    std::uint64_t stream = 0;
    Picos reached = 0, left = 0;
  };
  std::vector<Picos> arrivals;         // by parameter
  std::vector<std::uint64_t> sources;  // streams that wrote the gradients, by parameter
  std::vector<Picos> starts, ends;     // by call
  std::vector<WaitTimes> waits;        // in the order issued
  Picos next_step = 0;                 // arrival of the next recorded step's first gradient; 0: unknown
  std::uint64_t step = 0, plan = 0;    // the numbers that begin_step() got
};

// GradientClock: records the times of a step with timed events. It records when gradients arrive, when calls start and
// end, and when streams reach a wait for a gradient and continue after it. Two sets of events alternate from one
// recorded step to the next, so that one step can be read while the next one is recorded. The events are reused:
// nothing is allocated once both sets were used. One thread at a time.
class GradientClock {
 public:
  explicit GradientClock(std::size_t parameters) : parameters_(parameters) {}

  // Between steps: creates the events for steps of `calls` calls. Recording such a step then allocates nothing, unless
  // the program waits more than once for a parameter.
  void prepare(std::size_t calls, StreamRef stream, Here here);

  // Begins a step, of at most `calls` calls. The times of the step get the caller's number of the step and of
  // its plan. The clock's own count differs: it includes steps that are captured or not reduced.
  void begin_step(bool recorded, std::size_t calls, std::uint64_t step = 0, std::uint64_t plan = 0);
  bool records() const { return recording_; }

  void arrived(std::uint32_t parameter, StreamRef stream, Here here);
  void started(std::size_t call, StreamRef stream, Here here) { stream.record(sets_[last_set_].starts[call], here); }
  void ended(std::size_t call, StreamRef stream, Here here) { stream.record(sets_[last_set_].ends[call], here); }
  // The stream reaches a wait for a parameter (GradientTimes::kAll: for all of them), that is, for the end of `call`.
  void reached(std::uint32_t parameter, std::uint32_t call, StreamRef stream, Here here);
  void left(StreamRef stream, Here here) {  // the stream continues after the wait that was reached last
    Recording& set = sets_[last_set_];
    stream.record(set.wait_list[set.waits - 1].left, here);
  }

  // Fills `into` with the times of the current step (ago = 0), of the previous step (1) or of an earlier one. Returns
  // false if the step was not recorded completely, or if its events are reused already. wait_for() waits until the step
  // is done; look() returns false if it is not done.
  bool wait_for(std::uint64_t ago, GradientTimes& into) const;
  bool look(std::uint64_t ago, GradientTimes& into) const;
  // How many steps ago the last recorded step was, and the recorded step before it.
  std::uint64_t last_recorded() const { return step_ - sets_[last_set_].begun; }
  std::uint64_t recorded_before() const { return step_ - sets_[1 - last_set_].begun; }

 private:
  struct RecordedWait {
    std::uint32_t parameter = 0, call = 0;
    std::uint64_t stream = 0;
    TimedEvent reached, left;
  };
  struct Recording {
    std::uint64_t begun = 0;           // the clock's count of steps when it began; 0: nothing is recorded
    std::uint64_t step = 0, plan = 0;  // the numbers that begin_step() got
    std::vector<TimedEvent> arrivals, starts, ends;
    std::vector<std::uint64_t> sources;  // streams, by parameter
    std::size_t arrived = 0;             // number of gradients that have arrived
    std::uint32_t first = 0;             // the parameter whose ready() was called first
    std::size_t calls = 0, waits = 0;
    std::vector<RecordedWait> wait_list;
  };
  void make_room(Recording& set, std::size_t calls) const {
    set.arrivals.resize(parameters_);
    set.sources.resize(parameters_);
    if (set.starts.size() < calls) set.starts.resize(calls), set.ends.resize(calls);
  }
  const Recording* recording(std::uint64_t ago) const;
  void fill(const Recording& of, GradientTimes& into) const;
  static bool done(const Recording& of);

  const std::size_t parameters_;
  std::uint64_t step_ = 0;  // number of steps that have begun
  bool recording_ = false;
  std::size_t last_set_ = 0;  // index of the last recorded step in sets_
  Recording sets_[2];
};

// When each gradient is needed, and how long streams stalled for communication.
//
// A stream stalls from the time when it reaches a wait until the call that it waits for has ended. The time from then
// until it continues counts as device time: it would pass without communication, too. While the backward pass still
// runs in another stream a stall costs nothing. A stream that still has gradients to write belongs to the backward
// pass.
struct StepAnalysis {
  struct StallTime {
    Picos from = 0, time = 0;
  };
  struct Chain {  // the waits of one stream, one after the other
    std::uint64_t stream = 0;
    Picos last_gradient = 0;  // arrival of the last gradient that the stream writes; -1: it writes none
    Picos left = 0;           // when it continued after its last wait
    Picos due = 0;            // when it would have reached that wait without stalls
    Picos stalled = 0;        // sum of its stalls
  };
  // By parameter: when its first use would begin if nothing were late, not before the end of the backward pass.
  // Parameters that no stream waited for are needed last.
  std::vector<Picos> needed;
  std::vector<StallTime> stalls;  // by wait
  Picos backward_end = 0;
  Picos exposed = 0;                // stall time of the stream that stalled longest
  std::uint64_t exposed_in = 0;     // id of that stream
  std::vector<Chain> chains;        // by stream
  std::vector<std::uint8_t> known;  // by parameter: some stream waited for it
};
// Allocates nothing if `into` was used for as many parameters before.
void analyze_step(const GradientTimes& times, StepAnalysis& into);

// Gives the calls that reduce a parameter.
using CallsOf = std::function<std::span<const std::uint32_t>(std::uint32_t parameter)>;

// The report of a recorded step; the names of the gradients are left empty.
GradientReport report_of(const GradientTimes& times, const CallsOf& calls_of, const BucketPlan& plan,
                         const ReduceCost& cost);

}  // namespace slip::flow
