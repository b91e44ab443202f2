// What a recorded step was, in words and numbers.
#pragma once

#include "flow/gradient_clock.hpp"
#include "flow/gradient_step.hpp"

namespace slip {

GradientReport report_of(const StepTimes& times, const GradientStep& step, const BucketPlan& plan,
                         const ReduceCost& cost);

}  // namespace slip
