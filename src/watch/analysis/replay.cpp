// Replays a recorded run without some of its waits, or with other durations.
#include <algorithm>

#include "watch/analysis/starts.hpp"

namespace slip::watch {
namespace {

// One simulated run, which visits the nodes by time.
class Rerun {
 public:
  explicit Rerun(const RunModel& run)
      : run_(run),
        end_(run.node_end),  // nodes of one instant may be visited too late; until then their recorded end is used
        queued_(run.graph.nodes.size(), kBeforeEverything) {}

  Picos length(const std::vector<bool>& left_out, const std::vector<Picos>& longer) {
    Picos first = 0, last = 0;
    bool any = false;
    for (const std::uint32_t n : run_.order) {
      const OpNode& node = run_.graph.nodes[n];
      if (node.kind != NodeKind::kOp) {
        const bool kept = node.record >= left_out.size() || !left_out[node.record];
        end_[n] = std::max(end_of(node.prev), kept ? end_of(node.other) : kBeforeEverything);
        continue;
      }
      const TraceSpan& span = run_.spans[node.span];
      if (!span.run) {
        end_[n] = end_of(node.prev);
        continue;
      }
      const Picos start = start_of(n);
      end_[n] = start + (span.ended - span.started);
      if (node.span < longer.size()) end_[n] += longer[node.span];
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
    const OpNode& node = run_.graph.nodes[n];
    const TraceSpan& span = run_.spans[node.span];
    const Picos dependency = end_of(node.prev);
    if (!span.submit) return dependency;
    return std::max(dependency, submission_of(n) + (run_.facts[node.span].host - span.queued));
  }

  Picos start_of(std::uint32_t n) {
    const std::uint32_t index = run_.graph.nodes[n].span;
    const StartFacts& facts = run_.facts[index];
    Picos reason = ready_of(n);
    if (facts.ahead != kNoSpan) reason = std::max(reason, ready_of(run_.graph.node_of[facts.ahead]));
    if (run_.engine_before[index] != kNoSpan)
      reason = std::max(reason, end_[run_.graph.node_of[run_.engine_before[index]]]);
    if (reason == kBeforeEverything) return run_.spans[index].started;
    return reason + (run_.spans[index].started - facts.reason);
  }

  // A thread submits after its previous submission and after its waits, and takes the recorded host time in between.
  Picos submission_of(std::uint32_t n) {
    for (; n != kNoNode && queued_[n] == kBeforeEverything; n = run_.graph.nodes[n].before) chain_.push_back(n);
    Picos at = n == kNoNode ? kBeforeEverything : queued_[n];
    for (; !chain_.empty(); chain_.pop_back()) {
      const std::uint32_t op = chain_.back();
      const HostGap gap = run_.host_gap(op);
      if (gap.before == kNoNode) at = kBeforeEverything;
      if (gap.sync != kNoNode) at = std::max(at, end_[gap.sync]);
      at = at == kBeforeEverything ? run_.spans[run_.graph.nodes[op].span].queued : at + gap.gap;
      queued_[op] = at;
    }
    return at;
  }

  const RunModel& run_;
  std::vector<Picos> end_;
  std::vector<Picos> queued_;  // submission times by node; kBeforeEverything: not computed yet
  std::vector<std::uint32_t> chain_;
};

}  // namespace

Picos replayed_length(const RunModel& run, const std::vector<bool>& left_out, const std::vector<Picos>& longer) {
  return Rerun(run).length(left_out, longer);
}

}  // namespace slip::watch
