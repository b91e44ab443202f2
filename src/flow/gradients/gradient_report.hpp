// What a recorded step was, in words and numbers.
#pragma once

#include <functional>
#include <span>

#include "flow/gradients/gradient_times.hpp"
#include "slip/gradient_report.hpp"

namespace slip {

// The calls that reduce a parameter.
using CallsOf = std::function<std::span<const std::uint32_t>(std::uint32_t parameter)>;

// Without the names of gradients.
GradientReport report_of(const GradientTimes& times, const CallsOf& calls_of, const BucketPlan& plan,
                         const ReduceCost& cost);

}  // namespace slip
