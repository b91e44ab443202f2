// The planner: starts from the borders of dynamic programming with buckets of different greatest sizes, and from DDP's,
// puts each into the best order, and changes the best of them border by border as long as that helps.
#include "flow/gradients/bucket_plan.hpp"

#include <algorithm>
#include <limits>

#include "flow/gradients/bucket_order.hpp"

namespace slip {
namespace {

constexpr int kNodes = 200;             // of the search for an order, for what is kept
constexpr std::size_t kStarts = 3;      // so many of the first plans of each way to cut share the effort
constexpr std::size_t kFewSlices = 64;  // with fewer the order is searched for at each step, too
constexpr int kStepNodes = 20;          // and this far

struct Score {
  Picos exposed = std::numeric_limits<Picos>::max();
  Picos communication = std::numeric_limits<Picos>::max();
  auto operator<=>(const Score&) const = default;
};

// One way to cut gradients into slices, and the search over its borders.
class BorderSearch {
 public:
  BorderSearch(std::vector<GradientSlice> slices, const ReduceCost& cost) : slices_(std::move(slices)), cost_(cost) {}

  const std::vector<GradientSlice>& slices() const { return slices_; }

  Score score(const Borders& borders, int nodes) {
    calls_.clear();
    Score score{0, 0};
    for (std::size_t k = 0; k + 1 < borders.size(); ++k) calls_.push_back(call_of(borders[k], borders[k + 1]));
    for (const TimedCall& call : calls_) score.communication += call.time;
    const CallOrder order = nodes > 1 ? best_order(calls_, nodes) : due_first(calls_);
    score.exposed = std::max<Picos>(0, order.lateness);
    return score;
  }

  // Takes a border away, puts one in or moves one, as long as something gets better and effort is left.
  Score climb(Borders& borders, int effort) {
    const int nodes = slices_.size() <= kFewSlices ? kStepNodes : 1;
    Score best = score(borders, nodes);
    for (bool better = true; better && effort > 0;) {
      better = false;
      for (std::uint32_t at = 1; at < slices_.size() && effort > 0; ++at) {
        for (const Change change : {Change::kToggle, Change::kLeft, Change::kRight}) {
          if (!changed(borders, at, change)) continue;
          --effort;
          const Score found = score(trial_, nodes);
          if (found >= best) continue;
          best = found;
          borders.swap(trial_);
          better = true;
        }
      }
    }
    return best;
  }

 private:
  enum class Change { kToggle, kLeft, kRight };

  // False: it cannot be made.
  bool changed(const Borders& borders, std::uint32_t at, Change change) {
    const auto place = std::lower_bound(borders.begin(), borders.end(), at);
    const bool there = *place == at;
    const bool fixed = slices_[at].group != slices_[at - 1].group;
    trial_ = borders;
    const auto own = trial_.begin() + (place - borders.begin());
    if (change == Change::kToggle) {
      if (there && fixed) return false;
      if (there) trial_.erase(own);
      else trial_.insert(own, at);
      return true;
    }
    if (!there || fixed) return false;
    const std::uint32_t to = change == Change::kLeft ? at - 1 : at + 1;
    if (to == *(own - 1) || to == *(own + 1)) return false;
    *own = to;
    return true;
  }

  TimedCall call_of(std::uint32_t first, std::uint32_t last) const {
    TimedCall call{std::numeric_limits<Picos>::min(), 0, std::numeric_limits<Picos>::max()};
    std::uint64_t bytes = 0;
    for (std::uint32_t i = first; i < last; ++i) {
      bytes += slices_[i].bytes;
      call.ready = std::max(call.ready, slices_[i].arrival);
      call.due = std::min(call.due, slices_[i].needed);
    }
    call.time = cost_.time(bytes);
    return call;
  }

  const std::vector<GradientSlice> slices_;
  const ReduceCost& cost_;
  std::vector<TimedCall> calls_;
  Borders trial_;
};

struct Candidate {
  Score score;
  std::size_t search = 0;
  Borders borders;
};

// The bytes for which the rate takes `times` as long as the latency, 0 if there are none.
std::uint64_t bytes_worth(const ReduceCost& cost, std::uint64_t most, Picos times) {
  const Picos least = cost.time(0);
  std::uint64_t low = 0, high = most;
  if (cost.time(most) - least <= times * least) return 0;
  while (low + 1 < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    (cost.time(middle) - least < times * least ? low : high) = middle;
  }
  return high;
}

// Gradients as they are, and large ones in slices of several sizes: a slice must be worth the latency of its call.
// Where calls seem to cost next to nothing, as on a link that gives the first bytes away, their number is the limit.
std::vector<BorderSearch> ways_to_cut(const GradientProfile& profile, const ReduceCost& cost, const PlanLimits& limits) {
  std::vector<BorderSearch> ways;
  const std::uint64_t granule = std::max<std::uint64_t>(limits.granule, 1);
  ways.emplace_back(slices_of(profile, 0, granule), cost);
  const std::uint64_t least = std::max(granule, profile.bytes() / kMaxSlices);
  for (const Picos times : {4, 20, 100}) {
    const std::uint64_t slice = limits.slices ? bytes_worth(cost, profile.bytes(), times) : 0;
    if (slice == 0) continue;
    std::vector<GradientSlice> slices = slices_of(profile, std::max(slice, least), granule);
    if (slices.size() > ways.front().slices().size() && slices.size() != ways.back().slices().size())
      ways.emplace_back(std::move(slices), cost);
  }
  return ways;
}

std::vector<Candidate> first_plans(std::vector<BorderSearch>& ways, const ReduceCost& cost, std::uint64_t bytes) {
  std::vector<Candidate> found;
  for (std::size_t i = 0; i < ways.size(); ++i) {
    for (std::uint64_t most = bytes; most > 0; most /= 2) {
      Borders borders = earliest_end(ways[i].slices(), cost, most);
      const bool finest = borders.size() == ways[i].slices().size() + 1;
      if (found.empty() || found.back().borders != borders)
        found.push_back({ways[i].score(borders, 1), i, std::move(borders)});
      if (finest) break;
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Candidate& a, const Candidate& b) { return a.score < b.score; });
  return found;
}

Score score_of(const Exposure& exposure) { return {exposure.exposed, exposure.communication}; }

}  // namespace

BucketPlan plan_buckets(const GradientProfile& profile, const ReduceCost& cost, const PlanLimits& limits, Here here) {
  if (profile.gradients.empty()) return {};
  if (!cost.known()) throw Error(Code::kInvalidValue, "the cost of a reduction is not known", here);
  std::vector<BorderSearch> ways = ways_to_cut(profile, cost, limits);
  std::vector<Candidate> candidates = first_plans(ways, cost, profile.bytes());
  BucketPlan best = ddp_buckets(profile);
  Score least = score_of(exposure_of(profile, cost, best, here));
  const auto consider = [&](const Candidate& candidate) {
    BucketPlan plan = ordered(ways[candidate.search].slices(), candidate.borders, cost, kNodes);
    const Score score = score_of(exposure_of(profile, cost, plan, here));
    if (score < least) least = score, best = std::move(plan);
  };
  std::vector<std::size_t> tried(ways.size(), 0);
  const int share = limits.effort / static_cast<int>(kStarts * ways.size());
  for (Candidate& candidate : candidates) {
    if (tried[candidate.search]++ >= kStarts) continue;
    consider(candidate);
    candidate.score = ways[candidate.search].climb(candidate.borders, share);
    consider(candidate);
  }
  return best;
}

// From gradients to slices, and from borders between slices to plans.

std::vector<GradientSlice> slices_of(const GradientProfile& profile, std::uint64_t slice_bytes, std::uint64_t granule) {
  std::vector<GradientSlice> slices;
  std::uint64_t first = 0;
  for (const GradientProfile::Gradient& gradient : profile.gradients) {
    const std::uint64_t parts = slice_bytes == 0 ? 1 : std::max<std::uint64_t>(gradient.bytes / slice_bytes, 1);
    const std::uint64_t part = (gradient.bytes / parts + granule - 1) / granule * granule;
    for (std::uint64_t done = 0; done < gradient.bytes;) {
      const std::uint64_t bytes = parts == 1 ? gradient.bytes : std::min(part, gradient.bytes - done);
      slices.push_back({first + done, bytes, gradient.arrival, gradient.needed, gradient.group});
      done += bytes;
    }
    first += gradient.bytes;
  }
  return slices;
}

BucketPlan ordered(const std::vector<GradientSlice>& slices, const Borders& borders, const ReduceCost& cost,
                   int nodes) {
  std::vector<Bucket> buckets;
  std::vector<TimedCall> calls;
  for (std::size_t k = 0; k + 1 < borders.size(); ++k) {
    Bucket bucket{slices[borders[k]].first, 0};
    TimedCall call{std::numeric_limits<Picos>::min(), 0, std::numeric_limits<Picos>::max()};
    for (std::uint32_t i = borders[k]; i < borders[k + 1]; ++i) {
      bucket.bytes += slices[i].bytes;
      call.ready = std::max(call.ready, slices[i].arrival);
      call.due = std::min(call.due, slices[i].needed);
    }
    call.time = cost.time(bucket.bytes);
    buckets.push_back(bucket);
    calls.push_back(call);
  }
  BucketPlan plan;
  for (const std::uint32_t call : best_order(calls, nodes).calls) plan.buckets.push_back(buckets[call]);
  return plan;
}

// end[r] = min over l of max(end[l], arrival of the slices l..r) + time of their bytes. An earlier end of the first
// slices is never worse for those that follow, so this is the best end of all.
Borders earliest_end(const std::vector<GradientSlice>& slices, const ReduceCost& cost, std::uint64_t max_bytes) {
  const std::size_t count = slices.size();
  std::vector<Picos> end(count + 1, std::numeric_limits<Picos>::max());
  std::vector<std::uint32_t> from(count + 1, 0);
  end[0] = 0;
  for (std::size_t r = 1; r <= count; ++r) {
    std::uint64_t bytes = 0;
    Picos arrival = 0;
    for (std::size_t l = r; l-- > 0;) {
      if (slices[l].group != slices[r - 1].group) break;
      bytes += slices[l].bytes;
      if (l + 1 < r && bytes > max_bytes) break;
      arrival = std::max(arrival, slices[l].arrival);
      const Picos ends = std::max(end[l], arrival) + cost.time(bytes);
      if (ends < end[r]) end[r] = ends, from[r] = static_cast<std::uint32_t>(l);
    }
  }
  Borders borders;
  for (auto r = static_cast<std::uint32_t>(count); r > 0; r = from[r]) borders.push_back(r);
  borders.push_back(0);
  std::reverse(borders.begin(), borders.end());
  return borders;
}

BucketPlan exhaustive_plan(const std::vector<GradientSlice>& slices, const ReduceCost& cost) {
  constexpr std::size_t kMax = 14;
  constexpr int kNodes = 1'000'000;
  if (slices.empty() || slices.size() > kMax)
    throw Error(Code::kInvalidValue, "an exhaustive search takes 1 to 14 slices", {});
  GradientProfile profile;
  for (const GradientSlice& slice : slices)
    profile.gradients.push_back({slice.bytes, slice.arrival, slice.needed, slice.group});
  BucketPlan best;
  Picos least = 0, communication = 0;
  for (std::uint32_t mask = 0; mask < 1U << (slices.size() - 1); ++mask) {  // bit i: a border before slice i + 1
    Borders borders{0};
    bool allowed = true;
    for (std::uint32_t i = 1; i < slices.size(); ++i) {
      if ((mask >> (i - 1) & 1) != 0) borders.push_back(i);
      else allowed = allowed && slices[i].group == slices[i - 1].group;
    }
    if (!allowed) continue;
    borders.push_back(static_cast<std::uint32_t>(slices.size()));
    BucketPlan plan = ordered(slices, borders, cost, kNodes);
    const Exposure seen = exposure_of(profile, cost, plan);
    if (!best.buckets.empty() && std::pair(seen.exposed, seen.communication) >= std::pair(least, communication))
      continue;
    best = std::move(plan);
    least = seen.exposed;
    communication = seen.communication;
  }
  return best;
}

}  // namespace slip
