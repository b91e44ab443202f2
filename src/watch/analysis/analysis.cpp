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
std::vector<std::uint32_t> critical_path(const watch::RunModel& run, std::uint32_t last) {
  std::vector<std::uint32_t> rank(run.spans.size());  // of the op in the order of time
  for (std::uint32_t i = 0; i < run.order.size(); ++i) {
    const watch::OpNode& node = run.graph.nodes[run.order[i]];
    if (node.kind == watch::NodeKind::kOp) rank[node.span] = i;
  }
  std::vector<std::uint32_t> path;
  for (std::uint32_t span = last; span != kNoSpan;) {
    path.push_back(span);
    const StartReason& start = run.starts[span];
    std::uint32_t after = start.after;
    if (after != kNoSpan && run.facts[span].reason == run.facts[span].queue) {
      const watch::StartFacts& ahead = run.facts[after];
      after = ahead.dependency >= ahead.host ? ahead.dependency_on : ahead.host_after;
    }
    // Only go back in time: a damaged file may contain a cycle, and the walk must end.
    if (after == kNoSpan || !run.spans[after].run || rank[after] >= rank[span]) break;
    span = after;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

EngineTime time_of_engine(const watch::EngineUse& use, watch::RunModel& run, const RunExtent& extent) {
  EngineTime result;
  result.device = use.device;
  result.engine = use.engine;
  result.ops = use.ops.size();
  result.sum = use.sum;
  Picos free = extent.begin;
  for (const watch::Interval& interval : use.busy) {
    const watch::StartFacts& facts = run.facts[interval.first];
    StartReason& start = run.starts[interval.first];
    start.idle = interval.begin - free;
    // Splits the idle time before the op among the causes of the delay, one after the other.
    const auto idle_until = [&](Picos when, StartCause cause) {
      when = std::min(when, interval.begin);
      if (when <= free) return;
      result.idle[static_cast<std::size_t>(cause)] += when - free;
      free = when;
    };
    idle_until(facts.host, StartCause::kHost);
    idle_until(facts.dependency, StartCause::kDependency);
    idle_until(facts.queue, StartCause::kQueue);
    if (start.cause == StartCause::kEngine) idle_until(run.spans[start.after].ended, StartCause::kEngine);
    idle_until(interval.begin, start.cause);
    result.busy += interval.end - interval.begin;
    free = interval.end;
  }
  result.done = extent.end - free;
  return result;
}

// --- Slack: how much later each op could have ended without making the run longer ---

// The order of submissions, waits and runs stays as recorded, with durations and latencies. Visits the nodes backwards
// in time. `latest_` is the latest time at which each node may end. It is final when the node is visited.
class SlackFinder {
 public:
  SlackFinder(const watch::RunModel& run, Picos last_end) : run_(run), latest_(run.graph.nodes.size(), last_end) {
    for (const std::uint32_t last : run.graph.thread_last) threads_.push_back({.next = last});
  }

  std::vector<Picos> find() {
    for (auto n = run_.order.rbegin(); n != run_.order.rend(); ++n) {
      const watch::OpNode& node = run_.graph.nodes[*n];
      switch (node.kind) {
        case watch::NodeKind::kOp: pass_op(*n); break;
        case watch::NodeKind::kSync: pass_sync(*n); break;
        default:
          limit(node.prev, latest_[*n]);
          limit(node.other, latest_[*n]);
          break;
      }
    }
    std::vector<Picos> result(run_.spans.size());
    for (std::size_t i = 0; i < run_.spans.size(); ++i) {
      if (run_.spans[i].run && run_.graph.node_of[i] != watch::kNoNode)
        result[i] = std::max<Picos>(latest_[run_.graph.node_of[i]] - run_.spans[i].ended, 0);
    }
    return result;
  }

 private:
  // A host thread, visited backwards only as far as its waits require.
  struct ThreadWalk {
    std::uint32_t next = watch::kNoNode;  // the next submission to visit
    std::uint32_t done = watch::kNoNode;  // the submission visited last
    Picos latest = 0;                     // latest time at which `done` may be submitted
  };
  void limit(std::uint32_t node, Picos end) {
    if (node != watch::kNoNode) latest_[node] = std::min(latest_[node], end);
  }
  void limit_span(std::uint32_t span, Picos end) {
    if (span != kNoSpan) limit(run_.graph.node_of[span], end);
  }
  // The latest time at which the reason of the op's start may occur.
  Picos latest_reason(std::uint32_t n) const {
    const TraceSpan& span = run_.spans[run_.graph.nodes[n].span];
    return latest_[n] - (span.ended - run_.facts[run_.graph.nodes[n].span].reason);
  }

  // The latest time at which the op may be submitted, for itself and for the ops behind it in a queue.
  Picos latest_submission(std::uint32_t n) const {
    const std::uint32_t index = run_.graph.nodes[n].span;
    const TraceSpan& span = run_.spans[index];
    const Picos own = span.run ? latest_reason(n) - (run_.facts[index].host - span.queued) : latest_[n];
    return queue_latest_.empty() ? own : std::min(own, queue_latest_[index]);
  }

  void pass_op(std::uint32_t n) {
    const watch::OpNode& node = run_.graph.nodes[n];
    if (!run_.spans[node.span].run) return limit(node.prev, latest_[n]);
    const Picos reason = latest_reason(n);
    limit(node.prev, reason);
    limit_span(run_.engine_before[node.span], reason);
    const watch::StartFacts& facts = run_.facts[node.span];
    if (facts.ahead == kNoSpan) return;
    // An op in a queue waits for the ops that the op ahead waits for, not for the end of the op ahead.
    const watch::StartFacts& ahead = run_.facts[facts.ahead];
    limit_span(ahead.dependency_on, reason);
    if (queue_latest_.empty()) queue_latest_.resize(run_.spans.size(), std::numeric_limits<Picos>::max());
    queue_latest_[facts.ahead] =
        std::min(queue_latest_[facts.ahead], reason - (ahead.host - run_.spans[facts.ahead].queued));
  }

  // A wait of the host delays everything that the same thread submits later.
  void pass_sync(std::uint32_t n) {
    ThreadWalk& thread = threads_[run_.graph.nodes[n].thread];
    for (; thread.next != watch::kNoNode && thread.next > n; thread.next = run_.graph.nodes[thread.next].before) {
      Picos latest = latest_submission(thread.next);
      if (thread.done != watch::kNoNode) {
        const watch::HostGap gap = run_.host_gap(thread.done);
        if (gap.before != watch::kNoNode) latest = std::min(latest, thread.latest - gap.gap);
      }
      thread.latest = latest;
      thread.done = thread.next;
    }
    if (thread.done == watch::kNoNode) return;
    const watch::HostGap gap = run_.host_gap(thread.done);
    if (gap.sync != watch::kNoNode) limit(run_.graph.nodes[n].other, thread.latest - gap.gap);
  }

  const watch::RunModel& run_;
  std::vector<Picos> latest_;
  // By span, only if queues delayed ops: the latest submission that does not delay the ops behind it in the queue.
  std::vector<Picos> queue_latest_;
  std::vector<ThreadWalk> threads_;
};

}  // namespace

const char* start_cause_name(StartCause cause) {
  switch (cause) {
    case StartCause::kHost: return "host";
    case StartCause::kDependency: return "dependency";
    case StartCause::kQueue: return "queue";
    case StartCause::kEngine: return "engine";
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
  watch::RunModel run(trace, spans);
  result.slack = SlackFinder(run, extent.end).find();
  result.critical = critical_path(run, extent.last);
  for (const watch::EngineUse& use : run.engines) {
    if (use.engine != Engine::kNone) result.engines.push_back(time_of_engine(use, run, extent));
  }
  result.starts = std::move(run.starts);
  return result;
}

}  // namespace slip
