#include "base/clock.hpp"

#include <time.h>

#include <atomic>
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

// One second before the first call: so the first time is not 0, which stands for no deadline. Traces count picoseconds
// in 64 bits, and the time since boot could overflow them. No static local: a fork during its construction would leave
// a child that waits for ever. relaxed: the value is all that the threads share.
std::atomic<std::int64_t> g_start_ns{0};
std::int64_t start_ns() {
  std::int64_t start = g_start_ns.load(std::memory_order_relaxed);
  if (start != 0) [[likely]]
    return start;
  const std::int64_t now = host_ns() - 1'000'000'000;
  return g_start_ns.compare_exchange_strong(start, now, std::memory_order_relaxed) ? now : start;
}

double measure_ticks_per_us() {
#if defined(__aarch64__)
  std::uint64_t hertz;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(hertz));
  return static_cast<double>(hertz) / 1e6;
#else
  const std::int64_t begin_ns = now_ns();
  const std::uint64_t begin = ticks();
  while (now_ns() - begin_ns < 200'000) {}
  return static_cast<double>(ticks() - begin) / (static_cast<double>(now_ns() - begin_ns) / 1e3);
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
