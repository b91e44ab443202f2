// Pace: scalar 0 of the labs' kernels. It packs the kernel's duration and its share of the device into one number.
//
// The share matters on a GPU only, where kernels occupy parts of the device. A kernel of the cpu device takes one core.
#pragma once

#include <algorithm>
#include <cstdint>

namespace slip::cli {

// Low 48 bits: nanoseconds. High bits: the unused share of the device in 1/256, so a plain number uses all of it.
inline constexpr int kPaceBits = 48;

constexpr std::int64_t pace_of(std::int64_t nanoseconds, double width) {
  const auto used = std::clamp<std::int64_t>(static_cast<std::int64_t>(width * 256 + 0.5), 1, 256);
  return nanoseconds | ((256 - used) << kPaceBits);
}
constexpr std::int64_t pace_nanoseconds(std::int64_t pace) { return pace & ((std::int64_t{1} << kPaceBits) - 1); }
constexpr double pace_width(std::int64_t pace) { return static_cast<double>(256 - (pace >> kPaceBits)) / 256; }

static_assert(pace_nanoseconds(pace_of(1'000'000, 0.25)) == 1'000'000 && pace_width(pace_of(0, 0.25)) == 0.25);
static_assert(pace_of(5, 1.0) == 5 && pace_width(5) == 1.0);

}  // namespace slip::cli
