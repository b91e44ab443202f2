#include "watch/analysis/starts.hpp"

#include <algorithm>

#include "watch/trace/containers.hpp"

namespace slip {
namespace {

// The maximum time between the reason of a start and the start. Beyond it, the reason does not explain the start. A
// launch takes a few microseconds on a GPU. An idle thread of the cpu device sleeps for 50 us at a time.
constexpr Picos kMaxLatency = 50'000'000;
// The same for ops whose submission is not in the trace. For them, only a start that directly follows an end proves
// that the host was not late.
constexpr Picos kMaxLatencyUnsubmitted = 2'000'000;

// Ops of one engine leave a hardware queue in order, so each queue has a sub-queue for each engine. On the cpu device
// all ops of a queue leave in order; sub-queue kWholeQueue models that.
constexpr std::uint64_t kSubQueues = 4, kWholeQueue = 3;

class StartFinder {
 public:
  StartFinder(const OpGraph& graph, std::span<const TraceSpan> spans) : graph_(graph), spans_(spans) {
    table_.starts.resize(spans.size());
    table_.facts.resize(spans.size());
    table_.node_end.resize(graph.nodes.size());
    node_last_.resize(graph.nodes.size());
  }

  StartTable find(std::span<const EngineUse> engines) {
    follow_dependencies();
    const std::vector<std::uint32_t> room = engine_predecessors(spans_, engines);
    for (std::size_t i = 0; i < spans_.size(); ++i) table_.facts[i].engine_after = room[i];
    const bool queues =
        std::any_of(spans_.begin(), spans_.end(), [](const TraceSpan& span) { return span.queue >= 0; });
    if (queues) follow_queues();
    add_call_times();
    if (queues) follow_queues();
    for (std::uint32_t i = 0; i < spans_.size(); ++i) {
      if (spans_[i].run) decide(i);
    }
    return std::move(table_);
  }

 private:
  struct SubQueue {
    Picos open = kBeforeEverything;  // when the last op left it
    std::uint32_t last = kNoSpan;
    void pass(const StartFacts& facts, const TraceSpan& span, std::uint32_t index);
  };

  void follow_dependencies();
  void follow_queues();
  void add_call_times();
  void decide(std::uint32_t index);
  std::uint32_t host_after(const OpNode& node) const;
  std::uint64_t call(const TraceSpan& span) const {
    return std::uint64_t{span.device} * 16 + static_cast<std::uint64_t>(span.kind);
  }

  const OpGraph& graph_;
  std::span<const TraceSpan> spans_;
  StartTable table_;
  std::vector<std::uint32_t> node_last_;  // by node: of all ops that it follows, the one that ended last
  // By span, only if there are queues: `open` and `last` of the sub-queue kWholeQueue.
  std::vector<std::pair<Picos, std::uint32_t>> whole_queue_;
};

void StartFinder::follow_dependencies() {
  for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
    const OpNode& node = graph_.nodes[n];
    Picos end = node.prev == kNoNode ? kBeforeEverything : table_.node_end[node.prev];
    std::uint32_t last = node.prev == kNoNode ? kNoSpan : node_last_[node.prev];
    if (node.kind != NodeKind::kOp) {
      if (table_.node_end[node.other] > end) end = table_.node_end[node.other], last = node_last_[node.other];
    } else {
      const TraceSpan& span = spans_[node.span];
      StartFacts& facts = table_.facts[node.span];
      facts.dependency = end;
      facts.dependency_on = last;
      facts.host_after = host_after(node);
      if (span.submit) facts.host = span.queued;
      if (span.run) end = span.ended, last = node.span;
    }
    table_.node_end[n] = end;
    node_last_[n] = last;
  }
}

// Returns the op that the host waited for between the thread's previous submission and this one. If that op ended later
// than the submission, its times are from another clock, and it is ignored.
std::uint32_t StartFinder::host_after(const OpNode& node) const {
  if (node.other == kNoNode) return kNoSpan;
  const Picos before = node.before == kNoNode ? kBeforeEverything : spans_[graph_.nodes[node.before].span].queued;
  const Picos end = table_.node_end[node.other];
  return end > before && end <= spans_[node.span].queued ? node_last_[node.other] : kNoSpan;
}

// A submission takes effect only after some time, because the call takes time. The minimum, by device and kind of op,
// is measured on ops that nothing else delayed. Without it, an op that the host submitted late would count as delayed
// by any op that ended during the call.
void StartFinder::add_call_times() {
  CachedMap<Picos> min_call_time;
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    const TraceSpan& span = spans_[i];
    const StartFacts& facts = table_.facts[i];
    if (!span.run || !span.submit || facts.dependency > span.queued || facts.queue > span.queued) continue;
    if (facts.engine_after != kNoSpan && spans_[facts.engine_after].ended > span.queued) continue;
    Picos& known = min_call_time[call(span)];  // stored plus 1; 0: not measured yet
    const Picos took = std::clamp<Picos>(span.started - span.queued, 0, kMaxLatency) + 1;
    known = known == 0 ? took : std::min(known, took);
  }
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    const TraceSpan& span = spans_[i];
    if (!span.run || !span.submit) continue;
    const Picos takes = std::max<Picos>(min_call_time[call(span)] - 1, 0);
    table_.facts[i].host = std::max(span.queued, std::min(span.queued + takes, span.started));
  }
}

void StartFinder::SubQueue::pass(const StartFacts& facts, const TraceSpan& span, std::uint32_t index) {
  const Picos own = std::max(facts.host, facts.dependency);
  // If the op started before the op ahead had left, this queue is not in order: restart from this op.
  if (own >= open || open > span.started) open = own, last = index;
}

// An op leaves its queue when it is ready, even if its engine is busy. Until then it delays the ops behind it.
void StartFinder::follow_queues() {
  CachedMap<SubQueue> sub_queues;
  CachedMap<std::uint64_t> sub_queue_of_stream;
  whole_queue_.assign(spans_.size(), {kBeforeEverything, kNoSpan});
  for (const OpNode& node : graph_.nodes) {
    if (node.kind != NodeKind::kOp || !spans_[node.span].run || spans_[node.span].queue < 0) continue;
    const TraceSpan& span = spans_[node.span];
    StartFacts& facts = table_.facts[node.span];
    std::uint64_t& own_queue = sub_queue_of_stream[span.stream];
    if (span.engine == Engine::kCompute) own_queue = 0;
    else if (span.engine == Engine::kCopyIn) own_queue = 1;
    else if (span.engine == Engine::kCopyOut) own_queue = 2;
    const std::uint64_t queue =
        ((std::uint64_t{span.device} << 32) + static_cast<std::uint64_t>(span.queue)) * kSubQueues;
    SubQueue& sub_queue = sub_queues[queue + own_queue];
    const bool held = sub_queue.open > std::max(facts.host, facts.dependency) && sub_queue.open <= span.started;
    facts.queue = held ? sub_queue.open : kBeforeEverything;
    facts.ahead = held ? sub_queue.last : kNoSpan;
    sub_queue.pass(facts, span, node.span);
    SubQueue& whole = sub_queues[queue + kWholeQueue];
    whole_queue_[node.span] = {whole.open, whole.last};
    whole.pass(facts, span, node.span);
  }
}

void StartFinder::decide(std::uint32_t index) {
  const TraceSpan& span = spans_[index];
  StartFacts& facts = table_.facts[index];
  StartReason& start = table_.starts[index];
  start.ready = std::max(span.submit ? span.queued : kBeforeEverything, facts.dependency);
  start.cause = Cause::kHost;
  start.after = facts.host_after;
  facts.reason = facts.host;
  const auto later = [&](Picos at, Cause cause, std::uint32_t after) {
    facts.reason = at;
    start.cause = cause;
    start.after = after;
  };
  if (facts.dependency_on != kNoSpan && facts.dependency >= facts.reason)
    later(facts.dependency, Cause::kDependency, facts.dependency_on);
  if (facts.queue > facts.reason) later(facts.queue, Cause::kQueue, facts.ahead);
  if (facts.engine_after != kNoSpan) {
    const Picos room = spans_[facts.engine_after].ended;
    if (room > facts.reason && room <= span.started) later(room, Cause::kEngine, facts.engine_after);
    else facts.engine_after = kNoSpan;
  }
  if (facts.reason < span.started && !whole_queue_.empty()) {
    const auto [open, last] = whole_queue_[index];
    if (open > facts.reason && open <= span.started) {
      later(open, Cause::kQueue, last);
      facts.queue = open;
      facts.ahead = last;
    }
  }
  if (facts.reason == kBeforeEverything) facts.reason = start.ready = span.started, start.cause = Cause::kUnknown;
  if (start.ready == kBeforeEverything) start.ready = span.started;
  const Picos max_latency = span.submit ? kMaxLatency : kMaxLatencyUnsubmitted;
  if (span.started - facts.reason > max_latency) start.cause = Cause::kUnknown;
}

}  // namespace

StartTable find_starts(const OpGraph& graph, std::span<const TraceSpan> spans, std::span<const EngineUse> engines) {
  return StartFinder(graph, spans).find(engines);
}

Holders find_holders(std::span<const EngineUse> engines, const StartTable& table) {
  Holders result;
  result.engine.resize(table.starts.size(), kNoSpan);
  for (const EngineUse& use : engines) {
    for (std::size_t i = 0; i < use.ops.size(); ++i) {
      const std::uint32_t op = use.ops[i];
      if (table.facts[op].engine_after != kNoSpan) result.engine[op] = table.facts[op].engine_after;
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
    // The clocks of devices may differ a little. The order of the graph always holds.
    if (node.prev != kNoNode) at = std::max(at, keys[node.prev].at);
    if (node.other != kNoNode) at = std::max(at, keys[node.other].at);
    keys[n] = {at, n};
  }
  sort_by_time(keys);  // stable: nodes at the same time keep the order of the graph
  std::vector<std::uint32_t> result(keys.size());
  std::transform(keys.begin(), keys.end(), result.begin(), [](const TimeKey& key) { return key.index; });
  return result;
}

HostGap host_gap(const OpGraph& graph, std::span<const TraceSpan> spans, const StartTable& table, std::uint32_t node) {
  const OpNode& op = graph.nodes[node];
  const Picos queued = spans[op.span].queued;
  HostGap result;
  Picos since = kBeforeEverything;
  if (op.before != kNoNode && spans[graph.nodes[op.before].span].queued <= queued) {
    result.before = op.before;
    since = spans[graph.nodes[op.before].span].queued;
  }
  if (op.other != kNoNode && table.node_end[op.other] <= queued) {
    result.sync = op.other;
    since = std::max(since, table.node_end[op.other]);
  }
  result.gap = since == kBeforeEverything ? 0 : queued - since;
  return result;
}

}  // namespace slip
