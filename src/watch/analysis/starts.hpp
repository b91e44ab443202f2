// Why the ops of a trace started when they did, and the order in which time-based analyses visit them. Used by
// analyse() and by Replay.
//
// An op starts when the host has submitted it, the ops it depends on have ended, it is at the front of its hardware
// queue, and its engine has capacity. The last of these is the reason of its start; the time from then to the start is
// its latency.
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
  Picos host = kBeforeEverything;        // submitted, plus the minimum time that a call takes
  Picos dependency = kBeforeEverything;  // the last op it depends on ended
  Picos queue = kBeforeEverything;       // it reached the front of its queue; kBeforeEverything: no op delayed it
  Picos reason = 0;                      // the last of all these
  std::uint32_t dependency_on = kNoSpan;
  std::uint32_t host_after = kNoSpan;    // the op that the host had waited for before it submitted this one
  std::uint32_t engine_after = kNoSpan;  // the op that left the engine, if this one was ready before
  std::uint32_t ahead = kNoSpan;         // the op ahead in the queue
};

struct StartTable {
  std::vector<StartReason> starts;  // by span
  std::vector<StartFacts> facts;    // by span
  std::vector<Picos> node_end;      // by node of the graph: when it and all nodes that it follows had ended
};

StartTable find_starts(const OpGraph& graph, std::span<const TraceSpan> spans, std::span<const EngineUse> engines);

// --- An order of the nodes in which each comes after everything that delayed it ---

// Delays that the graph does not show.
struct Holders {
  std::vector<std::uint32_t> engine;  // by span: the op before it on its engine, or kNoSpan
};

// On an engine that never ran two ops at once, each op comes after the one before it. On others, only ops that waited
// do.
Holders find_holders(std::span<const EngineUse> engines, const StartTable& table);

// Nodes by time: ops by their start, waits by the end of what they wait for.
std::vector<std::uint32_t> time_order(const OpGraph& graph, std::span<const TraceSpan> spans, const StartTable& table);

// How the submission of an op follows from what its host thread did before. Devices may have different clocks: an event
// that seems later than the submission is on another clock and is left out.
struct HostGap {
  std::uint32_t before = kNoNode;  // the previous submission of the thread
  std::uint32_t sync = kNoNode;    // the last wait of the thread
  Picos gap = 0;                   // host time from the later of both to this submission
};
HostGap host_gap(const OpGraph& graph, std::span<const TraceSpan> spans, const StartTable& table, std::uint32_t node);

}  // namespace slip
