// Simulates a step of gradients: kernels of given times in streams, with the same events between them as Gradients
// uses. predict_step uses it for predictions, and `slip lab gradients` to compare policies.
#pragma once

#include "slip/device.hpp"
#include "slip/gradient_plan.hpp"

namespace slip::flow {

enum class OverlapPolicy : std::uint8_t {
  kInCompute,  // calls run in the compute stream: nothing overlaps
  kAtTheEnd,   // calls run in a stream of their own; the end of the backward pass waits for all of them
  kByNeed,     // calls run in a stream of their own; each use of a gradient waits for its call only
};

// Runs the step on a sim device and returns its times by the device's clock. The kernels of compute take half of the
// device's width, so that calls can run beside them.
StepPrediction simulate_step(const Device& device, const GradientProfile& profile, const ReduceCost& cost,
                             const BucketPlan& plan, OverlapPolicy policy, Here here = Here::at());

}  // namespace slip::flow
