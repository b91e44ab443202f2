#include "base/thread.hpp"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <vector>

#include "base/fail.hpp"

namespace slip::base {
namespace {

struct Start {
  std::string name;
  std::function<void()> body;
  bool precise;
};

void* run(void* argument) {
  const std::unique_ptr<Start> start(static_cast<Start*>(argument));
  pthread_setname_np(pthread_self(), start->name.substr(0, 15).c_str());
  if (start->precise) prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
  start->body();
  return nullptr;
}

}  // namespace

CoreSet core_set() {
  cpu_set_t set;
  CoreSet cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores.set(0);
  for (std::size_t core = 0; core < cores.size() && core < CPU_SETSIZE; ++core) cores.set(core, CPU_ISSET(core, &set));
  return cores;
}

int current_core() { return sched_getcpu(); }

void leave_core(int core) {
  cpu_set_t all;
  if (core < 0 || sched_getaffinity(0, sizeof(all), &all) != 0) return;
  cpu_set_t others = all;
  CPU_CLR(static_cast<std::size_t>(core), &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof(others), &others) != 0) return;
  sched_setaffinity(0, sizeof(all), &all);  // the thread stays on its new core until the system moves it
}

std::int64_t preemptions() {
  rusage usage{};
  if (getrusage(RUSAGE_THREAD, &usage) != 0) return 0;
  return usage.ru_nivcsw;
}

int core_count() { return static_cast<int>(core_set().count()); }

std::uint64_t make_thread_index() {
  static std::atomic<std::uint64_t> counter{0};
  return counter.fetch_add(1, std::memory_order_relaxed) + 1;  // relaxed: only uniqueness counts
}

void Thread::start(const std::string& name, std::function<void()> body, bool precise) {
  auto start = std::make_unique<Start>(Start{name, std::move(body), precise});
  // The new thread blocks all signals but those of its own faults, so that signal handlers run on the program's own
  // threads.
  sigset_t all, old;
  sigfillset(&all);
  for (int fatal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP}) sigdelset(&all, fatal);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  const int error = pthread_create(&handle_, nullptr, run, start.get());
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  if (error != 0) fail(ErrorCode::kOutOfMemory, {}, "cannot start thread '{}': {}", name, std::strerror(error));
  static_cast<void>(start.release());  // the new thread owns it now
  started_ = true;
}

void Thread::join() {
  if (!started_) return;
  pthread_join(handle_, nullptr);
  started_ = false;
}

void Thread::detach() {
  if (!started_) return;
  pthread_detach(handle_);
  started_ = false;
}

void run_threads(const char* name, std::size_t count, const std::function<void(std::size_t)>& body) {
  std::vector<Thread> threads(count);
  std::vector<std::exception_ptr> errors(count);
  const auto guarded = [&errors](std::size_t i, auto&& function) {
    try {
      function();
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  for (std::size_t i = 0; i < count; ++i) {
    // If a thread cannot be started, the others use this frame and must be joined, too.
    guarded(i, [&] { threads[i].start(fmt::format("{}-{}", name, i), [&, i] { guarded(i, [&] { body(i); }); }); });
  }
  for (Thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

void set_time_slice(TimeSlice slice) {
  struct {  // sched_attr, which the C library does not declare
    std::uint32_t size, policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime, deadline, period;
  } attributes{};
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;  // the program chose another policy: keep it
  attributes.size = sizeof(attributes);
  attributes.runtime = slice == TimeSlice::kShort ? 100'000 : 0;  // ns, the minimum; 0: the default
  // If this is not permitted, the slice does not change.
  static_cast<void>(::syscall(SYS_sched_setattr, 0, &attributes, 0));
}

void at_fork(void (*before)(), void (*in_parent)(), void (*in_child)()) { pthread_atfork(before, in_parent, in_child); }

}  // namespace slip::base
