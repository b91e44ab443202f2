#include "watch/analysis/starts.hpp"

#include <algorithm>

#include "watch/trace/containers.hpp"

namespace slip::watch {
namespace {

// The maximum time between the reason of a start and the start. Beyond it, the reason does not explain the start. A
// launch takes a few microseconds on a GPU. An idle thread of the cpu device sleeps for 50 us at a time.
constexpr Picos kMaxLatency = 50'000'000;  // 50 us
// The same for ops whose submission is not in the trace. For them, only a start that directly follows an end proves
// that the host was not late.
constexpr Picos kMaxLatencyUnsubmitted = 2'000'000;  // 2 us

// Ops of one engine leave a hardware queue in order, so each queue has a sub-queue for each engine: 0 compute, 1 copy
// in, 2 copy out. On the cpu device all ops of a queue leave in order; sub-queue kWholeQueue models that.
constexpr std::uint64_t kSubQueues = 4, kWholeQueue = 3;

class StartFinder {
 public:
  explicit StartFinder(RunModel& run)
      : run_(run), graph_(run.graph), spans_(run.spans), node_last_(run.graph.nodes.size()) {}

  void find() {
    follow_dependencies();
    const std::vector<std::uint32_t> predecessors = engine_predecessors(spans_, run_.engines);
    for (std::size_t i = 0; i < spans_.size(); ++i) run_.facts[i].engine_after = predecessors[i];
    const bool queues = std::ranges::any_of(spans_, [](const TraceSpan& span) { return span.queue >= 0; });
    if (queues) follow_queues();
    add_call_times();
    if (queues) follow_queues();  // again, because add_call_times() has changed the times of submission
    for (std::uint32_t i = 0; i < spans_.size(); ++i) {
      if (spans_[i].run) decide(i);
    }
  }

 private:
  struct SubQueue {
    Picos open = kBeforeEverything;  // when the last op left the sub-queue
    std::uint32_t last = kNoSpan;    // that op
    void pass(const StartFacts& facts, const TraceSpan& span, std::uint32_t index) {
      const Picos own = std::max(facts.host, facts.dependency);
      // If the op started before the op ahead had left, this queue is not in order: restart from this op.
      if (own >= open || open > span.started) open = own, last = index;
    }
  };

  void follow_dependencies() {
    for (const std::uint32_t n : graph_.order) {
      const OpNode& node = graph_.nodes[n];
      Picos end = node.prev == kNoNode ? kBeforeEverything : run_.node_end[node.prev];
      std::uint32_t last = node.prev == kNoNode ? kNoSpan : node_last_[node.prev];
      if (node.kind != NodeKind::kOp) {
        if (node.other != kNoNode && run_.node_end[node.other] > end)
          end = run_.node_end[node.other], last = node_last_[node.other];
      } else {
        const TraceSpan& span = spans_[node.span];
        StartFacts& facts = run_.facts[node.span];
        facts.dependency = end;
        facts.dependency_on = last;
        facts.host_after = host_after(node);
        if (span.submit) facts.host = span.queued;
        if (span.run) end = span.ended, last = node.span;
      }
      run_.node_end[n] = end;
      node_last_[n] = last;
    }
  }

  // An op leaves its queue when it is ready, even if its engine is busy. Until then it delays the ops behind it.
  void follow_queues() {
    CachedMap<SubQueue> sub_queues;
    CachedMap<std::uint64_t> sub_queue_of_stream;
    whole_queue_.assign(spans_.size(), {kBeforeEverything, kNoSpan});
    for (const OpNode& node : graph_.nodes) {
      if (node.kind != NodeKind::kOp || !spans_[node.span].run || spans_[node.span].queue < 0) continue;
      const TraceSpan& span = spans_[node.span];
      StartFacts& facts = run_.facts[node.span];
      // An op on no such engine, such as a host function, uses the sub-queue of the op before it in its stream.
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

  // Adds the duration of the submitting call to each time of submission: the op cannot start earlier. The minimum
  // duration, by device and kind of op, is measured on ops that nothing else delayed. Without it, an op that the host
  // submitted late would count as delayed by any op that ended during the call.
  void add_call_times() {
    CachedMap<Picos> min_call_time;
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      const TraceSpan& span = spans_[i];
      const StartFacts& facts = run_.facts[i];
      if (!span.run || !span.submit || facts.dependency > span.queued || facts.queue > span.queued) continue;
      if (facts.engine_after != kNoSpan && spans_[facts.engine_after].ended > span.queued) continue;
      Picos& known = min_call_time[call_key(span)];  // stored plus 1; 0: not measured yet
      const Picos took = std::clamp<Picos>(span.started - span.queued, 0, kMaxLatency) + 1;
      known = known == 0 ? took : std::min(known, took);
    }
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      const TraceSpan& span = spans_[i];
      if (!span.run || !span.submit) continue;
      const Picos takes = std::max<Picos>(min_call_time[call_key(span)] - 1, 0);
      run_.facts[i].host = std::max(span.queued, std::min(span.queued + takes, span.started));
    }
  }

  void decide(std::uint32_t index) {
    const TraceSpan& span = spans_[index];
    StartFacts& facts = run_.facts[index];
    StartReason& start = run_.starts[index];
    start.ready = std::max(span.submit ? span.queued : kBeforeEverything, facts.dependency);
    start.cause = StartCause::kHost;
    start.after = facts.host_after;
    facts.reason = facts.host;
    const auto later = [&](Picos at, StartCause cause, std::uint32_t after) {
      facts.reason = at;
      start.cause = cause;
      start.after = after;
    };
    if (facts.dependency_on != kNoSpan && facts.dependency >= facts.reason)
      later(facts.dependency, StartCause::kDependency, facts.dependency_on);
    if (facts.queue > facts.reason) later(facts.queue, StartCause::kQueue, facts.ahead);
    if (facts.engine_after != kNoSpan) {
      const Picos freed = spans_[facts.engine_after].ended;
      if (freed > facts.reason && freed <= span.started) later(freed, StartCause::kEngine, facts.engine_after);
      else facts.engine_after = kNoSpan;
    }
    if (facts.reason < span.started && !whole_queue_.empty()) {
      const auto [open, last] = whole_queue_[index];
      if (open > facts.reason && open <= span.started) {
        later(open, StartCause::kQueue, last);
        facts.queue = open;
        facts.ahead = last;
      }
    }
    if (facts.reason == kBeforeEverything)
      facts.reason = start.ready = span.started, start.cause = StartCause::kUnknown;
    if (start.ready == kBeforeEverything) start.ready = span.started;
    const Picos max_latency = span.submit ? kMaxLatency : kMaxLatencyUnsubmitted;
    if (span.started - facts.reason > max_latency) start.cause = StartCause::kUnknown;
  }

  // Returns the op that the host waited for between the thread's previous submission and this one. If that op ended
  // later than the submission, its times are from another clock, and it is ignored.
  std::uint32_t host_after(const OpNode& node) const {
    if (node.other == kNoNode) return kNoSpan;
    const Picos before = node.before == kNoNode ? kBeforeEverything : spans_[graph_.nodes[node.before].span].queued;
    const Picos end = run_.node_end[node.other];
    return end > before && end <= spans_[node.span].queued ? node_last_[node.other] : kNoSpan;
  }

  std::uint64_t call_key(const TraceSpan& span) const {
    return std::uint64_t{span.device} * 16 + static_cast<std::uint64_t>(span.kind);
  }

  RunModel& run_;
  const OpGraph& graph_;
  std::span<const TraceSpan> spans_;
  std::vector<std::uint32_t> node_last_;  // by node: of all ops that it follows, the one that ended last
  // By span, only if there are queues: `open` and `last` of the sub-queue kWholeQueue.
  std::vector<std::pair<Picos, std::uint32_t>> whole_queue_;
};

// On an engine that never ran two ops at once, each op waits for the previous one. On other engines, only those ops
// wait that waited in the trace.
void find_engine_waits(RunModel& run) {
  run.engine_before.resize(run.spans.size(), kNoSpan);
  for (const EngineUse& use : run.engines) {
    for (std::size_t i = 0; i < use.ops.size(); ++i) {
      const std::uint32_t op = use.ops[i];
      if (run.facts[op].engine_after != kNoSpan) run.engine_before[op] = run.facts[op].engine_after;
      else if (use.serial && use.engine != Engine::kNone && i > 0) run.engine_before[op] = use.ops[i - 1];
    }
  }
}

// Sorts the nodes by time: ops by their start, waits by the end of the work that they wait for.
std::vector<std::uint32_t> time_order(const RunModel& run) {
  const std::vector<OpNode>& nodes = run.graph.nodes;
  std::vector<Picos> times(nodes.size());
  std::vector<TimeKey> keys;
  keys.reserve(nodes.size());
  for (const std::uint32_t n : run.graph.order) {
    const OpNode& node = nodes[n];
    Picos at = run.node_end[n];
    if (node.kind == NodeKind::kOp && run.spans[node.span].run) at = run.spans[node.span].started;
    // The clocks of devices may differ a little. The order of the graph always holds.
    if (node.prev != kNoNode) at = std::max(at, times[node.prev]);
    if (node.other != kNoNode) at = std::max(at, times[node.other]);
    times[n] = at;
    keys.push_back({at, n});
  }
  return indices_by_time(std::move(keys));  // stable: nodes at the same time keep the order of the graph
}

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
  // Returns the time at which the op is submitted and its predecessors have ended.
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
  std::vector<Picos> queued_;         // submission times by node; kBeforeEverything: not computed yet
  std::vector<std::uint32_t> chain_;  // submission_of(): submissions of the thread to compute, the last one first
};

}  // namespace

RunModel::RunModel(const TraceData& trace, std::span<const TraceSpan> all)
    : spans(all),
      graph(op_graph(trace, all)),
      engines(engine_use(all)),
      starts(all.size()),
      facts(all.size()),
      node_end(graph.nodes.size()) {
  StartFinder(*this).find();
  find_engine_waits(*this);
  order = time_order(*this);
}

HostGap RunModel::host_gap(std::uint32_t node) const {
  const OpNode& op = graph.nodes[node];
  const Picos queued = spans[op.span].queued;
  HostGap result;
  Picos since = kBeforeEverything;
  if (op.before != kNoNode && spans[graph.nodes[op.before].span].queued <= queued) {
    result.before = op.before;
    since = spans[graph.nodes[op.before].span].queued;
  }
  if (op.other != kNoNode && node_end[op.other] <= queued) {
    result.sync = op.other;
    since = std::max(since, node_end[op.other]);
  }
  result.gap = since == kBeforeEverything ? 0 : queued - since;
  return result;
}

Picos replayed_length(const RunModel& run, const std::vector<bool>& left_out, const std::vector<Picos>& longer) {
  return Rerun(run).length(left_out, longer);
}

}  // namespace slip::watch
