// Gradient buckets: which gradients are reduced together, and in which order. All functions here are pure: the same
// measured step gives the same plan on every rank.
//
// Gradients lie contiguously in memory, in the order of their arrival. Large gradients may be cut into slices. A bucket
// is a byte range that one all_reduce reduces. Its call becomes ready when the last gradient that it overlaps has
// arrived. Calls run one after the other in plan order. A bucket that is needed early may run before a bucket that
// arrived earlier.
//
// The consumers of the gradients (optimizer, next forward pass) run one after the other. Each starts when its
// predecessor has ended and its own gradient is reduced. Let F_k be the end of consumer k - 1, done_k the time when
// gradient k is reduced, and w_k the duration of consumer k. Then F_k+1 = max(F_k, done_k) + w_k. The time lost to
// communication is therefore F_n - F_0 - sum(w) = max(0, max_k(done_k - needed_k)), where needed_k is when consumer k
// would start without delays.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "slip/costs.hpp"
#include "slip/error.hpp"
#include "slip/op.hpp"
#include "slip/prediction.hpp"

namespace slip {

// The time of a reduction as a function of its bytes: linear between measured points, constant below the first one, and
// extrapolated beyond the last one.
struct ReduceCost {
  struct Point {
    std::uint64_t bytes = 0;
    Picos time = 0;
  };
  std::vector<Point> points = {};  // ascending by bytes

  static ReduceCost of(const LinkCost& link);  // from a latency and a rate
  bool known() const { return !points.empty(); }
  Picos time(std::uint64_t bytes) const;  // throws kInvalidValue without points
};

// One measured training step, as input for the planner.
struct GradientProfile {
  struct Gradient {
    std::uint64_t bytes = 0;
    Picos arrival = 0;        // when the backward pass has written it
    Picos needed = 0;         // when its consumer would start if nothing were late
    std::uint32_t group = 0;  // a bucket contains gradients of one group only: one data type
  };
  std::vector<Gradient> gradients = {};  // in memory order
  Picos backward_end = 0;
  std::uint64_t bytes() const;
};

// The same step with all gradients needed at the end of the backward pass, as in PyTorch's DDP.
GradientProfile needed_at_once(GradientProfile profile);

// `first` is the offset from the first byte of the first gradient.
struct Bucket {
  std::uint64_t first = 0, bytes = 0;
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

struct BucketPlan {
  std::vector<Bucket> buckets = {};  // in call order
  friend bool operator==(const BucketPlan&, const BucketPlan&) = default;
};

enum class BucketRule : std::uint8_t {
  kPlanned,  // plan_buckets() from the measured step
  kDdp,      // PyTorch's rule: closed at a number of bytes, in memory order
  kEach,     // one bucket per gradient
};
const char* bucket_rule_name(BucketRule rule);  // "planned", "ddp", "each"

// A bucket is closed when it has at least `bytes`; the first bucket has its own limit.
struct DdpLimits {
  std::uint64_t first_bytes = std::uint64_t{1} << 20, bytes = std::uint64_t{25} << 20;
};
BucketPlan ddp_buckets(const GradientProfile& profile, const DdpLimits& limits = {});
BucketPlan bucket_per_gradient(const GradientProfile& profile);

// The schedule that a plan leads to, and how much communication it exposes.
struct BucketExposure {
  struct Times {
    Picos ready = 0, start = 0, end = 0;
    Picos late = 0;  // how much later than needed; at least 0
  };
  Picos exposed = 0;        // time that the step loses to communication
  Picos communication = 0;  // durations of all calls added up
  Picos end = 0;            // of the last call
  std::vector<Times> buckets = {};
};
// Throws kInvalidValue unless the buckets cover every byte of the gradients exactly once.
BucketExposure exposure_of(const GradientProfile& profile, const ReduceCost& cost, const BucketPlan& plan,
                           Here here = Here::at());

struct PlanLimits {
  std::uint64_t granule = 64;  // slices are multiples of this many bytes
  bool slices = true;          // a gradient may be cut into several slices
  int effort = 4000;           // maximum number of plans to evaluate
};
// The plan with minimum exposed time among those evaluated; ties go to the plan with less communication. It is never
// worse than DDP's rule.
BucketPlan plan_buckets(const GradientProfile& profile, const ReduceCost& cost, const PlanLimits& limits = {},
                        Here here = Here::at());

// The step, simulated op by op on the sim device. Kernels model the backward pass and the consumers, the calls run on a
// separate stream, and events order them.
Prediction predict_step(const GradientProfile& profile, const ReduceCost& cost, const BucketPlan& plan,
                        Here here = Here::at());

}  // namespace slip
