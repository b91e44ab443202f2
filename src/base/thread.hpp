// Thread: starts and joins a thread. Also a unique number for each thread, its scheduler slice, the cores that it may
// use, and hooks around fork(). A "core" is a CPU number of the operating system.
#pragma once

#include <pthread.h>

#include <atomic>
#include <bitset>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace slip::base {

using CoreSet = std::bitset<1024>;
CoreSet core_set();  // the cores that this process may use; processes of one host can compare their sets
int core_count();    // their number

// The core on which this thread runs: a hint, because it may move at any time. Takes a few nanoseconds.
int current_core();
// Moves this thread from `core` to another core that it may use, if there is one. The system may move it back. Takes
// microseconds.
void leave_core(int core);
// The number of involuntary context switches of this thread. Costs a system call.
std::int64_t preemptions();

inline thread_local constinit std::uint64_t t_thread_index = 0;
std::uint64_t make_thread_index();

// The number of this thread: 1, 2, 3, ... in the order of the first calls. A number is never reused.
inline std::uint64_t thread_index() {
  if (t_thread_index == 0) [[unlikely]]
    t_thread_index = make_thread_index();
  return t_thread_index;
}

// A thread that the owner joins or detaches explicitly. The destructor does neither and leaves the thread running: at
// exit and in a forked child, joining could block for ever.
class Thread {
 public:
  Thread() = default;
  // `precise`: timed sleeps of this thread have a timer slack of 1 us instead of 50 us.
  void start(const std::string& name, std::function<void()> body, bool precise = false);
  void join();
  void detach();
  bool started() const { return started_; }

 private:
  pthread_t handle_{};
  bool started_ = false;
};

// Calls body(0) to body(count - 1), each on a new thread NAME-INDEX. Returns when all threads have ended; then throws
// the error of the first body that failed.
void run_threads(const char* name, std::size_t count, const std::function<void(std::size_t)>& body);

// Sets the scheduler slice of the calling thread. When a thread with a short slice wakes up, it preempts threads with
// longer slices, which would otherwise keep the core for some milliseconds. Needs Linux 6.12; earlier systems ignore
// it.
enum class TimeSlice { kUsual, kShort };
void set_time_slice(TimeSlice slice);

// Registers functions that run around fork(): before it in the parent, after it in the parent and in the child.
void at_fork(void (*before)(), void (*in_parent)(), void (*in_child)());

// The only T of the process. The first call makes it. It is never destroyed, because threads and objects of static
// lifetime may use it until the process ends. kInChild runs in a child of fork(), perhaps more than once.
//
// A static local object would not do. If another thread constructed it at the moment of a fork, it would stay
// incomplete in the child. The child's first use would then wait for ever. Here the child makes its own. Two threads
// may each make a T; one of them is kept.
template <class T, void (*kInChild)() = nullptr>
T& process_wide() {
  static constinit std::atomic<T*> kept{nullptr};
  if (T* const object = kept.load(std::memory_order_acquire)) return *object;  // acquire: sees what its maker wrote
  if constexpr (kInChild != nullptr) at_fork(nullptr, nullptr, kInChild);
  auto made = std::make_unique<T>();
  T* object = nullptr;
  // release: publishes the new object; acquire: sees the object of the other thread.
  if (kept.compare_exchange_strong(object, made.get(), std::memory_order_acq_rel, std::memory_order_acquire))
    object = made.release();
  return *object;
}

// The T of this thread, which the end of the thread destroys. The main thread's objects end before the exit handlers
// run. If such a handler uses the T, it gets another one, which is never destroyed.
template <class T>
T& thread_wide() {
  static thread_local constinit T* t_object = nullptr;
  if (t_object) [[likely]]
    return *t_object;
  struct Owner {
    ~Owner() { delete std::exchange(t_object, nullptr); }
  };
  t_object = new T;
  static thread_local const Owner kOwner;
  static_cast<void>(kOwner);
  return *t_object;
}

}  // namespace slip::base
