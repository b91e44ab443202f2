#include "slip/analysis.hpp"

#include <algorithm>
#include <limits>

#include "watch/analysis/starts.hpp"

namespace slip {
namespace {

struct RunExtent {
  Picos begin = 0, end = 0;
  std::uint32_t last = kNoSpan;  // the op that ended last
};

RunExtent extent_of(std::span<const TraceSpan> spans) {
  RunExtent result;
  for (std::uint32_t i = 0; i < spans.size(); ++i) {
    if (!spans[i].run || spans[i].annotation) continue;
    const bool first = result.last == kNoSpan;
    result.begin = first ? spans[i].started : std::min(result.begin, spans[i].started);
    if (first || spans[i].ended > result.end) result.end = spans[i].ended, result.last = i;
  }
  return result;
}

// Walks back from the op that ended last to the op that delayed each op. If a queue delayed the op, the walk continues
// with the op that the op ahead in the queue waited for.
std::vector<std::uint32_t> critical_path(std::span<const TraceSpan> spans, const StartTable& table,
                                         const std::vector<std::uint32_t>& rank, std::uint32_t last) {
  std::vector<std::uint32_t> path;
  for (std::uint32_t span = last; span != kNoSpan;) {
    path.push_back(span);
    const StartReason& start = table.starts[span];
    std::uint32_t after = start.after;
    if (after != kNoSpan && table.facts[span].reason == table.facts[span].queue) {
      const StartFacts& ahead = table.facts[after];
      after = ahead.dependency >= ahead.host ? ahead.dependency_on : ahead.host_after;
    }
    // Only go back in time: a damaged file may contain a cycle, and the walk must end.
    if (after == kNoSpan || !spans[after].run || rank[after] >= rank[span]) break;
    span = after;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

// Splits the idle time of an engine before an op among the causes of the delay, one after the other.
class IdleSplit {
 public:
  IdleSplit(EngineTime& time, Picos begin, Picos end) : time_(time), at_(begin), end_(end) {}
  void until(Picos when, Cause cause) {
    when = std::min(when, end_);
    if (when <= at_) return;
    time_.idle[static_cast<std::size_t>(cause)] += when - at_;
    at_ = when;
  }

 private:
  EngineTime& time_;
  Picos at_, end_;
};

EngineTime time_of_engine(const EngineUse& use, std::span<const TraceSpan> spans, StartTable& table,
                          const RunExtent& extent) {
  EngineTime result;
  result.device = use.device;
  result.engine = use.engine;
  result.ops = use.ops.size();
  result.sum = use.sum;
  Picos free = extent.begin;
  for (const Interval& interval : use.busy) {
    const StartFacts& facts = table.facts[interval.first];
    StartReason& start = table.starts[interval.first];
    start.idle = interval.begin - free;
    IdleSplit split(result, free, interval.begin);
    split.until(facts.host, Cause::kHost);
    split.until(facts.dependency, Cause::kDependency);
    split.until(facts.queue, Cause::kQueue);
    if (start.cause == Cause::kEngine) split.until(spans[start.after].ended, Cause::kEngine);
    split.until(interval.begin, start.cause);
    result.busy += interval.end - interval.begin;
    free = interval.end;
  }
  result.done = extent.end - free;
  return result;
}

// --- Slack: how much later each op could have ended without making the run longer ---

// Visits the nodes backwards in time. `latest_` is the latest time at which each node may end. It is final when the
// node is visited.
class SlackFinder {
 public:
  SlackFinder(const OpGraph& graph, std::span<const TraceSpan> spans, const StartTable& table, const Holders& holders,
              Picos last_end)
      : graph_(graph), spans_(spans), table_(table), holders_(holders), latest_(graph.nodes.size(), last_end) {
    for (const std::uint32_t last : graph.thread_last) threads_.push_back({.next = last});
  }

  std::vector<Picos> find(std::span<const std::uint32_t> order);

 private:
  // A host thread, visited backwards only as far as its waits require.
  struct ThreadWalk {
    std::uint32_t next = kNoNode;  // the next submission to visit
    std::uint32_t done = kNoNode;  // the submission visited last
    Picos latest = 0;              // latest time at which `done` may be submitted
  };
  void limit(std::uint32_t node, Picos end) {
    if (node != kNoNode) latest_[node] = std::min(latest_[node], end);
  }
  void limit_span(std::uint32_t span, Picos end) {
    if (span != kNoSpan) limit(graph_.node_of[span], end);
  }
  // The latest time at which the reason of the op's start may occur.
  Picos latest_reason(std::uint32_t n) const {
    const TraceSpan& span = spans_[graph_.nodes[n].span];
    return latest_[n] - (span.ended - table_.facts[graph_.nodes[n].span].reason);
  }
  Picos latest_submission(std::uint32_t n) const;
  void pass_op(std::uint32_t n);
  void pass_sync(std::uint32_t n);

  const OpGraph& graph_;
  std::span<const TraceSpan> spans_;
  const StartTable& table_;
  const Holders& holders_;
  std::vector<Picos> latest_;
  // By span, only if queues delayed ops: the latest submission that does not delay the ops behind it in the queue.
  std::vector<Picos> queue_latest_;
  std::vector<ThreadWalk> threads_;
};

void SlackFinder::pass_op(std::uint32_t n) {
  const OpNode& node = graph_.nodes[n];
  if (!spans_[node.span].run) return limit(node.prev, latest_[n]);
  const Picos reason = latest_reason(n);
  limit(node.prev, reason);
  limit_span(holders_.engine[node.span], reason);
  const StartFacts& facts = table_.facts[node.span];
  if (facts.ahead == kNoSpan) return;
  // An op in a queue waits for the ops that the op ahead waits for, not for the end of the op ahead.
  const StartFacts& ahead = table_.facts[facts.ahead];
  limit_span(ahead.dependency_on, reason);
  if (queue_latest_.empty()) queue_latest_.resize(spans_.size(), std::numeric_limits<Picos>::max());
  queue_latest_[facts.ahead] = std::min(queue_latest_[facts.ahead], reason - (ahead.host - spans_[facts.ahead].queued));
}

// The latest time at which the op may be submitted, for itself and for the ops behind it in a queue.
Picos SlackFinder::latest_submission(std::uint32_t n) const {
  const std::uint32_t index = graph_.nodes[n].span;
  const TraceSpan& span = spans_[index];
  const Picos own = span.run ? latest_reason(n) - (table_.facts[index].host - span.queued) : latest_[n];
  return queue_latest_.empty() ? own : std::min(own, queue_latest_[index]);
}

// A wait of the host delays everything that the same thread submits later.
void SlackFinder::pass_sync(std::uint32_t n) {
  ThreadWalk& thread = threads_[graph_.nodes[n].thread];
  for (; thread.next != kNoNode && thread.next > n; thread.next = graph_.nodes[thread.next].before) {
    Picos latest = latest_submission(thread.next);
    if (thread.done != kNoNode) {
      const HostGap gap = host_gap(graph_, spans_, table_, thread.done);
      if (gap.before != kNoNode) latest = std::min(latest, thread.latest - gap.gap);
    }
    thread.latest = latest;
    thread.done = thread.next;
  }
  if (thread.done == kNoNode) return;
  const HostGap gap = host_gap(graph_, spans_, table_, thread.done);
  if (gap.sync != kNoNode) limit(graph_.nodes[n].other, thread.latest - gap.gap);
}

std::vector<Picos> SlackFinder::find(std::span<const std::uint32_t> order) {
  for (auto n = order.rbegin(); n != order.rend(); ++n) {
    const OpNode& node = graph_.nodes[*n];
    switch (node.kind) {
      case NodeKind::kOp: pass_op(*n); break;
      case NodeKind::kSync: pass_sync(*n); break;
      default:
        limit(node.prev, latest_[*n]);
        limit(node.other, latest_[*n]);
        break;
    }
  }
  std::vector<Picos> result(spans_.size());
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    if (spans_[i].run && graph_.node_of[i] != kNoNode)
      result[i] = std::max<Picos>(latest_[graph_.node_of[i]] - spans_[i].ended, 0);
  }
  return result;
}

// Returns the slack by span. The order of submissions, waits and runs stays as recorded, with durations and latencies.
std::vector<Picos> find_slack(const OpGraph& graph, std::span<const TraceSpan> spans, const StartTable& table,
                              const Holders& holders, std::span<const std::uint32_t> order) {
  Picos last_end = kBeforeEverything;
  for (const TraceSpan& span : spans) {
    if (span.run && !span.annotation) last_end = std::max(last_end, span.ended);
  }
  return SlackFinder(graph, spans, table, holders, last_end).find(order);
}

}  // namespace

const char* cause_name(Cause cause) {
  switch (cause) {
    case Cause::kHost: return "host";
    case Cause::kDependency: return "dependency";
    case Cause::kQueue: return "queue";
    case Cause::kEngine: return "engine";
    case Cause::kPeer: return "peer";
    default: return "unknown";
  }
}

Analysis analyse(const TraceData& trace, std::span<const TraceSpan> spans) {
  const RunExtent extent = extent_of(spans);
  Analysis result;
  if (extent.last == kNoSpan) {
    result.starts.resize(spans.size());
    result.slack.resize(spans.size());
    return result;
  }
  const OpGraph graph = op_graph(trace, spans);
  const std::vector<EngineUse> engines = engine_use(spans);
  StartTable table = find_starts(graph, spans, engines);
  const std::vector<std::uint32_t> order = time_order(graph, spans, table);
  std::vector<std::uint32_t> rank(spans.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    if (graph.nodes[order[i]].kind == NodeKind::kOp) rank[graph.nodes[order[i]].span] = i;
  }
  result.slack = find_slack(graph, spans, table, find_holders(engines, table), order);
  result.critical = critical_path(spans, table, rank, extent.last);
  for (const EngineUse& use : engines) {
    if (use.engine != Engine::kNone) result.engines.push_back(time_of_engine(use, spans, table, extent));
  }
  result.starts = std::move(table.starts);
  return result;
}

}  // namespace slip
