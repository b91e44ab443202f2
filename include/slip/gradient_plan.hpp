// Plans for gradients: which of them are reduced together, and in which order. Pure functions of the measured times of
// a step, with the same result on every machine.
//
// Gradients lie one after the other in memory, in the order in which they arrive. A bucket is a range of bytes that one
// call reduces as soon as all gradients in it have arrived. Large gradients may be cut into slices, in several buckets.
// Calls run one after the other, in the order of the plan: a bucket that is needed early may go before an older one.
//
// The users of the gradients (optimizers, the next forward pass) run one after the other. User k begins when user k-1
// has ended and its own gradient is reduced (done_k), and runs for w_k: F_k+1 = max(F_k, done_k) + w_k. So the lost
// time is that of the latest gradient: F_n - F_0 - sum(w) = max(0, max_k(done_k - needed_k)), where needed_k is the
// time when user k would begin if nothing were late.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "slip/costs.hpp"
#include "slip/error.hpp"
#include "slip/op.hpp"

namespace slip {

// The time of a reduction by its bytes: measured points, interpolated linearly, and extrapolated beyond the last one.
struct ReduceCost {
  struct Point {
    std::uint64_t bytes = 0;
    Picos time = 0;
  };
  std::vector<Point> points = {};  // ascending in bytes

  static ReduceCost of(const Link& link);  // from a latency and a rate
  bool known() const { return !points.empty(); }
  Picos time(std::uint64_t bytes) const;  // throws kInvalidValue if no point is known
};

// The times of a step that a plan is made from, in picoseconds since the step's first gradient.
struct GradientProfile {
  struct Gradient {
    std::uint64_t bytes = 0;
    Picos arrival = 0;        // when it is written
    Picos needed = 0;         // when its use would begin if nothing were late
    std::uint32_t group = 0;  // a bucket has gradients of one group only, which have one data type
  };
  std::vector<Gradient> gradients = {};  // in the order of memory
  Picos backward_end = 0;
  std::uint64_t bytes() const;
};

// The same step with all gradients needed at the end of the backward pass, as in PyTorch's DDP.
GradientProfile all_at_once(GradientProfile profile);

// A range of bytes; `first` is counted from the first byte of the first gradient.
struct Bucket {
  std::uint64_t first = 0, bytes = 0;
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

struct BucketPlan {
  std::vector<Bucket> buckets = {};  // in the order of their calls
  friend bool operator==(const BucketPlan&, const BucketPlan&) = default;
};

enum class BucketRule : std::uint8_t {
  kPlanned,  // planned from measured times
  kDdp,      // as PyTorch's DDP: a bucket is closed at a number of bytes (DdpLimits)
  kEach,     // one bucket for each gradient
};
const char* bucket_rule_name(BucketRule rule);  // "planned", "ddp", "each"

// A bucket is closed when it has at least `bytes` bytes; the first one when it has `first_bytes`.
struct DdpLimits {
  std::uint64_t first_bytes = std::uint64_t{1} << 20, bytes = std::uint64_t{25} << 20;
};
BucketPlan ddp_buckets(const GradientProfile& profile, const DdpLimits& limits = {});
BucketPlan each_alone(const GradientProfile& profile);

// The estimated times of a step with a plan.
struct Exposure {
  struct Times {
    Picos ready = 0, start = 0, end = 0;
    Picos late = 0;  // how much later than needed it ends; never negative
  };
  Picos exposed = 0;        // the time that the step loses to communication
  Picos communication = 0;  // the sum of all calls
  Picos end = 0;            // of the last call
  std::vector<Times> buckets = {};
};
// Throws kInvalidValue unless the buckets hold every byte of the gradients exactly once.
Exposure exposure_of(const GradientProfile& profile, const ReduceCost& cost, const BucketPlan& plan,
                     Here here = Here::at());

// Finds the plan with the least exposed time and, among equals, the least communication. It is never worse than DDP's.
struct PlanLimits {
  std::uint64_t granule = 64;  // slices have a multiple of this many bytes
  bool slices = true;          // gradients may be cut
  int effort = 4000;           // the number of plans that may be looked at
};
BucketPlan plan_buckets(const GradientProfile& profile, const ReduceCost& cost, const PlanLimits& limits = {},
                        Here here = Here::at());

// Simulates the step op by op on a sim device: kernels for the backward pass and for the uses of the gradients, calls
// in a stream of their own, and events between them.
struct StepPrediction {
  Picos time = 0;     // of the step
  Picos compute = 0;  // of the step without communication
  Picos exposed() const { return time - compute; }
};
StepPrediction predict_step(const GradientProfile& profile, const ReduceCost& cost, const BucketPlan& plan,
                            Here here = Here::at());

}  // namespace slip
