// From gradients to units, and from borders between units to plans.
#include <algorithm>
#include <limits>

#include "flow/gradients/bucket_order.hpp"
#include "flow/gradients/bucket_plan.hpp"

namespace slip {

std::vector<PlanUnit> units_of(const GradientProfile& profile, std::uint64_t slice_bytes, std::uint64_t granule) {
  std::vector<PlanUnit> units;
  std::uint64_t first = 0;
  for (const GradientProfile::Gradient& gradient : profile.gradients) {
    const std::uint64_t parts = slice_bytes == 0 ? 1 : std::max<std::uint64_t>(gradient.bytes / slice_bytes, 1);
    const std::uint64_t part = (gradient.bytes / parts + granule - 1) / granule * granule;
    for (std::uint64_t done = 0; done < gradient.bytes;) {
      const std::uint64_t bytes = parts == 1 ? gradient.bytes : std::min(part, gradient.bytes - done);
      units.push_back({first + done, bytes, gradient.arrival, gradient.needed, gradient.group});
      done += bytes;
    }
    first += gradient.bytes;
  }
  return units;
}

BucketPlan ordered(const std::vector<PlanUnit>& units, const Borders& borders, const ReduceCost& cost, int nodes) {
  std::vector<Bucket> buckets;
  std::vector<TimedCall> calls;
  for (std::size_t k = 0; k + 1 < borders.size(); ++k) {
    Bucket bucket{units[borders[k]].first, 0};
    TimedCall call{std::numeric_limits<Picos>::min(), 0, std::numeric_limits<Picos>::max()};
    for (std::uint32_t i = borders[k]; i < borders[k + 1]; ++i) {
      bucket.bytes += units[i].bytes;
      call.ready = std::max(call.ready, units[i].arrival);
      call.due = std::min(call.due, units[i].needed);
    }
    call.time = cost.time(bucket.bytes);
    buckets.push_back(bucket);
    calls.push_back(call);
  }
  BucketPlan plan;
  for (const std::uint32_t call : best_order(calls, nodes).calls) plan.buckets.push_back(buckets[call]);
  return plan;
}

// end[r] = min over l of max(end[l], arrival of the units l..r) + time of their bytes. An earlier end of the first
// units is never worse for those that follow, so this is the best end of all.
Borders earliest_end(const std::vector<PlanUnit>& units, const ReduceCost& cost, std::uint64_t max_bytes) {
  const std::size_t count = units.size();
  std::vector<Picos> end(count + 1, std::numeric_limits<Picos>::max());
  std::vector<std::uint32_t> from(count + 1, 0);
  end[0] = 0;
  for (std::size_t r = 1; r <= count; ++r) {
    std::uint64_t bytes = 0;
    Picos arrival = 0;
    for (std::size_t l = r; l-- > 0;) {
      if (units[l].group != units[r - 1].group) break;
      bytes += units[l].bytes;
      if (l + 1 < r && bytes > max_bytes) break;
      arrival = std::max(arrival, units[l].arrival);
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

BucketPlan exhaustive_plan(const std::vector<PlanUnit>& units, const ReduceCost& cost) {
  constexpr std::size_t kMax = 14;
  constexpr int kNodes = 1'000'000;
  if (units.empty() || units.size() > kMax)
    throw Error(Code::kInvalidValue, "an exhaustive search takes 1 to 14 units", {});
  GradientProfile profile;
  for (const PlanUnit& unit : units) profile.gradients.push_back({unit.bytes, unit.arrival, unit.needed, unit.group});
  BucketPlan best;
  Picos least = 0, communication = 0;
  for (std::uint32_t mask = 0; mask < 1U << (units.size() - 1); ++mask) {  // bit i: a border before unit i + 1
    Borders borders{0};
    bool allowed = true;
    for (std::uint32_t i = 1; i < units.size(); ++i) {
      if ((mask >> (i - 1) & 1) != 0) borders.push_back(i);
      else allowed = allowed && units[i].group == units[i - 1].group;
    }
    if (!allowed) continue;
    borders.push_back(static_cast<std::uint32_t>(units.size()));
    BucketPlan plan = ordered(units, borders, cost, kNodes);
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
