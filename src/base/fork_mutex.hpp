// ForkMutex: the mutex of a process-wide table.
//
// fork() copies a mutex as it is: if another thread holds it, it stays locked in the child for ever, over a table that
// is half changed. Therefore every ForkMutex is locked before a fork and unlocked after it, in the parent and in the
// child. fork() waits for the holders, so they hold it only for one access of the table.
#pragma once

#include "base/sync.hpp"

namespace slip {

class SLIP_CAPABILITY("mutex") ForkMutex {
 public:
  ForkMutex();
  ~ForkMutex();
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  void lock() SLIP_ACQUIRE() { mutex_.lock(); }
  bool try_lock() SLIP_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() SLIP_RELEASE() { mutex_.unlock(); }

 private:
  friend struct ForkMutexes;
  std::mutex mutex_;
  ForkMutex* next_ = nullptr;  // in the list of all; guarded by ForkMutexes::mutex
};

}  // namespace slip
