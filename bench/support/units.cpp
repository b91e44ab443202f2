#include "units.hpp"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <span>

namespace slip::bench {
namespace {

struct Step {
  double size;
  const char* suffix;
};

// Steps are in descending order; the last is the base unit and also takes everything smaller.
std::string format_scaled(double value, std::span<const Step> steps) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  const double magnitude = std::fabs(value);
  std::size_t index = 0;
  while (index + 1 < steps.size() && magnitude < steps[index].size) ++index;
  const double scaled = value / steps[index].size;
  if (index + 1 < steps.size()) return fmt::format("{:.2f}{}", scaled, steps[index].suffix);
  const int digits = magnitude > 0 && magnitude < 1 ? 3 : 1;
  return fmt::format("{:.{}f}{}", scaled, digits, steps[index].suffix);
}

constexpr double kKibi = 1024;
constexpr std::array kTimeSteps{Step{1e9, "s"}, Step{1e6, "ms"}, Step{1e3, "us"}, Step{1, "ns"}};
constexpr std::array kByteSteps{Step{kKibi * kKibi * kKibi, "GiB"}, Step{kKibi * kKibi, "MiB"}, Step{kKibi, "KiB"},
                                Step{1, "B"}};
constexpr std::array kRateSteps{Step{1e9, "G/s"}, Step{1e6, "M/s"}, Step{1e3, "k/s"}, Step{1, "/s"}};
constexpr std::array kByteRateSteps{Step{1e12, "TB/s"}, Step{1e9, "GB/s"}, Step{1e6, "MB/s"}, Step{1e3, "kB/s"},
                                    Step{1, "B/s"}};

}  // namespace

const char* unit_name(Unit unit) {
  switch (unit) {
    case Unit::kNanoseconds: return "ns";
    case Unit::kBytes: return "bytes";
    case Unit::kPerSecond: return "per_second";
    case Unit::kBytesPerSecond: return "bytes_per_second";
    case Unit::kCount: return "count";
    case Unit::kPercent: return "percent";
  }
  return "unknown";
}

std::string format_ns(double nanoseconds) { return format_scaled(nanoseconds, kTimeSteps); }

std::string format_bytes(double bytes) { return format_scaled(bytes, kByteSteps); }

std::string format_rate(double per_second) { return format_scaled(per_second, kRateSteps); }

std::string format_bytes_per_second(double bytes_per_second) { return format_scaled(bytes_per_second, kByteRateSteps); }

std::string format_value(double value, Unit unit) {
  switch (unit) {
    case Unit::kNanoseconds: return format_ns(value);
    case Unit::kBytes: return format_bytes(value);
    case Unit::kPerSecond: return format_rate(value);
    case Unit::kBytesPerSecond: return format_bytes_per_second(value);
    case Unit::kCount: return fmt::format("{:.10g}", value);
    case Unit::kPercent: return fmt::format("{:.2f}%", value);
  }
  return fmt::format("{}", value);
}

std::string format_ratio(double ratio, Rounding rounding) {
  if (!std::isfinite(ratio)) return fmt::format("{}x", ratio);
  const int digits = std::fabs(ratio) < 0.1 && ratio != 0 ? 4 : 2;
  const double scale = digits == 4 ? 1e4 : 1e2;
  // Without the slack, a value such as 0.29 * 100 = 28.999999999999996 would be rounded down to 28. The slack is far
  // below the resolution of any measurement.
  constexpr double kSlack = 1e-9;
  const double scaled = ratio * scale;
  const double rounded = rounding == Rounding::kDown ? std::floor(scaled + kSlack) : std::ceil(scaled - kSlack);
  // Adding zero turns a rounded -0 into 0.
  return fmt::format("{:.{}f}x", rounded / scale + 0.0, digits);
}

}  // namespace slip::bench
