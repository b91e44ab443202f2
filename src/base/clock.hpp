// The process's clocks.
#pragma once

#include <cstdint>

namespace slip {

std::int64_t now_ns();  // monotonic

// A cheap monotonic counter for telling short from long; its unit is given by ticks_per_us().
inline std::uint64_t ticks() {
#if defined(__aarch64__)
  std::uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#elif defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<std::uint64_t>(now_ns());
#endif
}
double ticks_per_us();

// now_ns() + limit, saturated; a limit below zero means no deadline (0).
std::int64_t deadline_after(std::int64_t limit_ns);

}  // namespace slip
