// ForkMutex: a mutex for process-wide tables that stays usable in a forked child.
//
// fork() copies the state of a mutex. If another thread holds it, the child's copy stays locked for ever, and the table
// may be half changed. Therefore fork handlers lock every ForkMutex before a fork and unlock it afterwards, in the
// parent and in the child. So fork() waits for the holders: hold a ForkMutex only for one access of the table.
#pragma once

#include "base/sync.hpp"

namespace slip::base {

class SLIP_CAPABILITY("mutex") ForkMutex {
 public:
  ForkMutex();
  ~ForkMutex();

  void lock() SLIP_ACQUIRE() { mutex_.lock(); }
  bool try_lock() SLIP_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() SLIP_RELEASE() { mutex_.unlock(); }

 private:
  friend struct ForkMutexes;
  std::mutex mutex_;
  ForkMutex* next_ = nullptr;  // next in the list of all ForkMutexes; guarded by ForkMutexes::mutex
};

}  // namespace slip::base
