// GradientClock: records the times of a step on the device with timed events. It records when gradients arrive, when
// calls start and end, and when streams reach a wait for a gradient and continue after it. Two sets of events
// alternate, so that one step can be read while the next one is recorded. The events are reused: nothing is allocated
// once both sets were used. One thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "flow/gradients/gradient_report.hpp"
#include "slip/event.hpp"
#include "slip/stream.hpp"

namespace slip::flow {

class GradientClock {
 public:
  explicit GradientClock(std::size_t parameters) : parameters_(parameters) {}

  // Between steps: creates the events for steps of `calls` calls. Recording such a step then allocates nothing, unless
  // the program waits more than once for a parameter.
  void prepare(std::size_t calls, StreamRef stream, Here here);

  // Begins a step, of at most `calls` calls.
  void begin_step(bool recorded, std::size_t calls);
  bool records() const { return recording_; }

  void arrived(std::uint32_t parameter, StreamRef stream, Here here);
  void started(std::size_t call, StreamRef stream, Here here) { stream.record(sets_[step_ % 2].starts[call], here); }
  void ended(std::size_t call, StreamRef stream, Here here) { stream.record(sets_[step_ % 2].ends[call], here); }
  // The stream reaches a wait for a parameter (GradientTimes::kAll: for all of them), that is, for the end of `call`.
  void reached(std::uint32_t parameter, std::uint32_t call, StreamRef stream, Here here);
  void left(StreamRef stream, Here here) {  // the stream continues after the wait that was reached last
    Recording& set = sets_[step_ % 2];
    stream.record(set.wait_list[set.waits - 1].left, here);
  }

  // Fills `into` with the times of the current step (ago = 0) or of the previous step (1). Returns false if the step
  // was not recorded completely. wait_for() waits until the step is done; look() returns false if it is not done.
  bool wait_for(int ago, GradientTimes& into) const;
  bool look(int ago, GradientTimes& into) const;

 private:
  struct RecordedWait {
    std::uint32_t parameter = 0, call = 0;
    std::uint64_t stream = 0;
    TimedEvent reached, left;
  };
  struct Recording {
    std::uint64_t step = 0;  // 0: none
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
  const Recording* recording(int ago) const;
  void fill(const Recording& of, GradientTimes& into) const;
  static bool done(const Recording& of);

  const std::size_t parameters_;
  std::uint64_t step_ = 0;
  bool recording_ = false;
  Recording sets_[2];
};

}  // namespace slip::flow
