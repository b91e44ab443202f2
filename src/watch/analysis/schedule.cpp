#include "watch/analysis/schedule.hpp"

#include <algorithm>

#include "watch/trace/time_order.hpp"

namespace slip {

Holders find_holders(std::span<const EngineUse> engines, const StartTable& table) {
  Holders result;
  result.engine.resize(table.starts.size(), kNoSpan);
  for (const EngineUse& use : engines) {
    for (std::size_t i = 0; i < use.ops.size(); ++i) {
      const std::uint32_t op = use.ops[i];
      if (table.facts[op].room_after != kNoSpan) result.engine[op] = table.facts[op].room_after;
      else if (use.serial && use.engine != Engine::kNone && i > 0) result.engine[op] = use.ops[i - 1];
    }
  }
  return result;
}

std::vector<std::uint32_t> time_order(const OpGraph& graph, std::span<const TraceSpan> spans, const StartTable& table) {
  std::vector<TimeKey> keys(graph.nodes.size());
  for (std::uint32_t n = 0; n < keys.size(); ++n) {
    const OpNode& node = graph.nodes[n];
    Picos at = table.node_end[n];
    if (node.kind == NodeKind::kOp && spans[node.span].run) at = spans[node.span].started;
    // Clocks may disagree by a little; the graph does not.
    if (node.prev != kNoNode) at = std::max(at, keys[node.prev].at);
    if (node.other != kNoNode) at = std::max(at, keys[node.other].at);
    keys[n] = {at, n};
  }
  sort_by_time(keys);  // stable: of equals the one that the graph has first
  std::vector<std::uint32_t> result(keys.size());
  std::transform(keys.begin(), keys.end(), result.begin(), [](const TimeKey& key) { return key.index; });
  return result;
}

HostGap host_gap(const OpGraph& graph, std::span<const TraceSpan> spans, const StartTable& table, std::uint32_t node) {
  const OpNode& op = graph.nodes[node];
  const Picos queued = spans[op.span].queued;
  HostGap result;
  Picos since = kNever;
  if (op.before != kNoNode && spans[graph.nodes[op.before].span].queued <= queued) {
    result.before = op.before;
    since = spans[graph.nodes[op.before].span].queued;
  }
  if (op.other != kNoNode && table.node_end[op.other] <= queued) {
    result.sync = op.other;
    since = std::max(since, table.node_end[op.other]);
  }
  result.gap = since == kNever ? 0 : queued - since;
  return result;
}

}  // namespace slip
