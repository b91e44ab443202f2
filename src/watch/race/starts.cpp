#include "watch/race/starts.hpp"

#include <algorithm>

#include "watch/trace/by_number.hpp"

namespace slip {
namespace {

// How much later than its reason an op may start before the reason counts as no explanation. A launch takes a few
// microseconds on a GPU; an idle thread of the cpu device naps for 50.
constexpr Picos kMaxLatency = 50'000'000;
// The same for ops whose submission is not in the trace: the host may have been late, and only a start that follows at
// once is proof of the contrary.
constexpr Picos kMaxLatencyUnsubmitted = 2'000'000;

// Ops of one engine leave a hardware queue in order. On the cpu device all ops of a queue do: lane kAnyLane.
constexpr std::uint64_t kLanes = 4, kAnyLane = 3;

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
    const std::vector<std::uint32_t> room = made_room(spans_, engines);
    for (std::size_t i = 0; i < spans_.size(); ++i) table_.facts[i].room_after = room[i];
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
  struct Lane {
    Picos open = kNever;  // when the last op had left it
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
  std::vector<std::uint32_t> node_last_;                   // by node: the op that ended last of all that it follows
  std::vector<std::pair<Picos, std::uint32_t>> any_lane_;  // by span, if there are queues: open and last of the queue
};

void StartFinder::follow_dependencies() {
  for (std::size_t n = 0; n < graph_.nodes.size(); ++n) {
    const OpNode& node = graph_.nodes[n];
    Picos end = node.prev == kNoNode ? kNever : table_.node_end[node.prev];
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

// The op that the host waited for between its submission before and this one. One that ended later than the submission
// has another clock, and says nothing.
std::uint32_t StartFinder::host_after(const OpNode& node) const {
  if (node.other == kNoNode) return kNoSpan;
  const Picos before = node.before == kNoNode ? kNever : spans_[graph_.nodes[node.before].span].queued;
  const Picos end = table_.node_end[node.other];
  return end > before && end <= spans_[node.span].queued ? node_last_[node.other] : kNoSpan;
}

// A submission takes effect some time after it began, because the call takes time. How long at least is learnt from the
// ops, by device and kind, that nothing else held up. Without it an op that the host was late with would count as held
// up by whatever happened to end during its call.
void StartFinder::add_call_times() {
  ByNumber<Picos> least;
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    const TraceSpan& span = spans_[i];
    const StartFacts& facts = table_.facts[i];
    if (!span.run || !span.submit || facts.dependency > span.queued || facts.queue > span.queued) continue;
    if (facts.room_after != kNoSpan && spans_[facts.room_after].ended > span.queued) continue;
    Picos& known = least[call(span)];  // 0: none yet; kept one too high
    const Picos took = std::clamp<Picos>(span.started - span.queued, 0, kMaxLatency) + 1;
    known = known == 0 ? took : std::min(known, took);
  }
  for (std::size_t i = 0; i < spans_.size(); ++i) {
    const TraceSpan& span = spans_[i];
    if (!span.run || !span.submit) continue;
    const Picos takes = std::max<Picos>(least[call(span)] - 1, 0);
    table_.facts[i].host = std::max(span.queued, std::min(span.queued + takes, span.started));
  }
}

void StartFinder::Lane::pass(const StartFacts& facts, const TraceSpan& span, std::uint32_t index) {
  const Picos own = std::max(facts.host, facts.dependency);
  // Who started although something ahead had not left is not in this lane's order; begin anew.
  if (own >= open || open > span.started) open = own, last = index;
}

// An op leaves its queue when it could start but for its engine; until then it holds those behind it.
void StartFinder::follow_queues() {
  ByNumber<Lane> lanes;
  ByNumber<std::uint64_t> lane_of_stream;
  any_lane_.assign(spans_.size(), {kNever, kNoSpan});
  for (const OpNode& node : graph_.nodes) {
    if (node.kind != NodeKind::kOp || !spans_[node.span].run || spans_[node.span].queue < 0) continue;
    const TraceSpan& span = spans_[node.span];
    StartFacts& facts = table_.facts[node.span];
    std::uint64_t& own_lane = lane_of_stream[span.stream];
    if (span.engine == Engine::kCompute) own_lane = 0;
    else if (span.engine == Engine::kCopyIn) own_lane = 1;
    else if (span.engine == Engine::kCopyOut) own_lane = 2;
    const std::uint64_t queue = ((std::uint64_t{span.device} << 32) + static_cast<std::uint64_t>(span.queue)) * kLanes;
    Lane& lane = lanes[queue + own_lane];
    const bool held = lane.open > std::max(facts.host, facts.dependency) && lane.open <= span.started;
    facts.queue = held ? lane.open : kNever;
    facts.ahead = held ? lane.last : kNoSpan;
    lane.pass(facts, span, node.span);
    Lane& whole = lanes[queue + kAnyLane];
    any_lane_[node.span] = {whole.open, whole.last};
    whole.pass(facts, span, node.span);
  }
}

void StartFinder::decide(std::uint32_t index) {
  const TraceSpan& span = spans_[index];
  StartFacts& facts = table_.facts[index];
  StartReason& start = table_.starts[index];
  start.ready = std::max(span.submit ? span.queued : kNever, facts.dependency);
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
  if (facts.room_after != kNoSpan) {
    const Picos room = spans_[facts.room_after].ended;
    if (room > facts.reason && room <= span.started) later(room, Cause::kEngine, facts.room_after);
    else facts.room_after = kNoSpan;
  }
  if (facts.reason < span.started && !any_lane_.empty()) {
    const auto [open, last] = any_lane_[index];
    if (open > facts.reason && open <= span.started) {
      later(open, Cause::kQueue, last);
      facts.queue = open;
      facts.ahead = last;
    }
  }
  if (facts.reason == kNever) facts.reason = start.ready = span.started, start.cause = Cause::kUnknown;
  if (start.ready == kNever) start.ready = span.started;
  const Picos most = span.submit ? kMaxLatency : kMaxLatencyUnsubmitted;
  if (span.started - facts.reason > most) start.cause = Cause::kUnknown;
}

}  // namespace

StartTable find_starts(const OpGraph& graph, std::span<const TraceSpan> spans, std::span<const EngineUse> engines) {
  return StartFinder(graph, spans).find(engines);
}

}  // namespace slip
