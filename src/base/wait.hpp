// How a thread waits for something that another thread, process or device does. The policies of such waits are here, so
// that they can be compared. Three waits have their own, because their lengths depend on what they found before:
// comm/host/call_waiter.cpp, comm/staged/staged_thread.cpp and backend/cpu/lane_scheduler.cpp.
//
// - Backoff: no thread wakes the waiting one, so it polls: it spins, then yields, then sleeps between polls. The phases
//   end after a number of polls, so a spin does not read the clock.
// - IdleWait: something wakes the thread once it sleeps, or a poll itself takes long (a system call, or driving a
//   connection). The phases end after a time without progress. The caller sleeps, in a Parker or in poll with
//   a WakeUp (base/sync.hpp).
//
// Each object belongs to one thread. There are no atomics here: the condition of the caller has the memory ordering.
#pragma once

#include <sched.h>
#include <time.h>

#include <cstdint>
#include <limits>

#include "base/clock.hpp"

namespace slip::base {

// A hint to the core that this is a spin loop.
inline void cpu_relax() {
#if defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` is a no-op on these cores; isb waits some tens of cycles
#elif defined(__x86_64__)
  asm volatile("pause" ::: "memory");
#endif
}

inline void yield_thread() { sched_yield(); }  // lets another thread run on this core
// `time`: less than a second. Sleeps for that time plus the timer slack. A signal may end it early: the caller checks
// its condition again anyway.
inline void sleep_ns(std::int64_t time) {
  const timespec rest{0, time};
  nanosleep(&rest, nullptr);
}

// How a thread polls in a loop for a condition for which no other thread will wake it.
struct WaitPolicy {
  static constexpr int kUnlimited = std::numeric_limits<int>::max();
  int spins = 0;                   // number of first iterations, which only call cpu_relax()
  int relaxes = 1;                 // number of these calls in the first iteration
  int relax_step = 0;              // how many more calls each next iteration makes
  int max_relaxes = 0;             // maximum number of calls in an iteration; used if relax_step is not 0
  int yields = 0;                  // number of next iterations, which yield the core; all later iterations sleep
  std::int64_t sleep_ns = 0;       // duration of the first sleep
  std::int64_t sleep_step_ns = 0;  // how much longer each next sleep is
  std::int64_t max_sleep_ns = 0;   // maximum duration of a sleep; used if sleep_step_ns is not 0

  // Number of calls of cpu_relax() in this iteration, which is one of the spins.
  constexpr int relaxes_at(int iteration) const {
    if (relax_step == 0) return relaxes;
    const int number = relaxes + relax_step * iteration;
    return number < max_relaxes ? number : max_relaxes;
  }
  // Length of the sleep in this iteration, which comes after the spins and yields.
  constexpr std::int64_t sleep_at(int iteration) const {
    const std::int64_t time = sleep_ns + sleep_step_ns * (iteration - spins - yields);
    return time < max_sleep_ns || sleep_step_ns == 0 ? time : max_sleep_ns;
  }
};
// For locks: the holder needs a few instructions, or needs this core to execute them.
inline constexpr WaitPolicy kLockWait{.spins = 64, .yields = WaitPolicy::kUnlimited};
// For other threads that need microseconds or longer, and perhaps this core: to leave a call, to make their part of an
// exchange in virtual time, or to run anything at all if the process has one core.
inline constexpr WaitPolicy kYieldWait{.yields = WaitPolicy::kUnlimited};
// For a lane of the cpu device that another thread runs. Reading the lane's position too often slows that thread down,
// so the pauses grow. After `spins` polls (some microseconds) Pool::wait() parks the waiting thread.
inline constexpr WaitPolicy kLaneWait{
    .spins = 100, .relaxes = 0, .relax_step = 1, .max_relaxes = 32, .yields = WaitPolicy::kUnlimited};
// For device work: a query takes about a microsecond, and short work is done after a few queries.
inline constexpr WaitPolicy kDeviceQueryWait{.spins = 101, .sleep_ns = 20'000};
// For a flag that a kernel writes within a second, read by a thread that watches a communicator.
inline constexpr WaitPolicy kKernelFlagWait{.sleep_ns = 20'000};
// For a part of a collective of a rank on a GPU, if no network notifies the thread of the other ranks' messages. The
// thread is one of the library's own, so it leaves the cores to the program.
inline constexpr WaitPolicy kPartWait{.sleep_ns = 20'000, .sleep_step_ns = 2'000, .max_sleep_ns = 100'000};
// For another library that does something in its own threads, such as NCCL destroying a communicator: milliseconds.
inline constexpr WaitPolicy kLibraryWait{.sleep_ns = 200'000};
// For an op of unknown length that another thread runs.
inline constexpr WaitPolicy kOpWait{.sleep_ns = 50'000};
// For a condition that the user's program must change: it may do so soon, or in minutes.
inline constexpr WaitPolicy kProgramWait{
    .yields = 8, .sleep_ns = 45'000, .sleep_step_ns = 5'000, .max_sleep_ns = 200'000};

// One wait with a policy: for (Backoff backoff; !ready(); backoff.pause()) {}
class Backoff {
 public:
  constexpr explicit Backoff(const WaitPolicy& policy = kLockWait) : policy_(policy) {}
  void pause() {
    const int iteration = iteration_;
    if (iteration < kMaxIteration) ++iteration_;
    if (iteration < policy_.spins) {
      for (int left = policy_.relaxes_at(iteration); left > 0; --left) cpu_relax();
    } else if (iteration - policy_.spins < policy_.yields) {
      yield_thread();
    } else {
      sleep_ns(policy_.sleep_at(iteration));
    }
  }
  int pauses() const { return iteration_; }  // number of pauses since the start or restart()
  void restart() { iteration_ = 0; }         // the thread made progress: the wait begins again

 private:
  static constexpr int kMaxIteration = 1 << 30;  // the counter stops here, because a wait may take days
  const WaitPolicy policy_;
  int iteration_ = 0;
};

// How a thread waits that sleeps until it is woken, or whose polls take long. Both times count from its last progress.
struct IdlePolicy {
  double spin_us = 0;   // until then it polls without a pause
  double yield_us = 0;  // then, until this time, it yields after each poll; never if this is not above spin_us
};
// For a helper of a parallel loop: longer than the gap between two kernels of a stream, and too short to delay other
// threads noticeably.
inline constexpr IdlePolicy kHelperWait{.spin_us = 30};
// For the worker of a cpu device that looks for work. A woken thread takes microseconds to begin.
inline constexpr IdlePolicy kSearchWait{.spin_us = 20};
// For a thread that waits for a network operation and drives the connection meanwhile.
inline constexpr IdlePolicy kNetWait{.spin_us = 50, .yield_us = 300};
// For the proxy thread, which drives the connections for which no thread waits. Kernels may need its core.
inline constexpr IdlePolicy kProxyWait{.spin_us = 20};

// One wait with such a policy. After each poll the caller does what next() returns.
class IdleWait {
 public:
  enum class Next : std::uint8_t { kSpin, kYield, kSleep };

  explicit IdleWait(const IdlePolicy& policy, std::uint64_t now = ticks())
      : spin_ticks_(ticks_of(policy.spin_us)), yield_ticks_(ticks_of(policy.yield_us)), since_(now) {}
  // What follows a poll at the time `now`, in ticks(). `progress`: the poll found something, so the wait begins again.
  Next next(bool progress, std::uint64_t now = ticks()) {
    if (progress) since_ = now;
    const std::uint64_t idle = now - since_;
    if (idle < spin_ticks_) return Next::kSpin;
    return idle < yield_ticks_ ? Next::kYield : Next::kSleep;
  }

 private:
  static std::uint64_t ticks_of(double us) { return static_cast<std::uint64_t>(us * ticks_per_us()); }

  const std::uint64_t spin_ticks_, yield_ticks_;
  std::uint64_t since_;  // ticks() of the last progress
};

}  // namespace slip::base
