// Costs of calls, the rules of DDP, the exposed time of a plan, and plan_buckets. plan_buckets starts from the borders
// that dynamic programming finds for several maximum bucket sizes, and from those of DDP. It puts the buckets of each
// into the best order, and then improves the best plans border by border.
#include "flow/gradients/bucket_plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/fail.hpp"

namespace slip::flow {
namespace {

constexpr int kNodes = 200;             // limit of best_order for plans that may become the result
constexpr std::size_t kStarts = 3;      // number of first plans of each slicing that climb() improves
constexpr std::size_t kFewSlices = 64;  // up to this many slices, best_order runs after each change of a border
constexpr int kStepNodes = 20;          // limit of best_order in that case

// The call that reduces the slices [first, last).
TimedCall call_of(const std::vector<GradientSlice>& slices, std::uint32_t first, std::uint32_t last,
                  const ReduceCost& cost) {
  TimedCall call{std::numeric_limits<Picos>::min(), 0, std::numeric_limits<Picos>::max()};
  std::uint64_t bytes = 0;
  for (std::uint32_t i = first; i < last; ++i) {
    bytes += slices[i].bytes;
    call.ready = std::max(call.ready, slices[i].arrival);
    call.due = std::min(call.due, slices[i].needed);
  }
  call.time = cost.time(bytes);
  return call;
}

struct Score {
  Picos exposed = std::numeric_limits<Picos>::max();
  Picos communication = std::numeric_limits<Picos>::max();
  auto operator<=>(const Score&) const = default;
};

// Gradients cut into slices, and the search for the best borders between them.
class BorderSearch {
 public:
  BorderSearch(std::vector<GradientSlice> slices, const ReduceCost& cost) : slices_(std::move(slices)), cost_(cost) {}

  const std::vector<GradientSlice>& slices() const { return slices_; }

  Score score(const Borders& borders, int nodes) {
    calls_.clear();
    Score score{0, 0};
    for (std::size_t k = 0; k + 1 < borders.size(); ++k)
      calls_.push_back(call_of(slices_, borders[k], borders[k + 1], cost_));
    for (const TimedCall& call : calls_) score.communication += call.time;
    const OrderedCalls order = nodes > 1 ? best_order(calls_, nodes) : due_first(calls_);
    score.exposed = std::max<Picos>(0, order.lateness);
    return score;
  }

  // Removes, inserts or moves one border at a time, as long as the score improves and effort is left.
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

  // Writes the changed borders to trial_. Returns false if the change is not possible.
  bool changed(const Borders& borders, std::uint32_t at, Change change) {
    const auto place = std::lower_bound(borders.begin(), borders.end(), at);
    const bool there = *place == at;
    const bool fixed = slices_[at].group != slices_[at - 1].group;  // a bucket has gradients of one group only
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

  const std::vector<GradientSlice> slices_;
  const ReduceCost& cost_;
  std::vector<TimedCall> calls_;
  Borders trial_;
};

struct Candidate {
  Score score;
  std::size_t search = 0;  // index of its slicing
  Borders borders;
};

// The number of bytes whose transfer, without latency, takes `times` latencies; 0 if even `max` bytes take less.
std::uint64_t bytes_worth(const ReduceCost& cost, std::uint64_t max, Picos times) {
  const Picos latency = cost.time(0);
  std::uint64_t low = 0, high = max;
  if (cost.time(max) - latency <= times * latency) return 0;
  while (low + 1 < high) {
    const std::uint64_t middle = low + (high - low) / 2;
    (cost.time(middle) - latency < times * latency ? low : high) = middle;
  }
  return high;
}

// Slicings to try: whole gradients, and slices of several sizes, each large enough to be worth the latency of its call.
// Where a call seems to cost almost nothing, as on a link with a token bucket, kMaxSlices limits their number.
std::vector<BorderSearch> make_slicings(const GradientProfile& profile, const ReduceCost& cost,
                                        const PlanLimits& limits) {
  std::vector<BorderSearch> slicings;
  const std::uint64_t granule = std::max<std::uint64_t>(limits.granule, 1);
  slicings.emplace_back(slices_of(profile, 0, granule), cost);
  const std::uint64_t min_slice = std::max(granule, profile.bytes() / kMaxSlices);
  for (const Picos times : {4, 20, 100}) {
    const std::uint64_t slice = limits.slices ? bytes_worth(cost, profile.bytes(), times) : 0;
    if (slice == 0) continue;
    std::vector<GradientSlice> slices = slices_of(profile, std::max(slice, min_slice), granule);
    if (slices.size() > slicings.front().slices().size() && slices.size() != slicings.back().slices().size())
      slicings.emplace_back(std::move(slices), cost);
  }
  return slicings;
}

std::vector<Candidate> first_plans(std::vector<BorderSearch>& slicings, const ReduceCost& cost, std::uint64_t bytes) {
  std::vector<Candidate> found;
  for (std::size_t i = 0; i < slicings.size(); ++i) {
    for (std::uint64_t max_bytes = bytes; max_bytes > 0; max_bytes /= 2) {
      Borders borders = earliest_end(slicings[i].slices(), cost, max_bytes);
      const bool finest = borders.size() == slicings[i].slices().size() + 1;
      if (found.empty() || found.back().borders != borders)
        found.push_back({slicings[i].score(borders, 1), i, std::move(borders)});
      if (finest) break;
    }
  }
  std::ranges::stable_sort(found, {}, &Candidate::score);
  return found;
}

Score score_of(const BucketExposure& exposure) { return {exposure.exposed, exposure.communication}; }

}  // namespace

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
    const GradientSlice &front = slices[borders[k]], &back = slices[borders[k + 1] - 1];
    buckets.push_back({front.first, back.first + back.bytes - front.first});
    calls.push_back(call_of(slices, borders[k], borders[k + 1], cost));
  }
  BucketPlan plan;
  for (const std::uint32_t call : best_order(calls, nodes).calls) plan.buckets.push_back(buckets[call]);
  return plan;
}

// end[r] is the earliest end of the calls for slices [0, r). It is the minimum over l of max(end[l], arrival of slices
// [l, r)) + time of their bytes. An earlier end of the first slices is never worse for the later slices, so end[count]
// is optimal.
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

void require_whole(const GradientProfile& profile, const BucketPlan& plan, Here here) {
  std::vector<Bucket> sorted = plan.buckets;
  std::ranges::sort(sorted, {}, &Bucket::first);
  std::uint64_t next = 0;
  for (const Bucket& bucket : sorted) {
    if (bucket.first != next || bucket.bytes == 0)
      base::fail(ErrorCode::kInvalidValue, here, "a bucket plan: bytes {} to {} are in no bucket or in two",
                 std::min(next, bucket.first), std::max(next, bucket.first));
    next += bucket.bytes;
  }
  if (next != profile.bytes())
    base::fail(ErrorCode::kInvalidValue, here, "a bucket plan: its buckets have {} bytes, the gradients {}", next,
               profile.bytes());
}

std::vector<std::span<const GradientProfile::Gradient>> gradients_of(const GradientProfile& profile,
                                                                     const BucketPlan& plan) {
  std::vector<std::uint64_t> firsts;  // the first byte of each gradient
  std::uint64_t sum = 0;
  for (const GradientProfile::Gradient& gradient : profile.gradients) {
    firsts.push_back(sum);
    sum += gradient.bytes;
  }
  std::vector<std::span<const GradientProfile::Gradient>> result;
  for (const Bucket& bucket : plan.buckets) {
    const auto first = std::ranges::upper_bound(firsts, bucket.first) - 1;
    const auto end = std::lower_bound(first, firsts.end(), bucket.first + bucket.bytes);
    result.push_back(
        std::span(profile.gradients)
            .subspan(static_cast<std::size_t>(first - firsts.begin()), static_cast<std::size_t>(end - first)));
  }
  return result;
}

}  // namespace slip::flow

namespace slip {
using namespace flow;

ReduceCost ReduceCost::of(const LinkCost& link) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  return {{{0, link.latency}, {kMiB, link.time_for(kMiB)}}};
}

Picos ReduceCost::time(std::uint64_t bytes) const {
  if (points.empty()) throw Error(ErrorCode::kInvalidValue, "the cost of a reduction is not known", {});
  if (points.size() == 1) return points.front().time;
  auto above = std::ranges::lower_bound(points, bytes, {}, &Point::bytes);
  if (above == points.begin()) return above->time;  // below the first point the time is constant
  if (above == points.end()) --above;
  const Point &low = *(above - 1), &high = *above;
  const double share = static_cast<double>(bytes - low.bytes) / static_cast<double>(high.bytes - low.bytes);
  return low.time + static_cast<Picos>(std::llround(share * static_cast<double>(high.time - low.time)));
}

std::uint64_t GradientProfile::bytes() const {
  std::uint64_t sum = 0;
  for (const Gradient& gradient : gradients) sum += gradient.bytes;
  return sum;
}

GradientProfile needed_at_once(GradientProfile profile) {
  for (GradientProfile::Gradient& gradient : profile.gradients) gradient.needed = profile.backward_end;
  return profile;
}

const char* bucket_rule_name(BucketRule rule) {
  switch (rule) {
    case BucketRule::kPlanned: return "planned";
    case BucketRule::kDdp: return "ddp";
    case BucketRule::kEach: return "each";
  }
  return "unknown";
}

// Each data type has buckets of its own, as in torch's compute_bucket_assignment_by_size. Here the gradients of one
// type are neighbours in memory.
BucketPlan ddp_buckets(const GradientProfile& profile, const DdpLimits& limits) {
  BucketPlan plan;
  std::uint64_t first = 0, limit = limits.first_bytes;
  bool full = true;
  std::uint32_t group = 0;
  for (const GradientProfile::Gradient& gradient : profile.gradients) {
    if (!plan.buckets.empty() && gradient.group != group) full = true, limit = limits.first_bytes;
    if (full) plan.buckets.push_back({first, 0});
    plan.buckets.back().bytes += gradient.bytes;
    first += gradient.bytes;
    group = gradient.group;
    full = plan.buckets.back().bytes >= limit;
    if (full) limit = limits.bytes;
  }
  return plan;
}

// With limits of 0 each gradient fills its bucket.
BucketPlan bucket_per_gradient(const GradientProfile& profile) { return ddp_buckets(profile, {0, 0}); }

BucketExposure exposure_of(const GradientProfile& profile, const ReduceCost& cost, const BucketPlan& plan, Here here) {
  require_whole(profile, plan, here);
  const std::vector<std::span<const GradientProfile::Gradient>> gradients = gradients_of(profile, plan);
  BucketExposure result;
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    BucketExposure::Times times;
    times.ready = std::ranges::max(gradients[i], {}, &GradientProfile::Gradient::arrival).arrival;
    const Picos needed = std::ranges::min(gradients[i], {}, &GradientProfile::Gradient::needed).needed;
    times.start = std::max(times.ready, result.end);
    times.end = times.start + cost.time(plan.buckets[i].bytes);
    times.late = std::max<Picos>(0, times.end - needed);
    result.end = times.end;
    result.communication += times.end - times.start;
    result.exposed = std::max(result.exposed, times.late);
    result.buckets.push_back(times);
  }
  return result;
}

BucketPlan plan_buckets(const GradientProfile& profile, const ReduceCost& cost, const PlanLimits& limits, Here here) {
  if (profile.gradients.empty()) return {};
  if (!cost.known()) throw Error(ErrorCode::kInvalidValue, "the cost of a reduction is not known", here);
  std::vector<BorderSearch> slicings = make_slicings(profile, cost, limits);
  std::vector<Candidate> candidates = first_plans(slicings, cost, profile.bytes());
  BucketPlan best = ddp_buckets(profile);
  Score best_score = score_of(exposure_of(profile, cost, best, here));
  const auto consider = [&](const Candidate& candidate) {
    BucketPlan plan = ordered(slicings[candidate.search].slices(), candidate.borders, cost, kNodes);
    const Score score = score_of(exposure_of(profile, cost, plan, here));
    if (score < best_score) best_score = score, best = std::move(plan);
  };
  std::vector<std::size_t> tried(slicings.size(), 0);
  const int share = limits.effort / static_cast<int>(kStarts * slicings.size());
  for (Candidate& candidate : candidates) {
    if (tried[candidate.search]++ >= kStarts) continue;
    consider(candidate);
    candidate.score = slicings[candidate.search].climb(candidate.borders, share);
    consider(candidate);
  }
  return best;
}

}  // namespace slip
