#include "base/cores.hpp"

#include <sched.h>

namespace slip {

CoreSet core_set() {
  cpu_set_t set;
  CoreSet cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores.set(0);
  for (std::size_t core = 0; core < cores.size() && core < CPU_SETSIZE; ++core) cores.set(core, CPU_ISSET(core, &set));
  return cores;
}

}  // namespace slip
