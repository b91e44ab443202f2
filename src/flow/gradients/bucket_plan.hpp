// The parts of planning that the planner, its tests and the exhaustive search share.
#pragma once

#include <vector>

#include "slip/gradient_plan.hpp"

namespace slip {

// A plan has at most so many buckets more than there are gradients. A smaller share of all bytes gains nothing, and
// each call costs the host.
constexpr std::uint64_t kMaxSlices = 256;

// Throws kInvalidValue unless the buckets hold every byte once.
void require_whole(const GradientProfile& profile, const BucketPlan& plan, Here here);

// What borders can lie between: gradients, or slices of large ones. Borders are indices of slices: bucket k has the
// slices from borders[k] up to borders[k + 1].
struct GradientSlice {
  std::uint64_t first = 0, bytes = 0;
  Picos arrival = 0, needed = 0;
  std::uint32_t group = 0;
};
using Borders = std::vector<std::uint32_t>;

// `slice_bytes` 0: gradients stay whole.
std::vector<GradientSlice> slices_of(const GradientProfile& profile, std::uint64_t slice_bytes, std::uint64_t granule);

// The plan with these borders, its buckets in the best order that `nodes` steps of the search find.
BucketPlan ordered(const std::vector<GradientSlice>& slices, const Borders& borders, const ReduceCost& cost, int nodes);

// Borders with which the last call ends first, if calls are made in the order of the slices and no bucket of several
// slices has more than `max_bytes`: dynamic programming, exact.
Borders earliest_end(const std::vector<GradientSlice>& slices, const ReduceCost& cost, std::uint64_t max_bytes);

// Of all borders and all orders of the slices the best: for up to 14 slices, to compare with.
BucketPlan exhaustive_plan(const std::vector<GradientSlice>& slices, const ReduceCost& cost);

}  // namespace slip
