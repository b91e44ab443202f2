// Locks, and how a sleeping thread is woken. The policies of polling loops are in base/wait.hpp.
//
// - Mutex, LockGuard and CondVar: std::mutex and its companions with thread-safety annotations.
// - SpinLock: guards critical sections of a few instructions.
// - Parker: a thread sleeps, and waits for nothing but the wake-up by another thread.
// - WakeUp: a thread sleeps in poll(2), because it also waits for sockets or other descriptors.
// - SleepFlag: says whether the thread sleeps, so that others make the system call for the wake-up only then.
// - Subscriber: an object that a source of events wakes.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/wait.hpp"

// For clang's thread-safety analysis (-Wthread-safety): which lock guards a member, and which lock a function needs.
// clang then reports every access without that lock. Other compilers ignore them.
#if defined(__clang__)
#define SLIP_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define SLIP_THREAD_ANNOTATION(x)
#endif

// On types: a lock, and an object that holds a lock from its construction to its destruction.
#define SLIP_CAPABILITY(name) SLIP_THREAD_ANNOTATION(capability(name))
#define SLIP_SCOPED_CAPABILITY SLIP_THREAD_ANNOTATION(scoped_lockable)

// On members and static variables: the lock that must be held to use it; PT: to use the object that it points to.
#define SLIP_GUARDED_BY(lock) SLIP_THREAD_ANNOTATION(guarded_by(lock))
#define SLIP_PT_GUARDED_BY(lock) SLIP_THREAD_ANNOTATION(pt_guarded_by(lock))

// On functions, in this order: the caller must hold the lock; the function takes it; releases it; takes it if it
// returns the given value.
#define SLIP_REQUIRES(...) SLIP_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define SLIP_ACQUIRE(...) SLIP_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define SLIP_RELEASE(...) SLIP_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define SLIP_TRY_ACQUIRE(...) SLIP_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
// The caller must not hold the lock, because the function takes it.
#define SLIP_EXCLUDES(...) SLIP_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
// The function returns a reference to this lock.
#define SLIP_RETURN_CAPABILITY(lock) SLIP_THREAD_ANNOTATION(lock_returned(lock))

// The function is not analysed. A comment beside it says why it is correct.
#define SLIP_NO_THREAD_SAFETY_ANALYSIS SLIP_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace slip::base {

// The base of classes whose objects can be neither copied nor moved.
struct NoCopy {
  NoCopy() = default;
  NoCopy(const NoCopy&) = delete;
  NoCopy& operator=(const NoCopy&) = delete;
};

// Call acquire_fence() after an access with order kAcquire; together they acquire. On aarch64 an acquire load also
// waits until every earlier release store of this thread is visible: tens of nanoseconds if those lines are contended.
// A relaxed load and a fence do not. ThreadSanitizer does not support fences, so with it the access itself acquires.
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

class SLIP_CAPABILITY("spin lock") SpinLock {
 public:
  void lock() SLIP_ACQUIRE() {
    while (held_.exchange(true, kAcquire)) wait();
    acquire_fence();  // sees what the last holder wrote
  }
  bool try_lock() SLIP_TRY_ACQUIRE(true) {
    const bool taken = !held_.exchange(true, kAcquire);
    acquire_fence();
    return taken;
  }
  // release: publishes what was written under the lock.
  void unlock() SLIP_RELEASE() { held_.store(false, std::memory_order_release); }

 private:
  void wait() {
    for (Backoff backoff; held_.load(std::memory_order_relaxed); backoff.pause()) {}
  }
  std::atomic<bool> held_{false};
};

class SLIP_CAPABILITY("mutex") Mutex {
 public:
  void lock() SLIP_ACQUIRE() { mutex_.lock(); }
  bool try_lock() SLIP_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() SLIP_RELEASE() { mutex_.unlock(); }

 protected:
  friend class CondVar;
  std::mutex mutex_;
};

// ForkMutex: a mutex for process-wide tables that stays usable in a forked child.
//
// fork() copies the state of a mutex. If another thread holds it, the child's copy stays locked for ever, and the table
// may be half changed. Therefore fork handlers lock every ForkMutex before a fork and unlock it afterwards, in the
// parent and in the child. So fork() waits for the holders: hold a ForkMutex only for one access of the table.
class SLIP_CAPABILITY("mutex") ForkMutex : public Mutex {
 public:
  ForkMutex();
  ~ForkMutex();

 private:
  friend struct ForkMutexes;
  ForkMutex* next_ = nullptr;  // next in the list of all ForkMutexes; guarded by ForkMutexes::mutex
};

// Holds a lock of any type of this library while it exists.
template <class Lock>
class SLIP_SCOPED_CAPABILITY LockGuard : NoCopy {
 public:
  explicit LockGuard(Lock& lock) SLIP_ACQUIRE(lock) : lock_(lock) { lock_.lock(); }
  ~LockGuard() SLIP_RELEASE() { lock_.unlock(); }

 private:
  Lock& lock_;
};

// Releases a lock that its creator holds, while it exists.
template <class Lock>
class SLIP_SCOPED_CAPABILITY LockPause : NoCopy {
 public:
  explicit LockPause(Lock& lock) SLIP_RELEASE(lock) : lock_(lock) { lock_.unlock(); }
  ~LockPause() SLIP_RELEASE() { lock_.lock(); }  // RELEASE: of the pause, so it takes the lock again

 private:
  Lock& lock_;
};

// A condition variable. wait() may return without a notification: callers check their condition in a loop.
class CondVar {
 public:
  void wait(Mutex& mutex) SLIP_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // Relative, because libstdc++ 12 with ThreadSanitizer supports wait_until on the system clock only.
  void wait_for(Mutex& mutex, std::chrono::nanoseconds time) SLIP_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait_for(lock, time);
    lock.release();
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

// One thread sleeps in park() until another thread calls unpark(), which stores a token. A token that is stored before
// park() makes it return at once, so no wake-up is lost. The Parker must outlive each call of unpark(), which still
// uses it when park() has returned.
class Parker {
 public:
  // Sleeps until there is a token or until `deadline_ns` (in now_ns() time; 0: no deadline). True: it consumed a token.
  bool park(std::int64_t deadline_ns = 0);
  void unpark();

 private:
  Mutex mutex_;
  CondVar condition_;
  bool token_ SLIP_GUARDED_BY(mutex_) = false;
};

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

// An object that subscribes to a source of events, which calls wake_up() after each event.
class Subscriber {
 public:
  // Called from any thread; must return at once and take no lock that is held for long.
  virtual void wake_up() noexcept = 0;

 protected:
  ~Subscriber() = default;
};

}  // namespace slip::base
