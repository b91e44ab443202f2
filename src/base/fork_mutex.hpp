// ForkMutex: the mutex of a process-wide table.
//
// fork() copies a mutex as it is: one that another thread holds stays locked in the child for ever, over a table that
// is half changed. Every ForkMutex is therefore locked before a fork and unlocked after it, in the parent and in the
// child, so that the child finds the tables whole and their locks free. Holders keep it for one access of the table:
// fork() waits for them.
#pragma once

#include <mutex>

namespace slip {

class ForkMutex {
 public:
  ForkMutex();
  ~ForkMutex();
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  void lock() { mutex_.lock(); }
  bool try_lock() { return mutex_.try_lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  friend struct ForkMutexes;
  std::mutex mutex_;
  ForkMutex* next_ = nullptr;  // in the list of all, guarded by its mutex
};

}  // namespace slip
