// A lock for data that one thread uses nearly always and others now and then, and the pair of fences that it stands on.
//
// A read-modify-write, as every plain lock needs, waits until the stores before it have reached the cache: where those
// stores go to lines that another core just read, as those of a queue do, that costs some 40-60 ns an op. The thread
// that a BiasedLock leans to takes it with plain stores and loads; any other thread pays for both with a system call.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/sync.hpp"
#include "base/thread.hpp"

namespace slip {

// Two threads that each store one flag and then load the other's: with light_fence() between store and load in one and
// heavy_fence() in the other, at least one of them sees the other's store. The light one costs nothing where the system
// offers membarrier; elsewhere both are full fences.
extern const bool g_has_membarrier;
void heavy_fence();
inline void light_fence() {
  if (!g_has_membarrier) [[unlikely]]
    return full_fence();
  asm volatile("" ::: "memory");  // the compiler keeps the order; heavy_fence() does the rest
}

// A former favourite may be late: it saw that the lock leans to it, was stopped, and writes its flag when the lock
// leans to another thread. So each thread that is ever the favourite has a seat of its own, with a flag that nobody
// else writes.
class BiasedLock {
 public:
  void lock() {
    if (!lock_if_mine()) lock_slowly();
  }
  // Takes the lock if it leans to this thread: without waiting, without an atomic operation.
  bool lock_if_mine() {
    const std::uint64_t favour = my_favour();
    return favour != 0 && enter_with(favour);
  }
  void unlock() {
    // release: publishes what was written under the lock.
    if (seat_ >= 0) taken_[seat_].store(false, std::memory_order_release);
    else lock_.unlock();
  }

 private:
  friend struct BiasedLockSteps;  // a test that stops a thread between the two steps of lock_if_mine

  // 0: it leans to nobody, or to another thread.
  std::uint64_t my_favour() const {
    const std::uint64_t favour = favour_.load(std::memory_order_relaxed);
    return favour / kSeats == thread_index() ? favour : 0;
  }
  bool enter_with(std::uint64_t favour) {
    const auto seat = static_cast<int>(favour % kSeats);
    taken_[seat].store(true, std::memory_order_relaxed);
    light_fence();
    // Still ours: who takes the favour away does so before its heavy fence and then waits while the seat is taken.
    // Relaxed: the last holder was this thread, or gave the favour to it under `lock_`.
    if (favour_.load(std::memory_order_relaxed) == favour) [[likely]] {
      seat_ = seat;
      return true;
    }
    taken_[seat].store(false, std::memory_order_release);
    return false;
  }

  static constexpr int kSeats = 4;  // threads that one lock can lean to in its life; the next ones use `lock_`
  static constexpr int kNoSeat = -1;

  void lock_slowly();
  int find_seat(std::uint64_t thread);

  std::atomic<std::uint64_t> favour_{0};  // thread * kSeats + its seat: may enter without `lock_`; written under it
  std::atomic<bool> taken_[kSeats] = {};  // the seat's thread holds the lock, or looks whether it may
  SpinLock lock_;
  int seat_ = kNoSeat;                 // of the holder, if it came in as the favourite; written by the holder
  std::uint32_t streak_ = 0;           // guarded by lock_: how often in a row
  std::uint64_t last_ = 0;             // the last holder held it,
  std::uint32_t patience_ = 16;        // and how often makes it the favourite: more each time that proved wrong
  std::uint64_t owners_[kSeats] = {};  // guarded by lock_: the seats' threads
};

}  // namespace slip
