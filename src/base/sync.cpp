#include "base/sync.hpp"

#include <sched.h>
#include <time.h>

#include "base/clock.hpp"

namespace slip::base {

void yield_thread() { sched_yield(); }

void sleep_ns(std::int64_t time) {
  const timespec rest{0, time};
  nanosleep(&rest, nullptr);  // a signal may end it early: the caller checks its condition again anyway
}

bool Parker::park(std::int64_t deadline_ns) {
  const LockGuard lock(mutex_);
  while (!token_) {
    if (deadline_ns == 0) {
      condition_.wait(mutex_);
      continue;
    }
    const std::chrono::nanoseconds rest(deadline_ns - now_ns());
    if (rest.count() <= 0) return false;
    condition_.wait_for(mutex_, rest);
  }
  token_ = false;
  return true;
}

void Parker::unpark() {
  {
    const LockGuard lock(mutex_);
    token_ = true;
  }
  condition_.notify_one();
}

}  // namespace slip::base
