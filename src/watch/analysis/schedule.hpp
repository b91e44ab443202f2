// The order in which a trace's nodes can be gone through so that everything comes after all that held it up: those that
// it had to follow, and the op that kept its engine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "watch/race/starts.hpp"

namespace slip {

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
