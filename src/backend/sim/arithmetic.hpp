// Exact arithmetic of the sim device. Times are integers in picoseconds and rates are integers per second, so a run
// gives the same bits on every machine. Times saturate at kEndOfTime instead of overflowing.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "backend/sim/description.hpp"

namespace slip::sim {

__extension__ using U128 = unsigned __int128;

// A time after all events. It is half of the range, so that the sum of two times cannot overflow.
inline constexpr Picos kEndOfTime = std::numeric_limits<Picos>::max() / 2;
inline constexpr std::uint64_t kSecond = 1'000'000'000'000;  // in picoseconds
inline constexpr std::uint32_t kPpm = 1'000'000;

inline Picos after(Picos at, Picos duration) {
  const Picos sum = at + duration;
  return sum < kEndOfTime ? sum : kEndOfTime;
}

// Divides and rounds up: a part of a picosecond counts as a whole one.
inline Picos divide_up(U128 amount, U128 by) {
  if (amount >> 64 == 0 && by >> 64 == 0) [[likely]] {  // the wide division costs several times more
    const auto low = static_cast<std::uint64_t>(amount);
    const auto divisor = static_cast<std::uint64_t>(by);
    const std::uint64_t whole = low / divisor + (low % divisor != 0 ? 1 : 0);
    return whole < static_cast<std::uint64_t>(kEndOfTime) ? static_cast<Picos>(whole) : kEndOfTime;
  }
  const U128 whole = amount / by + (amount % by != 0 ? 1 : 0);
  return whole < static_cast<U128>(kEndOfTime) ? static_cast<Picos>(whole) : kEndOfTime;
}

// Time that `amount` takes at `per_second`, on a share of the device in parts per million.
inline Picos time_for(std::uint64_t amount, std::uint64_t per_second, std::uint32_t share_ppm = kPpm) {
  if (amount == 0) return 0;
  if (share_ppm == kPpm) [[likely]]
    return divide_up(U128{amount} * kSecond, per_second);
  return divide_up(U128{amount} * kSecond * kPpm, U128{per_second} * share_ppm);
}

// Converts Cost::width, a share of the device in (0, 1], to parts per million. Nothing else in this file takes a
// floating-point number. Rounding a double to an integer gives the same result on every machine.
inline std::uint32_t width_ppm(double width) {
  return static_cast<std::uint32_t>(std::clamp(std::llround(width * kPpm), 1LL, static_cast<long long>(kPpm)));
}

// Duration of a kernel on its share of the device: cost.time if it is given. Otherwise the launch cost, and the longer
// of computing and moving memory; `bytes` replaces cost.bytes.
inline Picos kernel_time(const ComputeDescription& compute, const Cost& cost, std::uint64_t bytes) {
  if (cost.time > 0) return std::min(cost.time, kEndOfTime);
  const std::uint32_t width = width_ppm(cost.width);
  const Picos computing = time_for(cost.flops, compute.flops, width);
  const Picos moving = time_for(bytes, compute.bandwidth, width);
  return after(compute.launch, std::max(computing, moving));
}

}  // namespace slip::sim
