// Locks and waiting: a spin lock for critical sections of a few instructions, and Parker, on which one thread sleeps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace slip {

// Tells the core that this is a spin loop.
inline void cpu_relax() {
#if defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` is a no-op on these cores; isb waits some tens of cycles
#elif defined(__x86_64__)
  asm volatile("pause" ::: "memory");
#endif
}

void yield_thread();  // gives the core to another thread

// One turn of a loop that waits for a thread which will be done at once, or needs this very core to be.
inline void spin(int turn) {
  if (turn < 64) cpu_relax();
  else yield_thread();
}

// An acquire that follows a relaxed access. On aarch64 an acquire access itself also waits for every earlier release
// store of this thread to become visible, tens of nanoseconds on a hot path where those lines are contended; the fence
// does not. ThreadSanitizer does not know fences, so with it the access itself acquires (kAcquire).
#if defined(__SANITIZE_THREAD__)
inline constexpr std::memory_order kAcquire = std::memory_order_acquire;
inline void acquire_fence() {}
inline void full_fence() {
#if defined(__aarch64__)
  asm volatile("dmb ish" ::: "memory");
#else
  asm volatile("mfence" ::: "memory");
#endif
}
#else
inline constexpr std::memory_order kAcquire = std::memory_order_relaxed;
inline void acquire_fence() { std::atomic_thread_fence(std::memory_order_acquire); }
inline void full_fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
#endif

template <class T>
T load_acquire(const std::atomic<T>& value) {
  const T result = value.load(kAcquire);
  acquire_fence();
  return result;
}

class SpinLock {
 public:
  void lock() {
    while (held_.exchange(true, kAcquire)) wait();
    acquire_fence();  // sees what the last holder wrote
  }
  bool try_lock() {
    const bool taken = !held_.exchange(true, kAcquire);
    acquire_fence();
    return taken;
  }
  // release: publishes what was written under the lock.
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  void wait() {
    for (int spins = 0; held_.load(std::memory_order_relaxed); ++spins) spin(spins);
  }
  std::atomic<bool> held_{false};
};

// A place where one thread sleeps until another gives it a token. A token given early is kept, so no wake-up is lost.
class Parker {
 public:
  // Sleeps until a token comes or `deadline_ns` (of now_ns(), 0: never) passes; true if it took a token.
  bool park(std::int64_t deadline_ns = 0);
  void unpark();

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool token_ = false;
};

}  // namespace slip
