#include "slip/analysis.hpp"

#include <algorithm>

#include "watch/analysis/schedule.hpp"
#include "watch/analysis/slack.hpp"

namespace slip {
namespace {

struct Extent {
  Picos begin = 0, end = 0;
  std::uint32_t last = kNoSpan;  // ended last
};

Extent extent_of(std::span<const TraceSpan> spans) {
  Extent result;
  for (std::uint32_t i = 0; i < spans.size(); ++i) {
    if (!spans[i].run || spans[i].annotation) continue;
    const bool first = result.last == kNoSpan;
    result.begin = first ? spans[i].started : std::min(result.begin, spans[i].started);
    if (first || spans[i].ended > result.end) result.end = spans[i].ended, result.last = i;
  }
  return result;
}

// From the op that ended last to what held each one up. In a queue that is what the op ahead waited for.
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
    // Strictly back in time, whatever a damaged file says.
    if (after == kNoSpan || !spans[after].run || rank[after] >= rank[span]) break;
    span = after;
  }
  std::reverse(path.begin(), path.end());
  return path;
}

// Splits the time before an op among what it waited for, one after the other.
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
                          const Extent& extent) {
  EngineTime result;
  result.device = use.device;
  result.engine = use.engine;
  result.ops = use.ops.size();
  result.sum = use.sum;
  Picos free = extent.begin;
  for (const Stretch& stretch : use.busy) {
    const StartFacts& facts = table.facts[stretch.first];
    StartReason& start = table.starts[stretch.first];
    start.idle = stretch.begin - free;
    IdleSplit split(result, free, stretch.begin);
    split.until(facts.host, Cause::kHost);
    split.until(facts.dependency, Cause::kDependency);
    split.until(facts.queue, Cause::kQueue);
    if (start.cause == Cause::kEngine) split.until(spans[start.after].ended, Cause::kEngine);
    split.until(stretch.begin, start.cause);
    result.busy += stretch.end - stretch.begin;
    free = stretch.end;
  }
  result.done = extent.end - free;
  return result;
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
  const Extent extent = extent_of(spans);
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
