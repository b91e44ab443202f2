#include "base/sync.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "base/thread.hpp"

namespace slip::base {

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

WakeUp::WakeUp() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (descriptor_ < 0) fail_errno("cannot make an event descriptor", errno);
}

WakeUp::~WakeUp() { ::close(descriptor_); }

// write() fails only if the counter is at its maximum: the descriptor is readable then, too. `!` uses the result, which
// the C library declares as warn_unused_result.
void WakeUp::signal() const noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(descriptor_, &one, sizeof(one)));
}

void WakeUp::drain() const noexcept {
  std::uint64_t count = 0;
  static_cast<void>(!::read(descriptor_, &count, sizeof(count)));
}

// The list of all ForkMutexes. Constant-initialised and trivially destroyed, so that ForkMutexes of static lifetime may
// be created and destroyed in any order.
struct ForkMutexes {
  static void before_fork() SLIP_NO_THREAD_SAFETY_ANALYSIS;  // returns with every lock held
  static void after_fork() SLIP_NO_THREAD_SAFETY_ANALYSIS;
  static bool lock_all() SLIP_REQUIRES(mutex);
  static void unlock_until(const ForkMutex* end) SLIP_REQUIRES(mutex);

  static constinit inline Mutex mutex;
  static constinit inline ForkMutex* first SLIP_GUARDED_BY(mutex) = nullptr;
  static constinit inline bool installed SLIP_GUARDED_BY(mutex) = false;
};

// Takes all locks or none: threads may take them in any order, so waiting for one lock while holding another could
// deadlock.
bool ForkMutexes::lock_all() {
  for (ForkMutex* each = first; each; each = each->next_) {
    if (each->mutex_.try_lock()) continue;
    unlock_until(each);
    return false;
  }
  return true;
}

void ForkMutexes::unlock_until(const ForkMutex* end) {
  for (ForkMutex* each = first; each != end; each = each->next_) each->mutex_.unlock();
}

void ForkMutexes::before_fork() {
  for (Backoff backoff;; backoff.pause()) {
    mutex.lock();
    if (lock_all()) return;
    mutex.unlock();
  }
}

void ForkMutexes::after_fork() {
  unlock_until(nullptr);
  mutex.unlock();
}

ForkMutex::ForkMutex() {
  const LockGuard lock(ForkMutexes::mutex);
  next_ = ForkMutexes::first;
  ForkMutexes::first = this;
  if (ForkMutexes::installed) return;
  ForkMutexes::installed = true;
  at_fork(ForkMutexes::before_fork, ForkMutexes::after_fork, ForkMutexes::after_fork);
}

// Registers the fork handlers when the program starts. So they are the first ones: in a child the mutexes are free when
// the handlers of process_wide() run, which may make a ForkMutex.
[[maybe_unused]] const bool g_registered = (ForkMutex(), true);

ForkMutex::~ForkMutex() {
  const LockGuard lock(ForkMutexes::mutex);
  ForkMutex** link = &ForkMutexes::first;
  while (*link != this) link = &(*link)->next_;
  *link = next_;
}

}  // namespace slip::base
