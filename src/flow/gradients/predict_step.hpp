// A step of gradients played on a device that needs no data: kernels of given times in streams, with the events between
// them that Gradients uses. For predictions and for showing what else one could do.
#pragma once

#include "slip/device.hpp"
#include "slip/gradient_plan.hpp"

namespace slip {

enum class GradientWaitPolicy : std::uint8_t {
  kInCompute,  // the calls are in the compute stream: nothing goes on meanwhile
  kAtTheEnd,   // in a stream of their own; all are waited for at the end of the backward pass
  kByNeed,     // what needs a gradient waits for its call alone
};

// Enqueues it, waits, and says what it took by the device's clock. The device is one of sim, whose kernels may be half
// as wide as it is.
StepPrediction simulate_step(const Device& device, const GradientProfile& profile, const ReduceCost& cost,
                             const BucketPlan& plan, GradientWaitPolicy policy, Here here = Here::at());

}  // namespace slip
