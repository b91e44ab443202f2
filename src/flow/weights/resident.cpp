#include "flow/weights/resident.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "flow/weights/weight_groups.hpp"

namespace slip {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kCloseEnough = 1.0005;  // of the bound: better is not worth the search
using Set = std::vector<char>;           // by unit: 1 stays resident

// The cost of a choice, and bounds on choices that are made in part.
class Ground {
 public:
  explicit Ground(const ResidentProblem& problem) : problem_(problem), load_times_(problem.units.size(), 0.0) {
    for (const WeightLoad& load : problem.loads) load_times_[load.unit] += problem.pace.loads[load.unit];
    compute_ = std::accumulate(problem.pace.ops.begin(), problem.pace.ops.end(), 0.0);
    by_worth_.resize(problem.units.size());
    std::iota(by_worth_.begin(), by_worth_.end(), 0U);
    std::ranges::stable_sort(by_worth_, [&](std::uint32_t a, std::uint32_t b) { return worth(a) > worth(b); });
  }

  std::uint64_t bytes(std::uint32_t unit) const { return aligned(problem_.units[unit].bytes); }
  double load_time(std::uint32_t unit) const { return load_times_[unit]; }
  double compute() const { return compute_; }
  bool must_stay(std::uint32_t unit) const { return bytes(unit) > problem_.ring; }
  const std::vector<std::uint32_t>& by_worth() const { return by_worth_; }

  double step_of(const Set& resident) {
    ++looked_at;
    effort += 3 * problem_.pace.ops.size();
    if (!streamed_loads(problem_, resident, scratch_)) return kNever;
    return period_of(problem_.pace, scratch_).step;
  }

  // Units by_worth_[from...] are open, `room` is left for them, the others load for `loading`: the open ones that are
  // worth most stay, the last of them in part.
  double bound(std::size_t from, std::uint64_t room, double loading) {
    effort += by_worth_.size() - from;
    for (std::size_t i = from; i < by_worth_.size(); ++i) {
      const std::uint32_t unit = by_worth_[i];
      const double part = room >= bytes(unit) ? 1.0 : static_cast<double>(room) / static_cast<double>(bytes(unit));
      loading += load_times_[unit] * (1 - part);
      room -= std::min(room, bytes(unit));
    }
    return min_period(problem_.pace, compute_, loading);
  }

  // The recurrence for the units that are surely streamed, with a ring that knows no borders and nothing that slows:
  // more loads never make its steady state shorter, so it bounds every choice that streams at least these. Of the ends
  // of all ops and loads, the one that moves least from a step to the next bounds the steady state from below.
  double bound_of_streamed(const Set& maybe_resident);

  const ResidentProblem& problem() const { return problem_; }
  std::uint64_t looked_at = 0;  // choices
  std::uint64_t effort = 0;     // ops looked at: the same on every machine, unlike time

 private:
  double worth(std::uint32_t unit) const { return load_times_[unit] / static_cast<double>(bytes(unit)); }

  const ResidentProblem& problem_;
  std::vector<double> load_times_;
  double compute_ = 0;
  std::vector<std::uint32_t> by_worth_;
  std::vector<WeightLoad> scratch_;
  std::vector<double> op_ends_, load_ends_;
};

double Ground::bound_of_streamed(const Set& maybe_resident) {
  constexpr std::size_t kSteps = 4;
  effort += kSteps * problem_.pace.ops.size();
  scratch_.clear();
  for (const WeightLoad& load : problem_.loads) {
    if (!maybe_resident[load.unit]) scratch_.push_back(load);
  }
  const std::size_t ops = problem_.pace.ops.size(), loads = scratch_.size();
  op_ends_.assign(ops * kSteps, 0.0);
  load_ends_.assign(loads * kSteps, 0.0);
  double load_end = 0, op_end = 0;
  std::size_t oldest = 0, next = 0;  // of the loads that fill the ring, over all steps
  std::uint64_t in_ring = 0;
  for (std::size_t at = 0; at < ops * kSteps; ++at) {
    const std::size_t op = at % ops, step_loads = at / ops * loads;
    for (; next < step_loads + loads && scratch_[next - step_loads].first_op == op; ++next) {
      const std::uint32_t unit = scratch_[next - step_loads].unit;
      for (in_ring += bytes(unit); in_ring > problem_.ring; ++oldest) {
        const WeightLoad& old = scratch_[oldest % loads];
        const std::size_t used_by = oldest / loads * ops + old.last_op;
        if (used_by < at) load_end = std::max(load_end, op_ends_[used_by]);
        in_ring -= bytes(old.unit);
      }
      load_end += problem_.pace.loads[unit];
      load_ends_[next] = load_end;
      op_end = std::max(op_end, load_end);
    }
    op_end += problem_.pace.ops[op];
    op_ends_[at] = op_end;
  }
  double least = kNever;
  for (std::size_t i = ops * (kSteps - 1); i < op_ends_.size(); ++i)
    least = std::min(least, op_ends_[i] - op_ends_[i - ops]);
  for (std::size_t i = loads * (kSteps - 1); i < load_ends_.size(); ++i)
    least = std::min(least, load_ends_[i] - load_ends_[i - loads]);
  return least;
}

// Fills what room is left, the most worth first.
void fill_up(const Ground& ground, Set& resident, std::uint64_t room) {
  for (const std::uint32_t unit : ground.by_worth()) {
    if (resident[unit] || ground.bytes(unit) > room) continue;
    resident[unit] = 1;
    room -= ground.bytes(unit);
  }
}

// Takes units in this order while they fit. False: those that must stay do not fit.
bool take_in_order(const Ground& ground, std::span<const std::uint32_t> order, std::uint64_t room, Set& resident) {
  resident.assign(order.size(), 0);
  for (std::uint32_t unit = 0; unit < order.size(); ++unit) {
    if (!ground.must_stay(unit)) continue;
    if (ground.bytes(unit) > room) return false;
    resident[unit] = 1;
    room -= ground.bytes(unit);
  }
  for (const std::uint32_t unit : order) {
    if (resident[unit] || ground.bytes(unit) > room) continue;
    resident[unit] = 1;
    room -= ground.bytes(unit);
  }
  return true;
}

// Streams the share of the bytes that must be, spread evenly over the step.
bool take_strided(const Ground& ground, std::uint64_t room, double phase, Set& resident) {
  const auto units = static_cast<std::uint32_t>(ground.problem().units.size());
  resident.assign(units, 0);
  double total = 0;
  std::uint64_t left = room;
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    total += static_cast<double>(ground.bytes(unit));
    if (!ground.must_stay(unit)) continue;
    if (ground.bytes(unit) > left) return false;
    resident[unit] = 1;
    left -= ground.bytes(unit);
    total -= static_cast<double>(ground.bytes(unit));
  }
  const double share = total > 0 ? std::min(1.0, static_cast<double>(left) / total) : 0;
  double owed = phase * static_cast<double>(left) / std::max(1U, units);
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    if (resident[unit]) continue;
    const auto bytes = static_cast<double>(ground.bytes(unit));
    owed += bytes * share;
    if (owed < bytes / 2 || ground.bytes(unit) > left) continue;
    resident[unit] = 1;
    left -= ground.bytes(unit);
    owed -= bytes;
  }
  fill_up(ground, resident, left);
  return true;
}

class Search {
 public:
  explicit Search(const ResidentProblem& problem) : ground_(problem) {
    best_.bound = ground_.bound(0, problem.capacity, 0);
    best_.step = kNever;
  }

  void guess() {
    const std::uint64_t room = ground_.problem().capacity;
    Set set;
    for (const double phase : {0.0, 0.5, 1.0}) {
      if (!take_strided(ground_, room, phase, set)) return;  // what must stay does not fit
      offer(set);
      if (close_enough()) return;
    }
    std::vector<std::uint32_t> order(ground_.problem().units.size());
    std::iota(order.begin(), order.end(), 0U);
    const auto try_order = [&] {
      if (!close_enough() && take_in_order(ground_, order, room, set)) offer(set);
    };
    try_order();
    std::ranges::reverse(order);
    try_order();
    std::ranges::stable_sort(order, [&](auto a, auto b) { return ground_.bytes(a) > ground_.bytes(b); });
    try_order();
    std::ranges::reverse(order);
    try_order();
    order = ground_.by_worth();
    try_order();
  }

  // Exchanges a resident unit for a streamed one while that helps.
  void exchange(std::uint64_t effort) {
    if (best_.step == kNever) return;
    for (bool better = true; better && !close_enough();) {
      better = false;
      Set set = best_.resident;
      std::uint64_t used = 0;
      for (std::uint32_t unit = 0; unit < set.size(); ++unit) used += set[unit] ? ground_.bytes(unit) : 0;
      for (std::uint32_t out = 0; out < set.size() && !better; ++out) {
        if (!set[out] || ground_.must_stay(out)) continue;
        for (std::uint32_t in = 0; in < set.size() && !better; ++in) {
          if (set[in] || used - ground_.bytes(out) + ground_.bytes(in) > ground_.problem().capacity) continue;
          if (ground_.effort > effort) return;
          set[out] = 0, set[in] = 1;
          better = offer(set);
          if (!better) set[out] = 1, set[in] = 0;
        }
      }
    }
  }

  // Decides unit after unit, the most worth first, to stay and then to pass.
  void branch_and_bound(std::uint64_t effort) {
    if (close_enough()) return;
    max_effort_ = effort;
    open_ = kNever;
    Set set(ground_.problem().units.size(), 1);  // undecided ones count as resident: that only shortens
    descend(set, 0, ground_.problem().capacity, 0, best_.bound);
    best_.bound = std::max(best_.bound, std::min(best_.step, open_));
  }

  ResidentChoice result() {
    best_.looked_at = ground_.looked_at;
    best_.bound = std::min(best_.bound, best_.step);
    return std::move(best_);
  }

 private:
  bool close_enough() const { return best_.step <= best_.bound * kCloseEnough; }

  bool offer(const Set& set) {
    const double step = ground_.step_of(set);
    if (step >= best_.step) return false;
    best_.step = step;
    best_.resident = set;
    return true;
  }

  void descend(Set& set, std::size_t depth, std::uint64_t room, double loading, double bound) {
    if (bound * kCloseEnough >= best_.step) return;  // nothing better below
    if (ground_.effort > max_effort_) {
      open_ = std::min(open_, bound);
      return;
    }
    if (depth == set.size()) {
      offer(set);
      return;
    }
    const std::uint32_t unit = ground_.by_worth()[depth];
    if (ground_.bytes(unit) <= room) descend(set, depth + 1, room - ground_.bytes(unit), loading, bound);
    if (ground_.must_stay(unit)) return;
    // The way back from the last unit bounds what was left open at each, which takes time for each unit again.
    if (ground_.effort > 2 * max_effort_) {
      open_ = std::min(open_, bound);
      return;
    }
    set[unit] = 0;
    const double load = loading + ground_.load_time(unit);
    double below = std::max(bound, ground_.bound(depth + 1, room, load));
    if (below * kCloseEnough < best_.step) below = std::max(below, ground_.bound_of_streamed(set));
    descend(set, depth + 1, room, load, below);
    set[unit] = 1;
  }

  Ground ground_;
  ResidentChoice best_;
  std::uint64_t max_effort_ = 0;
  double open_ = kNever;  // the lowest bound of what was not looked at
};

}  // namespace

bool streamed_loads(const ResidentProblem& problem, const std::vector<char>& resident, std::vector<WeightLoad>& loads) {
  loads.clear();
  for (const WeightLoad& load : problem.loads) {
    if (!resident[load.unit]) loads.push_back(load);
  }
  return lay_ring(problem.units, loads, problem.ring);
}

ResidentChoice guess_resident(const ResidentProblem& problem) {
  Search search(problem);
  search.guess();
  return search.result();
}

ResidentChoice search_resident(const ResidentProblem& problem, std::uint64_t effort) {
  Search search(problem);
  search.guess();
  search.exchange(effort / 2);
  search.branch_and_bound(effort);
  return search.result();
}

}  // namespace slip
