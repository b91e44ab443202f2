// How a sleeping thread is woken. There are two ways to sleep, and one flag that makes both cheap for the waking
// thread.
//
// - Parker (base/sync.hpp): the thread waits for nothing but this wake-up.
// - WakeUp: the thread sleeps in poll(2), because it also waits for sockets or other descriptors.
// - SleepFlag: says whether the thread sleeps, so that others make the system call for the wake-up only then.
#pragma once

#include <atomic>

#include "base/sync.hpp"

namespace slip::base {

// A descriptor (eventfd) with which any thread ends the poll of another one. Signals do not add up.
class WakeUp : NoCopy {
 public:
  WakeUp();  // throws kIo
  ~WakeUp();
  void signal() const noexcept;
  void drain() const noexcept;                             // does not block if there was no signal
  int descriptor() const noexcept { return descriptor_; }  // readable between signal() and drain()

 private:
  const int descriptor_;
};

// Whether a thread sleeps or is about to. One thread sleeps; any other thread may wake it:
//
//   sleeper: flag.set();  if (!condition) sleep;  flag.clear()
//   others:  change the condition;  full_fence();  if (flag.take()) wake the sleeper
//
// So a wake-up is never lost: each side writes first and then reads what the other side wrote, with a full fence
// between, so at least one of the two sees the other's write. The full fence of the others may be a seq_cst
// read-modify-write that changes the condition, if the sleeper reads the condition with seq_cst, too.
//
// A wake-up may come late, when the sleeper has already gone on. It then ends the next sleep early, and the sleeper
// checks its condition again. The flag publishes no data: the condition does.
class SleepFlag {
 public:
  void set() noexcept {
    // seq_cst, for conditions that are changed by a seq_cst read-modify-write instead of before a fence.
    asleep_.store(true, std::memory_order_seq_cst);
    full_fence();  // orders the store before the sleeper's reads of the condition
  }
  // relaxed: a thread that still sees the flag only makes one wake-up too many.
  void clear() noexcept { asleep_.store(false, std::memory_order_relaxed); }
  // True for one of the threads that call it during a sleep: this one must wake the sleeper.
  bool take() noexcept {
    // seq_cst: see set(). relaxed: the exchange only decides which thread makes the wake-up.
    return asleep_.load(std::memory_order_seq_cst) && asleep_.exchange(false, std::memory_order_relaxed);
  }

 private:
  std::atomic<bool> asleep_{false};
};

}  // namespace slip::base
