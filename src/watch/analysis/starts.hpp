// Finds out why the ops of a trace started when they did, and the order in which time-based analyses visit them. Used
// by analyse() and by the search for superfluous waits.
//
// An op starts when four conditions are met. The host has submitted it; the ops that it depends on have ended; it is at
// the front of its hardware queue; its engine has capacity. The condition that is met last is the reason of its start,
// and the time from then to the start is its latency.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "watch/analysis/engine_use.hpp"
#include "watch/analysis/op_graph.hpp"

namespace slip::watch {

// A time before all others, far enough from the limit that adding to it cannot overflow.
inline constexpr Picos kBeforeEverything = std::numeric_limits<Picos>::min() / 4;

// When each condition for the start of a span was met.
struct StartFacts {
  Picos host = kBeforeEverything;         // when it was submitted, plus the minimum duration of the call
  Picos dependency = kBeforeEverything;   // when the last op that it depends on ended
  Picos queue = kBeforeEverything;        // when it reached the front of its queue; kBeforeEverything: no op delayed it
  Picos reason = 0;                       // the last of all these
  std::uint32_t dependency_on = kNoSpan;  // the op that ended at `dependency`
  std::uint32_t host_after = kNoSpan;     // the op that the host had waited for before it submitted this one
  std::uint32_t engine_after = kNoSpan;   // the op that left the engine, if this op was ready earlier
  std::uint32_t ahead = kNoSpan;          // the op ahead in the queue
};

// How the submission of an op follows from the earlier calls of its host thread. Devices may have different clocks. If
// an event seems later than the submission, its time is from another clock, and it is left out.
struct HostGap {
  std::uint32_t before = kNoNode;  // the previous submission of the thread
  std::uint32_t sync = kNoNode;    // the last wait of the thread
  Picos gap = 0;                   // host time from the later of both to this submission
};

// A run, with the reason of each start.
struct RunModel {
  RunModel(const TraceData& trace, std::span<const TraceSpan> all);  // `all` is trace.spans(), which must outlive it
  HostGap host_gap(std::uint32_t node) const;

  std::span<const TraceSpan> spans;
  OpGraph graph;
  std::vector<EngineUse> engines;
  std::vector<StartReason> starts;           // by span
  std::vector<StartFacts> facts;             // by span
  std::vector<Picos> node_end;               // by node: when it and all nodes that it follows had ended
  std::vector<std::uint32_t> engine_before;  // by span: the op before it that delays it on its engine, or kNoSpan
  std::vector<std::uint32_t> order;          // the nodes by time: each comes after everything that delayed it
};

// Computes how long the run would have been, from the first start to the last end, without some of its waits or with
// other durations. `left_out`, by index of the trace's records: waits (kEventWait, kBarrier, kSync, kQuery) to leave
// out. `longer`, by span: how much longer the op takes; negative: shorter. An entry beyond the end of a list changes
// nothing.
//
// All other durations, latencies and host times between calls stay as recorded. An op starts when it is submitted, its
// remaining predecessors have ended, and the previous op on its engine, in the recorded order, has ended. A shared
// engine delays only the ops that it delayed in the trace, so the real gain may be smaller. Without changes the result
// is the recorded length, exact to the picosecond.
Picos replayed_length(const RunModel& run, const std::vector<bool>& left_out = {},
                      const std::vector<Picos>& longer = {});

}  // namespace slip::watch
