#include "flow/weights/resident.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "flow/weights/weight_groups.hpp"

namespace slip::flow {
namespace {

constexpr double kCloseEnough = 1.0005;  // times the bound: a better choice is not worth the search
using ResidentSet = std::vector<char>;   // by group: 1 stays resident

// A group that is larger than the ring cannot be decoded into it.
bool stays_packed(const ResidentProblem& problem, std::uint32_t group) {
  return !problem.packed.empty() && problem.packed[group] && aligned(problem.groups[group].bytes) <= problem.ring;
}

// The length of a step with a given choice, and lower bounds for choices that are only partly made.
class ChoiceCosts {
 public:
  explicit ChoiceCosts(const ResidentProblem& problem)
      : problem_(problem), load_times_(problem.groups.size(), 0.0), decode_times_(problem.groups.size(), 0.0) {
    for (const WeightLoad& load : problem.loads) {
      load_times_[load.group] += problem.step_costs.loads[load.group];
      decode_times_[load.group] += problem.step_costs.decodes[load.group];
    }
    compute_ = std::accumulate(problem.step_costs.ops.begin(), problem.step_costs.ops.end(), 0.0);
    by_worth_.resize(problem.groups.size());
    std::iota(by_worth_.begin(), by_worth_.end(), 0U);
    std::ranges::stable_sort(by_worth_, [&](std::uint32_t a, std::uint32_t b) { return worth(a) > worth(b); });
  }

  // As a resident group.
  std::uint64_t bytes(std::uint32_t group) const {
    const WeightGroup& one = problem_.groups[group];
    return aligned(stays_packed(problem_, group) ? one.compressed_bytes : one.bytes);
  }
  double load_time(std::uint32_t group) const { return load_times_[group]; }
  double decode_time(std::uint32_t group, bool resident) const {
    return resident && !stays_packed(problem_, group) ? 0 : decode_times_[group];
  }
  bool must_stay(std::uint32_t group) const { return aligned(problem_.groups[group].bytes) > problem_.ring; }
  const std::vector<std::uint32_t>& by_worth() const { return by_worth_; }

  double step_of(const ResidentSet& resident) {
    effort += 3 * problem_.step_costs.ops.size();
    if (!streamed_loads(problem_, resident, scratch_)) return kInfinite;
    return steady_step_of(problem_.step_costs, scratch_, resident).step;
  }

  // Lower bound when the groups by_worth_[from...] are undecided, `room` bytes are left for them, and the decided ones
  // load for `loading` and decode for `decoding`. As in a fractional knapsack, the groups with the longest load time
  // per byte stay, the last of them in part.
  double bound(std::size_t from, std::uint64_t room, double loading, double decoding) {
    effort += by_worth_.size() - from;
    for (std::size_t i = from; i < by_worth_.size(); ++i) {
      const std::uint32_t group = by_worth_[i];
      const double part = room >= bytes(group) ? 1.0 : static_cast<double>(room) / static_cast<double>(bytes(group));
      loading += load_times_[group] * (1 - part);
      room -= std::min(room, bytes(group));
    }
    return min_steady_step(problem_.step_costs, compute_ + decoding, loading);
  }

  // Lower bound for every choice that streams at least the groups that are not in `maybe_resident`. It evaluates the
  // recurrence (recurrence.hpp) for these groups, without slowdowns and with a ring that loses no bytes at its end.
  // More loads never make its steady state shorter. Of the ends of all ops and loads, the smallest increase from one
  // step to the next is the bound. A compressed group is copied to a slot, so its copy does not wait for a place in the
  // ring; only its decoding does.
  double bound_of_streamed(const ResidentSet& maybe_resident);

  const ResidentProblem& problem() const { return problem_; }
  std::uint64_t effort = 0;  // ops evaluated; unlike time it is the same on every machine

 private:
  double worth(std::uint32_t group) const { return load_times_[group] / static_cast<double>(bytes(group)); }

  const ResidentProblem& problem_;
  std::vector<double> load_times_, decode_times_;  // by group, of all its loads
  double compute_ = 0;
  std::vector<std::uint32_t> by_worth_;
  std::vector<WeightLoad> scratch_;
  std::vector<double> op_ends_, load_ends_;
};

double ChoiceCosts::bound_of_streamed(const ResidentSet& maybe_resident) {
  constexpr std::size_t kSteps = 4;
  effort += kSteps * problem_.step_costs.ops.size();
  scratch_.clear();
  for (const WeightLoad& load : problem_.loads) {
    if (!maybe_resident[load.group]) scratch_.push_back(load);
  }
  const std::size_t ops = problem_.step_costs.ops.size(), loads = scratch_.size();
  op_ends_.assign(ops * kSteps, 0.0);
  load_ends_.assign(loads * kSteps, 0.0);
  double load_end = 0, op_end = 0;
  std::size_t oldest = 0, next = 0;  // loads in the ring: [oldest, next), counted over all steps
  std::uint64_t in_ring = 0;
  for (std::size_t at = 0; at < ops * kSteps; ++at) {
    const std::size_t op = at % ops, step_loads = at / ops * loads;
    for (; next < step_loads + loads && scratch_[next - step_loads].first_op == op; ++next) {
      const std::uint32_t group = scratch_[next - step_loads].group;
      for (in_ring += aligned(problem_.groups[group].bytes); in_ring > problem_.ring; ++oldest) {
        const WeightLoad& old = scratch_[oldest % loads];
        const std::size_t used_by = oldest / loads * ops + old.last_op;
        if (used_by < at && problem_.step_costs.decodes[group] <= 0) load_end = std::max(load_end, op_ends_[used_by]);
        in_ring -= aligned(problem_.groups[old.group].bytes);
      }
      load_end += problem_.step_costs.loads[group];
      load_ends_[next] = load_end;
      op_end = std::max(op_end, load_end) + problem_.step_costs.decodes[group];
    }
    op_end += problem_.step_costs.ops[op];
    op_ends_[at] = op_end;
  }
  double min_step = kInfinite;
  for (std::size_t i = ops * (kSteps - 1); i < op_ends_.size(); ++i)
    min_step = std::min(min_step, op_ends_[i] - op_ends_[i - ops]);
  for (std::size_t i = loads * (kSteps - 1); i < load_ends_.size(); ++i)
    min_step = std::min(min_step, load_ends_[i] - load_ends_[i - loads]);
  return min_step;
}

// Makes the groups resident that must stay. Returns the rest of `room`, or nothing if they do not fit.
std::optional<std::uint64_t> take_required(const ChoiceCosts& costs, std::uint64_t room, ResidentSet& resident) {
  resident.assign(costs.problem().groups.size(), 0);
  for (std::uint32_t group = 0; group < resident.size(); ++group) {
    if (!costs.must_stay(group)) continue;
    if (costs.bytes(group) > room) return std::nullopt;
    resident[group] = 1;
    room -= costs.bytes(group);
  }
  return room;
}

// Makes more groups resident, in this order, while they fit into `room`.
void fill_up(const ChoiceCosts& costs, std::span<const std::uint32_t> order, std::uint64_t room,
             ResidentSet& resident) {
  for (const std::uint32_t group : order) {
    if (resident[group] || costs.bytes(group) > room) continue;
    resident[group] = 1;
    room -= costs.bytes(group);
  }
}

// Spreads the streamed groups evenly over the step.
bool take_strided(const ChoiceCosts& costs, std::uint64_t room, double phase, ResidentSet& resident) {
  const auto groups = static_cast<std::uint32_t>(costs.problem().groups.size());
  const std::optional<std::uint64_t> rest = take_required(costs, room, resident);
  if (!rest) return false;
  std::uint64_t left = *rest;
  double total = 0;
  for (std::uint32_t group = 0; group < groups; ++group)
    total += resident[group] ? 0 : static_cast<double>(costs.bytes(group));
  const double share = total > 0 ? std::min(1.0, static_cast<double>(left) / total) : 0;
  double owed = phase * static_cast<double>(left) / std::max(1U, groups);
  for (std::uint32_t group = 0; group < groups; ++group) {
    if (resident[group]) continue;
    const auto bytes = static_cast<double>(costs.bytes(group));
    owed += bytes * share;
    if (owed < bytes / 2 || costs.bytes(group) > left) continue;
    resident[group] = 1;
    left -= costs.bytes(group);
    owed -= bytes;
  }
  fill_up(costs, costs.by_worth(), left, resident);
  return true;
}

class ResidentSearch {
 public:
  explicit ResidentSearch(const ResidentProblem& problem) : costs_(problem) {
    best_.bound = costs_.bound(0, problem.capacity, 0, 0);
    best_.step = kInfinite;
  }

  void guess() {
    const std::uint64_t room = costs_.problem().capacity;
    ResidentSet set;
    for (const double phase : {0.0, 0.5, 1.0}) {
      if (!take_strided(costs_, room, phase, set)) return;  // the groups that must stay do not fit
      offer(set);
      if (close_enough()) return;
    }
    std::vector<std::uint32_t> order(costs_.problem().groups.size());
    std::iota(order.begin(), order.end(), 0U);
    const auto try_order = [&] {
      if (close_enough()) return;
      fill_up(costs_, order, take_required(costs_, room, set).value(), set);
      offer(set);
    };
    try_order();
    std::ranges::reverse(order);
    try_order();
    std::ranges::stable_sort(order, [&](auto a, auto b) { return costs_.bytes(a) > costs_.bytes(b); });
    try_order();
    std::ranges::reverse(order);
    try_order();
    order = costs_.by_worth();
    try_order();
  }

  // Exchanges a resident group for a streamed one as long as the step gets shorter.
  void exchange(std::uint64_t effort) {
    if (best_.step == kInfinite) return;
    for (bool better = true; better && !close_enough();) {
      better = false;
      ResidentSet set = best_.resident;
      std::uint64_t used = 0;
      for (std::uint32_t group = 0; group < set.size(); ++group) used += set[group] ? costs_.bytes(group) : 0;
      for (std::uint32_t out = 0; out < set.size() && !better; ++out) {
        if (!set[out] || costs_.must_stay(out)) continue;
        for (std::uint32_t in = 0; in < set.size() && !better; ++in) {
          if (set[in] || used - costs_.bytes(out) + costs_.bytes(in) > costs_.problem().capacity) continue;
          if (costs_.effort > effort) return;
          set[out] = 0, set[in] = 1;
          better = offer(set);
          if (!better) set[out] = 1, set[in] = 0;
        }
      }
    }
  }

  // Decides group by group in the order of worth: first it is resident, then it is streamed.
  void branch_and_bound(std::uint64_t effort) {
    if (close_enough()) return;
    max_effort_ = effort;
    open_ = kInfinite;
    ResidentSet set(costs_.problem().groups.size(), 1);  // undecided groups count as resident: still a lower bound
    descend(set, 0, costs_.problem().capacity, {}, best_.bound);
    best_.bound = std::max(best_.bound, std::min(best_.step, open_));
  }

  ResidentChoice result() {
    best_.bound = std::min(best_.bound, best_.step);
    return std::move(best_);
  }

 private:
  bool close_enough() const { return best_.step <= best_.bound * kCloseEnough; }

  bool offer(const ResidentSet& set) {
    const double step = costs_.step_of(set);
    if (step >= best_.step) return false;
    best_.step = step;
    best_.resident = set;
    return true;
  }

  // Of the groups that are decided.
  struct Decided {
    double loading = 0, decoding = 0;
  };
  void descend(ResidentSet& set, std::size_t depth, std::uint64_t room, Decided decided, double bound) {
    if (bound * kCloseEnough >= best_.step) return;  // no choice in this branch is better
    if (costs_.effort > max_effort_) {
      open_ = std::min(open_, bound);
      return;
    }
    if (depth == set.size()) {
      offer(set);
      return;
    }
    const std::uint32_t group = costs_.by_worth()[depth];
    if (costs_.bytes(group) <= room)
      descend(set, depth + 1, room - costs_.bytes(group),
              {decided.loading, decided.decoding + costs_.decode_time(group, true)}, bound);
    if (costs_.must_stay(group)) return;
    // When the effort is used up, each level on the way back still computes the bound of its other branch; this limits
    // that work, too.
    if (costs_.effort > 2 * max_effort_) {
      open_ = std::min(open_, bound);
      return;
    }
    set[group] = 0;
    const Decided streamed{decided.loading + costs_.load_time(group),
                           decided.decoding + costs_.decode_time(group, false)};
    double below = std::max(bound, costs_.bound(depth + 1, room, streamed.loading, streamed.decoding));
    if (below * kCloseEnough < best_.step) below = std::max(below, costs_.bound_of_streamed(set));
    descend(set, depth + 1, room, streamed, below);
    set[group] = 1;
  }

  ChoiceCosts costs_;
  ResidentChoice best_;
  std::uint64_t max_effort_ = 0;
  double open_ = kInfinite;  // the lowest bound of all branches that were not searched
};

}  // namespace

bool streamed_loads(const ResidentProblem& problem, const std::vector<char>& resident, std::vector<WeightLoad>& loads) {
  loads.clear();
  for (const WeightLoad& load : problem.loads) {
    if (!resident[load.group] || stays_packed(problem, load.group)) loads.push_back(load);
  }
  return lay_ring(problem.groups, loads, problem.ring);
}

ResidentChoice guess_resident(const ResidentProblem& problem) {
  ResidentSearch search(problem);
  search.guess();
  return search.result();
}

ResidentChoice search_resident(const ResidentProblem& problem, std::uint64_t effort) {
  ResidentSearch search(problem);
  search.guess();
  search.exchange(effort / 2);
  search.branch_and_bound(effort);
  return search.result();
}

}  // namespace slip::flow
