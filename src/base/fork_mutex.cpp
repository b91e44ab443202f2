#include "base/fork_mutex.hpp"

#include "base/sync.hpp"
#include "base/thread.hpp"

namespace slip {

// All of them. Constant-initialised and trivially destroyed, so that mutexes of static lifetime may come and go in any
// order.
struct ForkMutexes {
  static void before_fork();
  static void after_fork();
  static bool take_all();
  static void release_until(const ForkMutex* end);

  static constinit inline std::mutex mutex;  // guards what follows
  static constinit inline ForkMutex* first = nullptr;
  static constinit inline bool installed = false;
};

// Nothing is known of the order in which threads take these locks, so a fork takes all or none: it never waits for one
// lock while it holds another. REQUIRES: mutex.
bool ForkMutexes::take_all() {
  for (ForkMutex* each = first; each; each = each->next_) {
    if (each->mutex_.try_lock()) continue;
    release_until(each);
    return false;
  }
  return true;
}

void ForkMutexes::release_until(const ForkMutex* end) {
  for (ForkMutex* each = first; each != end; each = each->next_) each->mutex_.unlock();
}

void ForkMutexes::before_fork() {
  for (int turn = 0;; ++turn) {
    mutex.lock();
    if (take_all()) return;
    mutex.unlock();
    spin(turn);
  }
}

void ForkMutexes::after_fork() {
  release_until(nullptr);
  mutex.unlock();
}

ForkMutex::ForkMutex() {
  const std::lock_guard lock(ForkMutexes::mutex);
  next_ = ForkMutexes::first;
  ForkMutexes::first = this;
  if (ForkMutexes::installed) return;
  ForkMutexes::installed = true;
  at_fork(ForkMutexes::before_fork, ForkMutexes::after_fork, ForkMutexes::after_fork);
}

ForkMutex::~ForkMutex() {
  const std::lock_guard lock(ForkMutexes::mutex);
  ForkMutex** link = &ForkMutexes::first;
  while (*link != this) link = &(*link)->next_;
  *link = next_;
}

}  // namespace slip
