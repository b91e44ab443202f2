#include "base/cores.hpp"

#include <sched.h>
#include <sys/resource.h>

#include <cstddef>

namespace slip {

CoreSet core_set() {
  cpu_set_t set;
  CoreSet cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores.set(0);
  for (std::size_t core = 0; core < cores.size() && core < CPU_SETSIZE; ++core) cores.set(core, CPU_ISSET(core, &set));
  return cores;
}

int current_core() { return sched_getcpu(); }

void leave_core(int core) {
  cpu_set_t all;
  if (core < 0 || sched_getaffinity(0, sizeof(all), &all) != 0) return;
  cpu_set_t others = all;
  CPU_CLR(static_cast<std::size_t>(core), &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof(others), &others) != 0) return;
  sched_setaffinity(0, sizeof(all), &all);  // the thread stays on its new core until the system moves it
}

std::int64_t preemptions() {
  rusage usage{};
  if (getrusage(RUSAGE_THREAD, &usage) != 0) return 0;
  return usage.ru_nivcsw;
}

}  // namespace slip
