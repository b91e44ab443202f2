#include "base/core_use.hpp"

#include <sched.h>
#include <sys/resource.h>
#include <time.h>

#include <cstddef>

namespace slip {

int current_core() { return sched_getcpu(); }

void leave_core(int core) {
  cpu_set_t all;
  if (core < 0 || sched_getaffinity(0, sizeof(all), &all) != 0) return;
  cpu_set_t others = all;
  CPU_CLR(static_cast<std::size_t>(core), &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof(others), &others) != 0) return;
  sched_setaffinity(0, sizeof(all), &all);  // it stays where it is now until the system moves it
}

void sleep_ns(std::int64_t time) {
  const timespec rest{0, time};
  nanosleep(&rest, nullptr);  // a signal ends it early: the caller looks again
}

std::int64_t preemptions() {
  rusage usage{};
  if (getrusage(RUSAGE_THREAD, &usage) != 0) return 0;
  return usage.ru_nivcsw;
}

}  // namespace slip
