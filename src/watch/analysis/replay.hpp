// Replay: how long a recorded run would have been with some of its waits left out, or with other durations.
#pragma once

#include <span>
#include <vector>

#include "watch/analysis/starts.hpp"

namespace slip {

struct ReplayChange {
  // By index of the trace's records: waits (kEventWait, kBarrier, kSync, kQuery) that are not made.
  std::vector<bool> left_out = {};
  // By span: how much longer it takes; negative for less.
  std::vector<Picos> longer = {};
};

// Everything else keeps its duration, its latency, and the time that the host took between calls. An op starts when it
// is submitted, what it still follows has ended, and the op that had its engine before, in the recorded order, is done.
// An engine that was shared holds back only those that it held back in the trace, so a gain may be less in truth than
// here. With nothing left out the recorded length comes out, to the picosecond.
class Replay {
 public:
  Replay(const TraceData& trace, std::span<const TraceSpan> spans);  // of trace.spans(); both must outlive it

  // First start to last end. What lies beyond the end of a list is not changed.
  Picos length(const ReplayChange& change = {}) const;
  // The longest time from the reason of a start to the start: what the replay takes over without explaining it.
  Picos max_latency() const;

 private:
  std::span<const TraceSpan> spans_;
  OpGraph graph_;
  StartTable table_;
  Holders holders_;
  std::vector<std::uint32_t> order_;
};

}  // namespace slip
