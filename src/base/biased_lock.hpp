// BiasedLock: a lock for data that one thread uses nearly always and other threads rarely, and the asymmetric fences
// that it is built on. The queues of the cpu and cuda devices use it, for example.
//
// Every plain lock needs an atomic read-modify-write, which waits until the thread's earlier stores have reached the
// cache. If another core has just read those cache lines, as with a queue, that costs 40-60 ns each time. The bias
// owner of a BiasedLock takes it with plain stores and loads. Any other thread must first revoke the bias with a system
// call.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/sync.hpp"
#include "base/thread.hpp"

namespace slip::base {

// Two threads each store one flag and then load the other's. If one calls light_fence() between store and load and the
// other heavy_fence(), at least one of them sees the other's store. light_fence() costs nothing where the system has
// membarrier(2); elsewhere both are full fences.
extern const bool g_has_membarrier;
void heavy_fence();
inline void light_fence() {
  if (!g_has_membarrier) [[unlikely]]
    return full_fence();
  // Only keeps the compiler from reordering. The core may reorder: heavy_fence() makes every other running thread of
  // this process execute a full fence.
  asm volatile("" ::: "memory");
}

// A former bias owner may be late: it read that the lock is biased to it, and was preempted. Then it sets its flag in
// taken_ when the lock is already biased to another thread. So each thread that ever becomes the bias owner has its own
// slot, whose flag no other thread writes.
class SLIP_CAPABILITY("biased lock") BiasedLock {
 public:
  void lock() SLIP_ACQUIRE() {
    if (!lock_if_biased()) lock_slowly();
  }
  // Takes the lock if it is biased to this thread, without waiting and without an atomic read-modify-write. False: the
  // lock is not taken.
  bool lock_if_biased() SLIP_TRY_ACQUIRE(true) {
    const std::uint64_t bias = own_bias();
    return bias != 0 && enter_with(bias);
  }
  void unlock() SLIP_RELEASE() {
    // release: publishes what was written under the lock.
    if (slot_ >= 0) taken_[slot_].store(false, std::memory_order_release);
    else unlock_slow_path();
  }

 private:
  friend struct BiasedLockSteps;  // a test that stops a thread between the two steps of lock_if_biased

  // 0: the lock is biased to no thread, or to another one. relaxed: enter_with() checks the bias again.
  std::uint64_t own_bias() const {
    const std::uint64_t bias = bias_.load(std::memory_order_relaxed);
    return bias / kSlots == thread_index() ? bias : 0;
  }
  bool enter_with(std::uint64_t bias) {
    const auto slot = static_cast<int>(bias % kSlots);
    taken_[slot].store(true, std::memory_order_relaxed);
    light_fence();
    // If the bias is unchanged, this thread holds the lock: a thread that revokes the bias stores 0, calls
    // heavy_fence(), and waits while the slot is taken. relaxed: the data needs no acquire, because this thread held
    // the lock last.
    if (bias_.load(std::memory_order_relaxed) == bias) [[likely]] {
      slot_ = slot;
      return true;
    }
    taken_[slot].store(false, std::memory_order_release);
    return false;
  }

  // Maximum number of threads that one lock can be biased to in its life; later threads use `lock_`.
  static constexpr int kSlots = 4;
  static constexpr int kNoSlot = -1;

  // Takes lock_ and keeps it until unlock(). clang's analysis cannot follow a lock that is held on one path only.
  void lock_slowly() SLIP_NO_THREAD_SAFETY_ANALYSIS;
  void unlock_slow_path() SLIP_NO_THREAD_SAFETY_ANALYSIS { lock_.unlock(); }
  int find_slot(std::uint64_t thread) SLIP_REQUIRES(lock_);

  std::atomic<std::uint64_t> bias_{0};    // bias owner * kSlots + its slot; 0: no bias owner. Written under `lock_`
  std::atomic<bool> taken_[kSlots] = {};  // the slot's thread holds the lock, or is checking its bias
  SpinLock lock_;
  int slot_ = kNoSlot;  // the holder's slot if it entered by its bias; written by the holder
  // The lock becomes biased to a thread that takes it again `threshold_` times in a row. Each revocation raises the
  // threshold.
  std::uint64_t last_holder_ SLIP_GUARDED_BY(lock_) = 0;
  std::uint32_t streak_ SLIP_GUARDED_BY(lock_) = 0;
  std::uint32_t threshold_ SLIP_GUARDED_BY(lock_) = 16;
  std::uint64_t slot_owners_[kSlots] SLIP_GUARDED_BY(lock_) = {};  // thread_index(); 0: free
};

}  // namespace slip::base
