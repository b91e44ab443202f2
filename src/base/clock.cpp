#include "base/clock.hpp"

#include <time.h>

#include <fstream>
#include <limits>

#include "base/clock_origin.hpp"

namespace slip {

namespace {
std::int64_t read_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}
std::int64_t monotonic_ns() { return read_ns(CLOCK_MONOTONIC); }
}  // namespace

// A second before the first call: in picoseconds, which traces use, the time since boot would overflow one day.
namespace {
std::int64_t start_ns() {
  static const std::int64_t kStart = monotonic_ns() - 1'000'000'000;
  return kStart;
}
}  // namespace

std::int64_t now_ns() {
  const std::int64_t start = start_ns();  // first: the clock must not be read before it begins
  return monotonic_ns() - start;
}

ClockOrigin clock_origin() {
  const std::int64_t boot = monotonic_ns(), world = read_ns(CLOCK_REALTIME);
  return {start_ns(), world - (boot - start_ns())};
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string line;
  std::getline(file, line);
  return line;
}

namespace {
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

double ticks_per_us() {
  static const double kRate = measure_ticks_per_us();
  return kRate;
}

std::int64_t deadline_after(std::int64_t limit_ns) {
  if (limit_ns < 0) return 0;
  const std::int64_t now = now_ns();
  return limit_ns > std::numeric_limits<std::int64_t>::max() - now ? 0 : now + limit_ns;
}

}  // namespace slip
