// Replay: computes how long a recorded run would have been without some of its waits, or with other durations. The
// search for superfluous waits uses it.
#pragma once

#include <span>
#include <vector>

#include "watch/analysis/starts.hpp"

namespace slip::watch {

struct ReplayChange {
  // By index of the trace's records: waits (kEventWait, kBarrier, kSync, kQuery) to leave out.
  std::vector<bool> left_out = {};
  // By span: how much longer the op takes; negative: shorter.
  std::vector<Picos> longer = {};
};

// All other durations, latencies and host times between calls stay as recorded. An op starts when it is submitted, its
// remaining predecessors have ended, and the previous op on its engine, in the recorded order, has ended. A shared
// engine delays only the ops that it delayed in the trace, so the real gain may be smaller. Without changes the result
// is the recorded length, exact to the picosecond.
class Replay {
 public:
  Replay(const TraceData& trace, std::span<const TraceSpan> spans) : run_(trace, spans) {}  // see RunModel

  // Time from the first start to the last end. Records and spans beyond the end of a list are not changed.
  Picos length(const ReplayChange& change = {}) const;
  // The longest latency, from the reason of a start to the start. The replay keeps latencies without explaining them.
  Picos max_latency() const;

 private:
  RunModel run_;
};

}  // namespace slip::watch
