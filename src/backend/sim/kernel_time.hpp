// How long a kernel takes by a description: the longer of computing and moving bytes, on its share of the device.
#pragma once

#include <algorithm>
#include <cmath>

#include "backend/sim/description.hpp"
#include "backend/sim/units.hpp"

namespace slip::sim {

// The one place where a floating-point number enters: rounding a double to an integer is the same on every machine.
inline std::uint32_t width_ppm(double width) {
  return static_cast<std::uint32_t>(std::clamp(std::llround(width * kPpm), 1LL, static_cast<long long>(kPpm)));
}

// `bytes` in place of those in the cost.
inline Picos kernel_time(const ComputeDescription& compute, const Cost& cost, std::uint64_t bytes) {
  if (cost.time > 0) return std::min(cost.time, kNever);
  const std::uint32_t width = width_ppm(cost.width);
  const Picos computing = time_for(cost.flops, compute.flops, width);
  const Picos moving = time_for(bytes, compute.bandwidth, width);
  return after(compute.launch, std::max(computing, moving));
}

}  // namespace slip::sim
