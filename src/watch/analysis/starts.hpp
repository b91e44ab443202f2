// Finds out why the ops of a trace started when they did, and the order in which time-based analyses visit them. Used
// by analyse() and by Replay.
//
// An op starts when four conditions are met: the host has submitted it; the ops it depends on have ended; it is at the
// front of its hardware queue; its engine has capacity. The last of these is the reason of its start; the time from
// then to the start is its latency.
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

}  // namespace slip::watch
