// The order of calls with the smallest maximum lateness: how much later than it is due a call ends. plan_buckets uses
// it.
#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>

#include "flow/gradients/bucket_plan.hpp"

namespace slip::flow {
namespace {

constexpr Picos kFar = std::numeric_limits<Picos>::max() / 2;

// A schedule, with the two positions that Carlier's branching needs. `critical` is the call with the maximum lateness.
// `begin` is the first call of the run without idle time that contains the critical call.
struct CallSchedule : OrderedCalls {
  std::size_t critical = 0, begin = 0;  // indices into `calls`
};

// Schrage's rule: always runs the ready call that is due first. It never stays idle while a call is ready.
class DueFirst {
 public:
  CallSchedule operator()(std::span<const TimedCall> calls) {
    by_ready_.resize(calls.size());
    std::iota(by_ready_.begin(), by_ready_.end(), 0U);
    std::ranges::stable_sort(by_ready_, {}, [&](std::uint32_t i) { return calls[i].ready; });
    const auto later = [&](std::uint32_t a, std::uint32_t b) {
      return calls[a].due != calls[b].due ? calls[a].due > calls[b].due : a > b;
    };
    waiting_.clear();
    CallSchedule schedule;
    schedule.calls.reserve(calls.size());
    schedule.lateness = std::numeric_limits<Picos>::min();
    Picos now = std::numeric_limits<Picos>::min();
    std::size_t next = 0, run = 0;
    while (schedule.calls.size() < calls.size()) {
      if (waiting_.empty() && calls[by_ready_[next]].ready > now) {
        now = calls[by_ready_[next]].ready;
        run = schedule.calls.size();
      }
      for (; next < calls.size() && calls[by_ready_[next]].ready <= now; ++next) {
        waiting_.push_back(by_ready_[next]);
        std::push_heap(waiting_.begin(), waiting_.end(), later);
      }
      std::pop_heap(waiting_.begin(), waiting_.end(), later);
      const std::uint32_t chosen = waiting_.back();
      waiting_.pop_back();
      now += calls[chosen].time;
      if (now - calls[chosen].due >= schedule.lateness) {
        schedule.lateness = now - calls[chosen].due;
        schedule.critical = schedule.calls.size();
        schedule.begin = run;
      }
      schedule.calls.push_back(chosen);
    }
    return schedule;
  }

 private:
  std::vector<std::uint32_t> by_ready_, waiting_;
};

// The lateness if calls could be interrupted: a lower bound for every order.
Picos min_lateness(std::span<const TimedCall> calls) {
  std::vector<std::uint32_t> by_ready(calls.size());
  std::iota(by_ready.begin(), by_ready.end(), 0U);
  std::ranges::sort(by_ready, {}, [&](std::uint32_t i) { return calls[i].ready; });
  struct Rest {
    Picos due, time;
    bool operator<(const Rest& other) const { return due > other.due; }
  };
  std::priority_queue<Rest> waiting;
  Picos now = std::numeric_limits<Picos>::min(), latest = std::numeric_limits<Picos>::min();
  for (std::size_t next = 0; next < calls.size() || !waiting.empty();) {
    if (waiting.empty()) now = std::max(now, calls[by_ready[next]].ready);
    for (; next < calls.size() && calls[by_ready[next]].ready <= now; ++next)
      waiting.push({calls[by_ready[next]].due, calls[by_ready[next]].time});
    Rest rest = waiting.top();
    waiting.pop();
    const Picos until = next < calls.size() ? calls[by_ready[next]].ready : kFar;
    const Picos runs = std::min(rest.time, until - now);
    now += runs;
    rest.time -= runs;
    if (rest.time > 0) waiting.push(rest);
    else latest = std::max(latest, now - rest.due);
  }
  return latest;
}

class Carlier {
 public:
  Carlier(std::span<const TimedCall> calls, int nodes)
      : given_(calls), calls_(calls.begin(), calls.end()), nodes_(nodes) {
    search();
    result_.exact = !ran_out_;
  }
  OrderedCalls result() && { return std::move(result_); }

 private:
  // Each branch changes one call and restores it when it returns. The best order is in one of a node's two branches.
  void search() {
    if (nodes_-- <= 0) {
      ran_out_ = true;
      return;
    }
    const CallSchedule schedule = due_first_(calls_);
    const Picos lateness = lateness_of(schedule.calls);
    if (result_.calls.empty() || lateness < result_.lateness) {
      result_.calls = schedule.calls;
      result_.lateness = lateness;
    }
    const TimedCall& critical = calls_[schedule.calls[schedule.critical]];
    // Finds the last call before the critical call, in the same run, that is due later. It delays the critical call.
    // The calls after it, up to the critical call, are at [behind, critical].
    std::size_t behind = schedule.critical;
    while (behind > schedule.begin && calls_[schedule.calls[behind - 1]].due <= critical.due) --behind;
    if (behind == schedule.begin) return;  // there is no such call: this schedule is optimal
    const std::uint32_t other = schedule.calls[behind - 1];
    Picos first = std::numeric_limits<Picos>::max(), time = 0;
    for (std::size_t i = behind; i <= schedule.critical; ++i) {
      first = std::min(first, calls_[schedule.calls[i]].ready);
      time += calls_[schedule.calls[i]].time;
    }
    const TimedCall kept = calls_[other];
    // In an optimal order `other` runs before all calls of [behind, critical], or after all of them.
    branch(other, {kept.ready, kept.time, std::min(kept.due, critical.due - time)});
    branch(other, {std::max(kept.ready, first + time), kept.time, kept.due});
  }

  // Uses the given times, not the times that the branches have changed.
  Picos lateness_of(const std::vector<std::uint32_t>& order) const {
    Picos now = -kFar, latest = -kFar;
    for (const std::uint32_t call : order) {
      now = std::max(now, given_[call].ready) + given_[call].time;
      latest = std::max(latest, now - given_[call].due);
    }
    return latest;
  }

  void branch(std::uint32_t call, const TimedCall& changed) {
    const TimedCall kept = calls_[call];
    calls_[call] = changed;
    if (min_lateness(calls_) < result_.lateness) search();
    calls_[call] = kept;
  }

  const std::span<const TimedCall> given_;
  std::vector<TimedCall> calls_;  // with the changes of the current branches
  DueFirst due_first_;
  OrderedCalls result_;
  int nodes_;  // that the search may still visit
  bool ran_out_ = false;
};

}  // namespace

OrderedCalls due_first(std::span<const TimedCall> calls) {
  if (calls.empty()) return {.exact = true};
  return DueFirst{}(calls);
}

OrderedCalls best_order(std::span<const TimedCall> calls, int nodes) {
  if (calls.empty()) return {.exact = true};
  return Carlier(calls, std::max(nodes, 1)).result();
}

}  // namespace slip::flow
