#include "flow/costs/interference.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/terminal.hpp"

namespace slip {
namespace {

constexpr int kMaxRepeats = 3;
constexpr double kNoise = 0.9;  // a repeat that is not faster than this share confirms the time

}  // namespace

double TimesBeside::slowdown() const {
  if (alone <= 0) return 0;
  return std::max(0.0, static_cast<double>(beside) / static_cast<double>(alone) - 1);
}

TimesBeside measure_beside(const std::function<TimesBeside()>& measure) {
  TimesBeside best = measure();
  for (int repeat = 0; repeat < kMaxRepeats && best.slowdown() > kMaxPlausibleSlowdown; ++repeat) {
    const TimesBeside again = measure();
    const bool confirmed = static_cast<double>(again.beside) > kNoise * static_cast<double>(best.beside);
    best.alone = std::min(best.alone, again.alone);
    best.beside = std::min(best.beside, again.beside);
    if (confirmed) break;
  }
  return best;
}

double plausible_slowdown(const TimesBeside& times, std::string_view what) {
  const double measured = times.slowdown();
  if (measured <= kMaxPlausibleSlowdown) return measured;
  log_line(
      fmt::format("measured that {} {:.1f} times as long; other programs disturb this, so {:g} times is assumed. "
                  "Measure again on idle cores, or give costs that were measured there (--costs)",
                  what, 1 + measured, 1 + kMaxPlausibleSlowdown));
  return kMaxPlausibleSlowdown;
}

}  // namespace slip
