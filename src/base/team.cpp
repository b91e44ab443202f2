#include "base/team.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/sync.hpp"
#include "base/thread.hpp"
#include "base/wait.hpp"
#include "slip/error.hpp"

namespace slip::base {
namespace {

struct Helper {
  Thread thread;
  Parker parker;
  SleepFlag asleep;
};

// A loop that threads may join while it is open. Its owner opens and closes it.
class SharedLoop {
 public:
  void open(const detail::Loop& loop) {
    loop_ = loop;
    next_.store(0, std::memory_order_relaxed);  // relaxed, both: the fetch_add below publishes them
    count_.store(loop.count, std::memory_order_relaxed);
    // seq_cst: the owner opens the loop and then reads the helpers' `asleep`; a helper sets `asleep` and then checks
    // whether a loop is open. At least one of the two sees the other's write.
    state_.fetch_add(kNumber + kOpen, std::memory_order_seq_cst);
  }
  // From now on no thread can join, because join() changes the same atomic. relaxed: has_others() acquires.
  void close() { state_.fetch_sub(kOpen, std::memory_order_relaxed); }
  // After close(): whether other threads still run indices. acquire, with the release in leave(): sees what they wrote.
  bool has_others() const { return (state_.load(std::memory_order_acquire) & kInsideMask) != 0; }
  void await_others() const {
    for (Backoff backoff; has_others(); backoff.pause()) {}
  }
  // Returns the first exception that a body threw, if any. REQUIRES: all threads have left.
  std::exception_ptr take_error() {
    const LockGuard lock(error_lock_);
    return std::exchange(error_, nullptr);
  }

  // True: a loop is open, and its number is not `except`.
  bool is_open(std::memory_order order, std::uint64_t except = 0) const {
    const std::uint64_t state = state_.load(order);
    return (state & kOpen) != 0 && state / kNumber != except;
  }
  // True: this thread has joined and must call leave(). `last`: the number of the loop that it joined last, which it
  // does not join again.
  bool join(std::uint64_t& last) {
    std::uint64_t state = state_.load(std::memory_order_relaxed);
    while ((state & kOpen) != 0 && state / kNumber != last) {
      // acquire: sees the loop that was opened.
      if (!state_.compare_exchange_weak(state, state + kInside, std::memory_order_acquire, std::memory_order_relaxed))
        continue;
      last = state / kNumber;
      return true;
    }
    return false;
  }
  // release: the owner sees what this thread wrote.
  void leave() { state_.fetch_sub(kInside, std::memory_order_release); }

  // Runs the next index. False: no index is left. Called by the owner and by threads that have joined.
  bool do_one() {
    // relaxed: only the uniqueness of the index matters.
    const std::size_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= loop_.count) return false;
    try {
      loop_.call(loop_.body, index);
    } catch (...) {
      const LockGuard lock(error_lock_);
      if (!error_) error_ = std::current_exception();
      // Skips the remaining indices. relaxed, only a hint: another thread may still begin one more index.
      next_.store(loop_.count, std::memory_order_relaxed);
    }
    return true;
  }
  // A hint for threads that have not joined. relaxed: a thread that acts on it joins first, which acquires.
  bool has_more() const { return next_.load(std::memory_order_relaxed) < count_.load(std::memory_order_relaxed); }

 private:
  // Bit fields of state_: the number of the loop, the number of joined threads (without the owner), and whether more
  // may join.
  static constexpr std::uint64_t kOpen = 1, kInside = 2, kInsideMask = 0xfffe, kNumber = 0x10000;

  detail::Loop loop_;
  std::atomic<std::size_t> count_{0};  // a copy of loop_.count for threads that have not joined
  alignas(64) std::atomic<std::uint64_t> state_{0};
  alignas(64) std::atomic<std::size_t> next_{0};
  SpinLock error_lock_;
  std::exception_ptr error_ SLIP_GUARDED_BY(error_lock_);
};

class Team {
 public:
  // False: another loop uses the helpers, and nothing was run.
  bool run(const detail::Loop& loop);
  // Runs small background work (for_each_background_piece) between the indices of loops: see team.hpp. False: other
  // background work has not ended, or there are no helpers; nothing was run.
  bool run_background(const detail::Loop& loop);
  bool is_busy() const { return loop_.is_open(std::memory_order_relaxed); }

  // In a forked child: the unused team of the parent, kept reachable for leak checkers.
  Team* parents_team = nullptr;

 private:
  void start_helpers();
  void wake(std::size_t wanted);
  void help(Helper& helper);
  void await_loop(Helper& helper, std::uint64_t last);
  void work();
  bool do_background_piece();
  void wake_background_caller();

  Mutex start_mutex_;  // guards no data: one thread starts the helpers
  std::atomic<bool> started_{false};
  std::vector<std::unique_ptr<Helper>> helpers_;  // constant once started

  SpinLock busy_;  // guards no data: held by the thread whose loop runs
  SharedLoop loop_;

  SpinLock background_busy_;  // guards no data: held by the thread whose background work runs
  SharedLoop background_;
  Parker background_parker_;
  SleepFlag background_caller_sleeps_;
};

void Team::start_helpers() {
  if (started_.load(std::memory_order_acquire)) return;  // acquire, with the release below: helpers_ is complete
  const LockGuard lock(start_mutex_);
  if (started_.load(std::memory_order_relaxed)) return;  // relaxed: the mutex orders it
  const int wanted = core_count() - 1;
  for (int i = 0; i < wanted; ++i) {
    auto helper = std::make_unique<Helper>();
    Helper* const self = helper.get();
    helpers_.push_back(std::move(helper));
    try {
      self->thread.start(fmt::format("slip-team-{}", i), [this, self] { help(*self); });
    } catch (const Error&) {  // the system cannot start more threads: work with fewer
      helpers_.pop_back();
      break;
    }
  }
  started_.store(true, std::memory_order_release);
}

bool Team::run(const detail::Loop& loop) {
  start_helpers();
  if (!busy_.try_lock()) return false;
  loop_.open(loop);
  wake(loop.count - 1);
  work();
  loop_.close();
  while (loop_.has_others()) {
    if (!do_background_piece()) loop_.await_others();
  }
  const std::exception_ptr error = loop_.take_error();
  busy_.unlock();
  if (error) std::rethrow_exception(error);
  return true;
}

void Team::wake(std::size_t wanted) {
  for (std::size_t i = 0; i < std::min(wanted, helpers_.size()); ++i) {
    if (helpers_[i]->asleep.take()) helpers_[i]->parker.unpark();  // after the seq_cst change in SharedLoop::open()
  }
}

// After each index the thread does background work for as long as the index took, so both get half of the core's time.
// It does none after the last index, because then the owner of the loop waits for this thread.
void Team::work() {
  for (std::uint64_t begun = ticks(); loop_.do_one(); begun = ticks()) {
    const std::uint64_t ended = ticks();
    while (loop_.has_more() && ticks() - ended < ended - begun && do_background_piece()) {}
  }
}

// Does one piece of background work. False: none is left.
bool Team::do_background_piece() {
  if (!background_.is_open(std::memory_order_relaxed) || !background_.has_more())
    return false;  // relaxed: join() acquires
  std::uint64_t none = 0;
  if (!background_.join(none)) return false;
  const bool done = background_.do_one();
  const bool last = !background_.has_more();
  background_.leave();
  if (last) wake_background_caller();
  return done;
}

bool Team::run_background(const detail::Loop& loop) {
  start_helpers();
  if (helpers_.empty() || !background_busy_.try_lock()) return false;
  background_.open(loop);
  wake(loop.count);
  while (background_.has_more()) {
    // relaxed: only a hint. While a loop runs, its threads need the cores.
    if (!loop_.is_open(std::memory_order_relaxed) && do_background_piece()) continue;
    // Either this thread sees that no piece is left, or the thread that took the last piece sees the flag.
    background_caller_sleeps_.set();
    if (background_.has_more()) background_parker_.park();
    background_caller_sleeps_.clear();
  }
  background_.close();
  background_.await_others();
  const std::exception_ptr error = background_.take_error();
  background_busy_.unlock();
  if (error) std::rethrow_exception(error);
  return true;
}

void Team::wake_background_caller() {
  full_fence();  // orders the taking of the last piece before the flag; see run_background()
  if (background_caller_sleeps_.take()) background_parker_.unpark();
}

void Team::await_loop(Helper& helper, std::uint64_t last) {
  IdleWait idle(kHelperWait);
  Backoff backoff;
  for (bool progress = false; idle.next(progress) != IdleWait::Next::kSleep;) {
    if (loop_.is_open(std::memory_order_relaxed, last)) return;  // relaxed: join() acquires
    progress = do_background_piece();
    if (!progress) backoff.pause();
  }
  helper.asleep.set();  // then this helper checks for loops; run() and run_background() open first and then read it
  const bool has_background = background_.is_open(std::memory_order_seq_cst) && background_.has_more();
  if (!has_background && !loop_.is_open(std::memory_order_seq_cst, last)) helper.parker.park();
  helper.asleep.clear();
}

void Team::help(Helper& helper) {
  for (std::uint64_t last = 0;;) {
    if (!loop_.join(last)) {
      await_loop(helper, last);
      continue;
    }
    work();
    loop_.leave();
  }
}

std::atomic<Team*> g_team{nullptr};

// After fork() the child has no helper threads, and must not continue a loop that another thread of the parent was
// running.
void forget_team() {
  static Team* parents_team = nullptr;
  Team* const old = g_team.exchange(nullptr, std::memory_order_relaxed);  // relaxed: the child has one thread
  if (!old) return;
  old->parents_team = parents_team;
  parents_team = old;
}

Team& team() {
  if (Team* const found = g_team.load(std::memory_order_acquire)) return *found;  // acquire, with the release below
  [[maybe_unused]] static const bool kInstalled = [] {
    at_fork(nullptr, nullptr, forget_team);
    return true;
  }();
  auto made = std::make_unique<Team>();
  Team* expected = nullptr;
  // release: other threads see the constructed team. acquire: if another thread was first, this one sees its team.
  if (g_team.compare_exchange_strong(expected, made.get(), std::memory_order_acq_rel, std::memory_order_acquire))
    return *made.release();
  return *expected;
}

}  // namespace

bool team_is_busy() {
  // acquire: sees the constructed team.
  const Team* const found = g_team.load(std::memory_order_acquire);
  return found && found->is_busy();
}

void detail::run_loop(const Loop& loop, bool background) {
  if (loop.count > 1 && (background ? team().run_background(loop) : team().run(loop))) return;
  for (std::size_t index = 0; index < loop.count; ++index) loop.call(loop.body, index);
}

}  // namespace slip::base
