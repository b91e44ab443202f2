// The parts of gradient_plan.hpp that need no search: costs, the rules of DDP, and the exposed time of a plan.
#include <algorithm>
#include <cmath>

#include "base/fail.hpp"
#include "flow/gradients/bucket_plan.hpp"
#include "slip/gradient_plan.hpp"

namespace slip::flow {

void require_whole(const GradientProfile& profile, const BucketPlan& plan, Here here) {
  std::vector<Bucket> sorted = plan.buckets;
  std::ranges::sort(sorted, {}, &Bucket::first);
  std::uint64_t next = 0;
  for (const Bucket& bucket : sorted) {
    if (bucket.first != next || bucket.bytes == 0)
      base::fail(Code::kInvalidValue, here, "a bucket plan: bytes {} to {} are in no bucket or in two",
                 std::min(next, bucket.first), std::max(next, bucket.first));
    next += bucket.bytes;
  }
  if (next != profile.bytes())
    base::fail(Code::kInvalidValue, here, "a bucket plan: its buckets have {} bytes, the gradients {}", next,
               profile.bytes());
}

}  // namespace slip::flow

namespace slip {
using namespace flow;

ReduceCost ReduceCost::of(const LinkCost& link) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  return {{{0, link.latency}, {kMiB, link.time_for(kMiB)}}};
}

Picos ReduceCost::time(std::uint64_t bytes) const {
  if (points.empty()) throw Error(Code::kInvalidValue, "the cost of a reduction is not known", {});
  if (points.size() == 1) return points.front().time;
  auto above = std::lower_bound(points.begin(), points.end(), bytes,
                                [](const Point& point, std::uint64_t wanted) { return point.bytes < wanted; });
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

GradientProfile all_at_once(GradientProfile profile) {
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

BucketPlan each_alone(const GradientProfile& profile) {
  BucketPlan plan;
  std::uint64_t first = 0;
  for (const GradientProfile::Gradient& gradient : profile.gradients) {
    plan.buckets.push_back({first, gradient.bytes});
    first += gradient.bytes;
  }
  return plan;
}

Exposure exposure_of(const GradientProfile& profile, const ReduceCost& cost, const BucketPlan& plan, Here here) {
  require_whole(profile, plan, here);
  std::vector<std::uint64_t> firsts;  // bytes before each gradient
  std::uint64_t sum = 0;
  for (const GradientProfile::Gradient& gradient : profile.gradients) {
    firsts.push_back(sum);
    sum += gradient.bytes;
  }
  Exposure result;
  for (const Bucket& bucket : plan.buckets) {
    Exposure::Times times;
    Picos needed = 0;
    auto at = std::upper_bound(firsts.begin(), firsts.end(), bucket.first) - firsts.begin() - 1;
    for (bool any = false;
         at < std::ssize(firsts) && firsts[static_cast<std::size_t>(at)] < bucket.first + bucket.bytes;
         ++at, any = true) {
      const GradientProfile::Gradient& gradient = profile.gradients[static_cast<std::size_t>(at)];
      times.ready = any ? std::max(times.ready, gradient.arrival) : gradient.arrival;
      needed = any ? std::min(needed, gradient.needed) : gradient.needed;
    }
    times.start = std::max(times.ready, result.end);
    times.end = times.start + cost.time(bucket.bytes);
    times.late = std::max<Picos>(0, times.end - needed);
    result.end = times.end;
    result.communication += times.end - times.start;
    result.exposed = std::max(result.exposed, times.late);
    result.buckets.push_back(times);
  }
  return result;
}

}  // namespace slip
