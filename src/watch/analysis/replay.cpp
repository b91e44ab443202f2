#include "watch/analysis/replay.hpp"

#include <algorithm>

namespace slip {
namespace {

// One simulated run, which visits the nodes by time.
class Rerun {
 public:
  Rerun(const OpGraph& graph, std::span<const TraceSpan> spans, const StartTable& table, const Holders& holders)
      : graph_(graph),
        spans_(spans),
        table_(table),
        holders_(holders),
        end_(table.node_end),  // nodes of one instant may be visited too late; until then their recorded end is used
        queued_(graph.nodes.size(), kBeforeEverything) {}

  Picos length(std::span<const std::uint32_t> order, const ReplayChange& change) {
    Picos first = 0, last = 0;
    bool any = false;
    for (const std::uint32_t n : order) {
      const OpNode& node = graph_.nodes[n];
      if (node.kind != NodeKind::kOp) {
        const bool kept = node.record >= change.left_out.size() || !change.left_out[node.record];
        end_[n] = std::max(end_of(node.prev), kept ? end_of(node.other) : kBeforeEverything);
        continue;
      }
      const TraceSpan& span = spans_[node.span];
      if (!span.run) {
        end_[n] = end_of(node.prev);
        continue;
      }
      const Picos start = start_of(n);
      end_[n] = start + (span.ended - span.started);
      if (node.span < change.longer.size()) end_[n] += change.longer[node.span];
      first = any ? std::min(first, start) : start;
      last = any ? std::max(last, end_[n]) : end_[n];
      any = true;
    }
    return last - first;
  }

 private:
  Picos end_of(std::uint32_t node) const { return node == kNoNode ? kBeforeEverything : end_[node]; }
  // Returns when the op is submitted and its predecessors have ended.
  Picos ready_of(std::uint32_t n) {
    const OpNode& node = graph_.nodes[n];
    const TraceSpan& span = spans_[node.span];
    const Picos dependency = end_of(node.prev);
    if (!span.submit) return dependency;
    return std::max(dependency, submission_of(n) + (table_.facts[node.span].host - span.queued));
  }
  Picos start_of(std::uint32_t n);
  Picos submission_of(std::uint32_t n);

  const OpGraph& graph_;
  std::span<const TraceSpan> spans_;
  const StartTable& table_;
  const Holders& holders_;
  std::vector<Picos> end_;
  std::vector<Picos> queued_;  // submission times by node; kBeforeEverything: not computed yet
  std::vector<std::uint32_t> chain_;
};

Picos Rerun::start_of(std::uint32_t n) {
  const std::uint32_t index = graph_.nodes[n].span;
  const StartFacts& facts = table_.facts[index];
  Picos reason = ready_of(n);
  if (facts.ahead != kNoSpan) reason = std::max(reason, ready_of(graph_.node_of[facts.ahead]));
  if (holders_.engine[index] != kNoSpan) reason = std::max(reason, end_[graph_.node_of[holders_.engine[index]]]);
  if (reason == kBeforeEverything) return spans_[index].started;
  return reason + (spans_[index].started - facts.reason);
}

// A thread submits after its previous submission and after its waits, and takes the recorded host time in between.
Picos Rerun::submission_of(std::uint32_t n) {
  for (; n != kNoNode && queued_[n] == kBeforeEverything; n = graph_.nodes[n].before) chain_.push_back(n);
  Picos at = n == kNoNode ? kBeforeEverything : queued_[n];
  for (; !chain_.empty(); chain_.pop_back()) {
    const std::uint32_t op = chain_.back();
    const HostGap gap = host_gap(graph_, spans_, table_, op);
    if (gap.before == kNoNode) at = kBeforeEverything;
    if (gap.sync != kNoNode) at = std::max(at, end_[gap.sync]);
    at = at == kBeforeEverything ? spans_[graph_.nodes[op].span].queued : at + gap.gap;
    queued_[op] = at;
  }
  return at;
}

}  // namespace

Replay::Replay(const TraceData& trace, std::span<const TraceSpan> spans)
    : spans_(spans), graph_(op_graph(trace, spans)) {
  const std::vector<EngineUse> engines = engine_use(spans);
  table_ = find_starts(graph_, spans, engines);
  holders_ = find_holders(engines, table_);
  order_ = time_order(graph_, spans, table_);
}

Picos Replay::length(const ReplayChange& change) const {
  return Rerun(graph_, spans_, table_, holders_).length(order_, change);
}

Picos Replay::max_latency() const {
  Picos max = 0;
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    if (spans_[i].run) max = std::max(max, spans_[i].started - table_.facts[i].reason);
  }
  return max;
}

}  // namespace slip
