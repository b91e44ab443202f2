#include "base/sync.hpp"

#include <sched.h>

#include <chrono>

#include "base/clock.hpp"

namespace slip {

void yield_thread() { sched_yield(); }

bool Parker::park(std::int64_t deadline_ns) {
  std::unique_lock lock(mutex_);
  const auto given = [this] { return token_; };
  if (deadline_ns == 0) {
    condition_.wait(lock, given);
  } else {
    // libstdc++ 12 with TSan knows wait_until on the system clock only; a relative wait serves both.
    const auto rest = std::chrono::nanoseconds(deadline_ns - now_ns());
    if (!token_ && rest.count() > 0) condition_.wait_for(lock, rest, given);
  }
  const bool taken = token_;
  token_ = false;
  return taken;
}

void Parker::unpark() {
  {
    const std::lock_guard lock(mutex_);
    token_ = true;
  }
  condition_.notify_one();
}

}  // namespace slip
