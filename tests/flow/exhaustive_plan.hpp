// The best bucket plan of all borders and all orders, to compare plan_buckets with. For up to 14 slices.
#pragma once

#include <stdexcept>
#include <utility>

#include "flow/gradients/bucket_plan.hpp"

namespace slip::test {

inline BucketPlan exhaustive_plan(const std::vector<flow::GradientSlice>& slices, const ReduceCost& cost) {
  constexpr int kNodes = 1'000'000;
  if (slices.empty() || slices.size() > 14) throw std::invalid_argument("an exhaustive search takes 1 to 14 slices");
  GradientProfile profile;
  for (const flow::GradientSlice& slice : slices)
    profile.gradients.push_back({slice.bytes, slice.arrival, slice.needed, slice.group});
  BucketPlan best;
  std::pair<Picos, Picos> best_score;                                       // exposed, communication
  for (std::uint32_t mask = 0; mask < 1U << (slices.size() - 1); ++mask) {  // bit i: a border before slice i + 1
    flow::Borders borders{0};
    bool allowed = true;
    for (std::uint32_t i = 1; i < slices.size(); ++i) {
      if ((mask >> (i - 1) & 1) != 0) borders.push_back(i);
      else allowed = allowed && slices[i].group == slices[i - 1].group;
    }
    if (!allowed) continue;
    borders.push_back(static_cast<std::uint32_t>(slices.size()));
    BucketPlan plan = flow::ordered(slices, borders, cost, kNodes);
    const BucketExposure exposure = exposure_of(profile, cost, plan);
    const std::pair score(exposure.exposed, exposure.communication);
    if (best.buckets.empty() || score < best_score) best_score = score, best = std::move(plan);
  }
  return best;
}

}  // namespace slip::test
