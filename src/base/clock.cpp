#include "base/clock.hpp"

#include <time.h>

#include <fstream>
#include <limits>

#include "base/thread.hpp"

namespace slip::base {
namespace {

std::int64_t read_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// One second before the first call. Traces count picoseconds in 64 bits, and the time since boot could overflow them.
std::int64_t start_ns() {
  static const std::int64_t kStart = host_ns() - 1'000'000'000;
  return kStart;
}

double measure_ticks_per_us() {
#if defined(__aarch64__)
  std::uint64_t hertz;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(hertz));
  return static_cast<double>(hertz) / 1e6;
#else
  const std::int64_t start_ns = now_ns();
  const std::uint64_t start = ticks();
  while (now_ns() - start_ns < 200'000) {}
  return static_cast<double>(ticks() - start) / (static_cast<double>(now_ns() - start_ns) / 1e3);
#endif
}

}  // namespace

std::int64_t host_ns() { return read_ns(CLOCK_MONOTONIC); }

std::int64_t now_ns() {
  const std::int64_t start = start_ns();  // must be read first: host_ns() below must not return an earlier time
  return host_ns() - start;
}

ClockOrigin clock_origin() {
  const std::int64_t boot = host_ns(), real = read_ns(CLOCK_REALTIME);
  return {start_ns(), real - (boot - start_ns())};
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string line;
  std::getline(file, line);
  return line;
}

double ticks_per_us() {
  struct Rate {
    double value = measure_ticks_per_us();
  };
  return process_wide<Rate>().value;
}

std::int64_t deadline_after(std::int64_t limit_ns) {
  if (limit_ns < 0) return 0;
  const std::int64_t now = now_ns();
  return limit_ns > std::numeric_limits<std::int64_t>::max() - now ? 0 : now + limit_ns;
}

}  // namespace slip::base
