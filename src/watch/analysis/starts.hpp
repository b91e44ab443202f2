// Why ops started when they did.
//
// An op starts when the host has submitted it, what it follows has ended, it has come to the front of its hardware
// queue, and its engine has room. The last of these is the reason of its start, and the time from then to the start is
// its latency.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "watch/analysis/engine_use.hpp"
#include "watch/analysis/op_graph.hpp"

namespace slip {

// Before everything; far enough from the end of the numbers to be reckoned with.
inline constexpr Picos kNever = std::numeric_limits<Picos>::min() / 4;

// Of one span that ran.
struct StartFacts {
  Picos host = kNever;        // submitted, and the least time passed that ever lay between submission and start
  Picos dependency = kNever;  // what it follows had ended
  Picos queue = kNever;       // nothing was ahead in its queue; kNever: nothing held it there
  Picos reason = 0;           // the last of all
  std::uint32_t dependency_on = kNoSpan;
  std::uint32_t host_after = kNoSpan;  // what the host had waited for when it was late with this op
  std::uint32_t room_after = kNoSpan;  // who had kept the engine, if it was ready before
  std::uint32_t ahead = kNoSpan;       // who held it in the queue
};

struct StartTable {
  std::vector<Start> starts;      // by span
  std::vector<StartFacts> facts;  // by span
  std::vector<Picos> node_end;    // by node of the graph: when it and all that it follows had ended
};

StartTable find_starts(const OpGraph& graph, std::span<const TraceSpan> spans, std::span<const EngineUse> engines);

// --- The order in which everything comes after all that held it up: what it had to follow, and the op that kept its
// engine ---

// What else than the graph held a span up.
struct Holders {
  std::vector<std::uint32_t> engine;  // by span: the op that it came after on its engine, or kNoSpan
};

// On an engine that never ran two at once every op comes after the one before; on others those do that had to wait.
Holders find_holders(std::span<const EngineUse> engines, const StartTable& table);

// Nodes by start (ops) or by the end of what they wait for (waits).
std::vector<std::uint32_t> time_order(const OpGraph& graph, std::span<const TraceSpan> spans, const StartTable& table);

// How an op's submission followed from what its thread did before. Devices may have clocks of their own; what would
// have come later than the submission is of another clock, and left out.
struct HostGap {
  std::uint32_t before = kNoNode;  // the submission before
  std::uint32_t sync = kNoNode;    // the last wait
  Picos gap = 0;                   // what the host took from the later of both
};
HostGap host_gap(const OpGraph& graph, std::span<const TraceSpan> spans, const StartTable& table, std::uint32_t node);

}  // namespace slip
