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

namespace slip {

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

struct StartTable {
  std::vector<StartReason> starts;  // by span
  std::vector<StartFacts> facts;    // by span
  std::vector<Picos> node_end;      // by node of the graph: when it and all nodes that it follows had ended
};

StartTable find_starts(const OpGraph& graph, std::span<const TraceSpan> spans, std::span<const EngineUse> engines);

// --- An order of the nodes in which each comes after everything that delayed it ---

// Delays by engines, which the graph does not contain.
struct Holders {
  std::vector<std::uint32_t> engine;  // by span: the op before it on its engine, or kNoSpan
};

// On an engine that never ran two ops at once, each op waits for the previous one. On other engines, only the ops that
// waited in the trace do.
Holders find_holders(std::span<const EngineUse> engines, const StartTable& table);

// Sorts the nodes by time: ops by their start, waits by the end of the work that they wait for.
std::vector<std::uint32_t> time_order(const OpGraph& graph, std::span<const TraceSpan> spans, const StartTable& table);

// How the submission of an op follows from the earlier calls of its host thread. Devices may have different clocks. If
// an event seems later than the submission, its time is from another clock, and it is left out.
struct HostGap {
  std::uint32_t before = kNoNode;  // the previous submission of the thread
  std::uint32_t sync = kNoNode;    // the last wait of the thread
  Picos gap = 0;                   // host time from the later of both to this submission
};
HostGap host_gap(const OpGraph& graph, std::span<const TraceSpan> spans, const StartTable& table, std::uint32_t node);

}  // namespace slip
