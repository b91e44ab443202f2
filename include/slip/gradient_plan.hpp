// Which gradients are reduced together, and in which order: pure functions of what a step was measured to be, with the
// same answer on every machine.
//
// Gradients lie one behind the other in memory, in the order in which they arrive. Large ones may be cut into slices. A
// bucket is a run of bytes that one call reduces, when the last gradient that it touches is there; calls run one after
// the other, in the order of the plan. A bucket that is needed early may be put before one that came earlier.
//
// What uses the gradients (optimizers, the next forward pass) takes them one after the other: each begins when what
// came before it has ended and its own gradient is there. Then the time that is lost is that of the latest gradient:
// F_k+1 = max(F_k, done_k) + w_k gives F_n - F_0 - sum(w) = max(0, max_k(done_k - needed_k)), where needed_k is when k
// would begin if nothing were late.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "slip/costs.hpp"
#include "slip/error.hpp"
#include "slip/op.hpp"

namespace slip {

// What a reduction takes, by bytes: points that were measured, lines between them, and the last line goes on.
struct ReduceCost {
  struct Point {
    std::uint64_t bytes = 0;
    Picos time = 0;
  };
  std::vector<Point> points = {};  // ascending in bytes

  static ReduceCost of(const Link& link);  // a latency and a rate
  bool known() const { return !points.empty(); }
  Picos time(std::uint64_t bytes) const;  // kInvalidValue when nothing is known
};

// A step, as far as planning goes.
struct GradientProfile {
  struct Gradient {
    std::uint64_t bytes = 0;
    Picos arrival = 0;        // when it is there
    Picos needed = 0;         // when what uses it would begin if nothing were late
    std::uint32_t group = 0;  // a bucket has gradients of one group only: of one data type
  };
  std::vector<Gradient> gradients = {};  // as they lie in memory
  Picos backward_end = 0;
  std::uint64_t bytes() const;
};

// The same step when all gradients are needed at the end of the backward pass, as in PyTorch's DDP.
GradientProfile all_at_once(GradientProfile profile);

// `first` counts from the first gradient's first byte.
struct Bucket {
  std::uint64_t first = 0, bytes = 0;
  friend bool operator==(const Bucket&, const Bucket&) = default;
};

struct BucketPlan {
  std::vector<Bucket> buckets = {};  // in the order of their calls
  friend bool operator==(const BucketPlan&, const BucketPlan&) = default;
};

enum class BucketRule : std::uint8_t {
  kPlanned,  // by what was measured
  kDdp,      // PyTorch's: full at so many bytes, in the order in memory
  kEach,     // each gradient alone
};
const char* bucket_rule_name(BucketRule rule);  // "planned", "ddp", "each"

// A bucket is closed when it has at least that many bytes; the first one has a limit of its own.
struct DdpLimits {
  std::uint64_t first_bytes = std::uint64_t{1} << 20, bytes = std::uint64_t{25} << 20;
};
BucketPlan ddp_buckets(const GradientProfile& profile, const DdpLimits& limits = {});
BucketPlan each_alone(const GradientProfile& profile);

// What becomes of a plan.
struct Exposure {
  struct Times {
    Picos ready = 0, start = 0, end = 0;
    Picos late = 0;  // how much later than needed; never below 0
  };
  Picos exposed = 0;        // the time that is lost
  Picos communication = 0;  // of all calls
  Picos end = 0;            // of the last one
  std::vector<Times> buckets = {};
};
// Throws kInvalidValue unless the buckets hold every byte of the gradients once.
Exposure exposure_of(const GradientProfile& profile, const ReduceCost& cost, const BucketPlan& plan,
                     Here here = Here::at());

// The plan with the least exposed time that was found, and of those with the same the one with least communication. It
// is never worse than DDP's rule. `effort`: how many plans may be looked at.
struct PlanLimits {
  std::uint64_t granule = 64;  // slices are a multiple of so many bytes
  bool slices = true;          // gradients may be cut
  int effort = 4000;
};
BucketPlan plan_buckets(const GradientProfile& profile, const ReduceCost& cost, const PlanLimits& limits = {},
                        Here here = Here::at());

// The same step on the sim device, op by op: kernels for the backward pass and for what needs the gradients, the calls
// in a stream of their own, events between them.
struct StepPrediction {
  Picos time = 0;     // of the step
  Picos compute = 0;  // if nothing were communicated
  Picos exposed() const { return time - compute; }
};
StepPrediction predict_step(const GradientProfile& profile, const ReduceCost& cost, const BucketPlan& plan,
                            Here here = Here::at());

}  // namespace slip
