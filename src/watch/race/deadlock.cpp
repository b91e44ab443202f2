// Deadlocks: ops that wait for each other in a cycle, in a plan (verify()) or among the ops of a trace that never ran.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "runtime/backend.hpp"
#include "watch/analysis/op_graph.hpp"
#include "watch/race/stalled_streams.hpp"
#include "watch/race/trace_checks.hpp"

namespace slip::watch {
namespace {

constexpr std::uint32_t kNoOp = ~std::uint32_t{0};

// Ends every op that can end. Each remaining op waits for another remaining op.
class DryRun {
 public:
  explicit DryRun(const std::vector<OpWaits>& ops) : ops_(ops), waiters_(ops.size()) {
    for (std::uint32_t op = 0; op < ops.size(); ++op) {
      for (const std::uint32_t other : ops[op].all) waiters_[other].push_back({op, false});
      for (const std::uint32_t other : ops[op].any) waiters_[other].push_back({op, true});
    }
  }
  // `held`: an op that does not end, so that only the ops end that can end before it.
  void run(std::uint32_t held = kNoOp) {
    left_.assign(ops_.size(), 0);
    ended_.assign(ops_.size(), false);
    any_ended_.clear();
    for (std::uint32_t op = 0; op < ops_.size(); ++op) {
      left_[op] = static_cast<std::uint32_t>(ops_[op].all.size()) + (ops_[op].any.empty() ? 0 : 1);
      if (op == held) ++left_[op];
      if (left_[op] == 0) end(op);
    }
    while (!ready_.empty()) {
      const std::uint32_t op = ready_.back();
      ready_.pop_back();
      for (const Waiter& waiter : waiters_[op]) release(waiter);
    }
  }
  bool ended(std::uint32_t op) const { return ended_[op]; }

 private:
  struct Waiter {
    std::uint32_t op;
    bool any;
  };
  void end(std::uint32_t op) {
    ended_[op] = true;
    ready_.push_back(op);
  }
  void release(const Waiter& waiter) {
    if (ended_[waiter.op]) return;
    if (waiter.any) {
      if (any_ended_.size() <= waiter.op) any_ended_.resize(ops_.size());
      if (any_ended_[waiter.op]) return;
      any_ended_[waiter.op] = true;
    }
    if (--left_[waiter.op] == 0) end(waiter.op);
  }

  const std::vector<OpWaits>& ops_;
  std::vector<std::uint32_t> left_;
  std::vector<bool> ended_, any_ended_;
  std::vector<std::vector<Waiter>> waiters_;
  std::vector<std::uint32_t> ready_;
};

// The ops of a trace that never ran, and the ops that each of them waits for.
class UnfinishedOps {
 public:
  UnfinishedOps(const TraceData& trace, std::span<const TraceSpan> spans)
      : spans_(spans), number_(spans.size(), kNoSpan) {
    for (std::uint32_t span = 0; span < spans.size(); ++span) {
      if (spans[span].run || !spans[span].submit) continue;
      number_[span] = static_cast<std::uint32_t>(ops_.size());
      ops_.push_back(span);
    }
    if (ops_.empty()) return;
    waits_.resize(ops_.size());
    follow_order(op_graph(trace, spans));
    follow_flags();
    follow_queues();
  }

  std::vector<Deadlock> deadlocks() const {
    const std::vector<std::uint32_t> cycle = find_cycle(waits_);
    if (cycle.empty()) return {};
    Deadlock result;
    for (std::size_t i = 0; i < cycle.size(); ++i) {
      const std::uint32_t op = cycle[i], next = cycle[(i + 1) % cycle.size()];
      result.cycle.push_back({place_of(spans_[ops_[op]]), why(op, next)});
    }
    return {result};
  }

 private:
  const TraceSpan& span(std::uint32_t op) const { return spans_[ops_[op]]; }

  void follow_order(const OpGraph& graph) {
    for (std::uint32_t op = 0; op < ops_.size(); ++op) {
      for (const std::uint32_t before : graph.predecessors(ops_[op])) {
        if (number_[before] != kNoSpan) waits_[op].all.push_back(number_[before]);
      }
    }
  }

  // A wait is ignored if an op of the trace has already written the flag, or if no op of the trace writes it.
  void follow_flags() {
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<const TraceSpan*>> writers;
    for (const TraceSpan& one : spans_) {
      if (one.submit && one.kind == OpKind::kWriteValue && !one.writes.empty())
        writers[{one.writes[0].buffer, one.writes[0].offset}].push_back(&one);
    }
    for (std::uint32_t op = 0; op < ops_.size(); ++op) {
      if (span(op).kind != OpKind::kWaitValue || span(op).reads.empty()) continue;
      std::vector<std::uint32_t> any;
      bool written = false;
      for (const TraceSpan* writer : writers[{span(op).reads[0].buffer, span(op).reads[0].offset}]) {
        if (!runtime::ends_wait(writer->submit->value, span(op).submit->value)) continue;
        const std::uint32_t number = number_[static_cast<std::size_t>(writer - spans_.data())];
        written = written || number == kNoSpan;
        any.push_back(number);
      }
      if (!written) waits_[op].any = std::move(any);
    }
  }

  // An op starts after the ops ahead of it in its hardware queue. The queue of a stream is known from its ops that ran.
  void follow_queues() {
    std::unordered_map<std::uint64_t, std::int32_t> queue_of;
    for (const TraceSpan& one : spans_) {
      if (one.run && one.queue >= 0) queue_of[one.stream] = one.queue;
    }
    std::map<std::pair<std::uint32_t, std::int32_t>, std::uint32_t> last;
    for (std::uint32_t op = 0; op < ops_.size(); ++op) {
      const auto queue = queue_of.find(span(op).stream);
      if (queue == queue_of.end()) continue;
      const auto [ahead, first] = last.try_emplace({span(op).device, queue->second}, op);
      if (!first && span(ahead->second).stream != span(op).stream) waits_[op].all.push_back(ahead->second);
      ahead->second = op;
    }
  }

  std::string_view why(std::uint32_t op, std::uint32_t next) const {
    const std::vector<std::uint32_t>& any = waits_[op].any;
    if (std::find(any.begin(), any.end(), next) != any.end()) return "waits for the flag that is written by";
    if (span(op).stream == span(next).stream) return "comes in its stream after";
    return "waits for";
  }

  std::span<const TraceSpan> spans_;
  std::vector<std::uint32_t> number_;  // index in ops_ by span; kNoSpan: the op ran, or was not submitted
  std::vector<std::uint32_t> ops_;     // span indices
  std::vector<OpWaits> waits_;
};

}  // namespace

std::vector<std::uint32_t> find_cycle(const std::vector<OpWaits>& ops) {
  DryRun run(ops);
  run.run();
  const auto first_left = [&](const std::vector<std::uint32_t>& list) {
    return std::find_if(list.begin(), list.end(), [&](std::uint32_t op) { return !run.ended(op); });
  };
  std::uint32_t op = 0;
  while (op < ops.size() && run.ended(op)) ++op;
  if (op == ops.size()) return {};
  // Each remaining op waits for another remaining op, so the path must return to one of its own ops.
  std::vector<std::uint32_t> path;
  std::vector<bool> seen(ops.size());
  while (!seen[op]) {
    seen[op] = true;
    path.push_back(op);
    const auto next = first_left(ops[op].all);
    op = next != ops[op].all.end() ? *next : *first_left(ops[op].any);
  }
  path.erase(path.begin(), std::find(path.begin(), path.end(), op));
  return path;
}

void remove_later_writers(std::vector<OpWaits>& ops) {
  DryRun run(ops);
  for (std::uint32_t op = 0; op < ops.size(); ++op) {
    std::vector<std::uint32_t>& any = ops[op].any;
    if (any.size() < 2) continue;
    run.run(op);
    // `run` still knows the removed ops. That changes nothing: they do not end before this op in any run.
    const auto later = [&run](std::uint32_t other) { return !run.ended(other); };
    if (!std::all_of(any.begin(), any.end(), later)) std::erase_if(any, later);
  }
}

std::vector<Deadlock> find_deadlocks(const TraceData& trace, std::span<const TraceSpan> spans) {
  return UnfinishedOps(trace, spans).deadlocks();
}

}  // namespace slip::watch
