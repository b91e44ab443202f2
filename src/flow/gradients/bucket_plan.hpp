// The parts of bucket planning: slices of gradients, borders between buckets, and the order of the calls.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "slip/gradient_plan.hpp"

namespace slip::flow {

// A plan has at most this many buckets more than there are gradients. Smaller slices gain nothing, and each call costs
// host time.
constexpr std::uint64_t kMaxSlices = 256;

// Throws kInvalidValue unless the buckets hold every byte of the gradients exactly once.
void require_whole(const GradientProfile& profile, const BucketPlan& plan, Here here);

// By bucket: the gradients of which it has bytes. Views into `profile`. REQUIRES: require_whole().
std::vector<std::span<const GradientProfile::Gradient>> gradients_of(const GradientProfile& profile,
                                                                     const BucketPlan& plan);

// The smallest piece that a bucket can hold: a gradient, or a slice of a large one. Borders are indices of slices:
// bucket k has the slices from borders[k] up to, not including, borders[k + 1].
struct GradientSlice {
  std::uint64_t first = 0, bytes = 0;
  Picos arrival = 0, needed = 0;
  std::uint32_t group = 0;
};
using Borders = std::vector<std::uint32_t>;

// Cuts gradients into slices of about `slice_bytes`; 0 leaves them whole.
std::vector<GradientSlice> slices_of(const GradientProfile& profile, std::uint64_t slice_bytes, std::uint64_t granule);

// The plan with these borders; its buckets are in the best order that best_order finds with `nodes`.
BucketPlan ordered(const std::vector<GradientSlice>& slices, const Borders& borders, const ReduceCost& cost, int nodes);

// The borders with which the last call ends earliest. Calls are made in the order of the slices, and a bucket of
// several slices has at most `max_bytes`. Exact, by dynamic programming.
Borders earliest_end(const std::vector<GradientSlice>& slices, const ReduceCost& cost, std::uint64_t max_bytes);

// A call that becomes ready at one time and is due at another. Calls run one after the other; the maximum lateness is
// to be minimal. In scheduling theory: one machine with release dates and due dates.
struct TimedCall {
  Picos ready = 0, time = 0, due = 0;
};

struct OrderedCalls {
  std::vector<std::uint32_t> calls = {};  // indices into the given calls
  Picos lateness = 0;                     // the maximum of end minus due time; negative if all calls are early
  bool exact = false;                     // the order is proven optimal
};

// Schrage's rule: always runs the ready call that is due first. Fast. It never stays idle while a call is ready.
OrderedCalls due_first(std::span<const TimedCall> calls);

// Carlier's branch and bound, which starts from Schrage's rule. It may also stay idle to wait for a call that becomes
// ready soon. It evaluates at most `nodes` orders.
OrderedCalls best_order(std::span<const TimedCall> calls, int nodes);

}  // namespace slip::flow
