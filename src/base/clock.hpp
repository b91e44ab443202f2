// The clocks of the process and of the host. All functions may be called from any thread.
#pragma once

#include <cstdint>
#include <string>

namespace slip::base {

std::int64_t now_ns();   // monotonic; counts from one second before the first call in this process
std::int64_t host_ns();  // CLOCK_MONOTONIC: the same in all processes of the host, unlike now_ns()

// A cheap monotonic counter for measuring short times; its unit is given by ticks_per_us().
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

// now_ns() + limit. Returns 0, no deadline, if the limit is below zero or the sum would overflow.
std::int64_t deadline_after(std::int64_t limit_ns);

// The zero of now_ns() on two clocks that other processes can read as well: it converts times between processes.
struct ClockOrigin {
  std::int64_t since_boot_ns = 0;  // CLOCK_MONOTONIC: exact between processes of one boot
  std::int64_t since_1970_ns = 0;  // CLOCK_REALTIME: between hosts as exact as the synchronisation of their clocks
};
ClockOrigin clock_origin();

std::string boot_id();  // unique for this boot of this host; "" if the system does not provide one

}  // namespace slip::base
