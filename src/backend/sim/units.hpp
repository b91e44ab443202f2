// Exact arithmetic of the sim device: times in picoseconds, rates per second, all integers, so that a run gives the
// same bits on every machine. Times saturate at kNever instead of overflowing.
#pragma once

#include <cstdint>
#include <limits>

#include "slip/op.hpp"

namespace slip::sim {

__extension__ using U128 = unsigned __int128;

// Later than anything that happens. Half of the range, so that the sum of two times cannot overflow.
inline constexpr Picos kNever = std::numeric_limits<Picos>::max() / 2;
inline constexpr std::uint64_t kSecond = 1'000'000'000'000;  // in picoseconds
inline constexpr std::uint32_t kPpm = 1'000'000;

inline Picos after(Picos at, Picos duration) {
  const Picos sum = at + duration;
  return sum < kNever ? sum : kNever;
}

// Divides, rounding up: work that is not done by a picosecond needs the next one.
inline Picos divide_up(U128 amount, U128 by) {
  if (amount >> 64 == 0 && by >> 64 == 0) [[likely]] {  // the wide division costs several times more
    const auto low = static_cast<std::uint64_t>(amount);
    const auto divisor = static_cast<std::uint64_t>(by);
    const std::uint64_t whole = low / divisor + (low % divisor != 0 ? 1 : 0);
    return whole < static_cast<std::uint64_t>(kNever) ? static_cast<Picos>(whole) : kNever;
  }
  const U128 whole = amount / by + (amount % by != 0 ? 1 : 0);
  return whole < static_cast<U128>(kNever) ? static_cast<Picos>(whole) : kNever;
}

// Time that `amount` takes at `per_second`, on a share of the device in parts per million.
inline Picos time_for(std::uint64_t amount, std::uint64_t per_second, std::uint32_t share_ppm = kPpm) {
  if (amount == 0) return 0;
  if (share_ppm == kPpm) [[likely]]
    return divide_up(U128{amount} * kSecond, per_second);
  return divide_up(U128{amount} * kSecond * kPpm, U128{per_second} * share_ppm);
}

}  // namespace slip::sim
