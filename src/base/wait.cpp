#include "base/wait.hpp"

#include <sched.h>
#include <time.h>

namespace slip::base {

void yield_thread() { sched_yield(); }

void sleep_ns(std::int64_t time) {
  const timespec rest{0, time};
  nanosleep(&rest, nullptr);  // a signal may end it early: the caller checks its condition again anyway
}

}  // namespace slip::base
