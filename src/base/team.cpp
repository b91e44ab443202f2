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
#include "slip/error.hpp"

namespace slip {
namespace {

// Longer than the gap between two kernels of a stream, shorter than anybody misses a core.
constexpr double kSpinMicros = 30;

// A helper and where it sleeps.
struct Helper {
  Thread thread;
  Parker parker;
  std::atomic<bool> asleep{false};
};

class Team {
 public:
  // False: another loop has the helpers.
  bool run(const detail::Loop& loop);

  Team* left_behind = nullptr;  // the team of the parent, in a child: unused, and no leak

 private:
  // state_: which loop it is, how many helpers are in it, and whether more may enter.
  static constexpr std::uint64_t kOpen = 1, kInside = 2, kInsideMask = 0xfffe, kNumber = 0x10000;

  void start_helpers();
  void wake(std::size_t wanted);
  void help(Helper& helper);
  bool enter(std::uint64_t& last);
  void await_loop(Helper& helper, std::uint64_t last);
  bool has_loop(std::uint64_t last, std::memory_order order) const {
    const std::uint64_t state = state_.load(order);
    return (state & kOpen) != 0 && state / kNumber != last;
  }
  void work();

  SpinLock busy_;  // held by the thread whose loop it is; the fields down to error_ are its
  bool started_ = false;
  std::vector<std::unique_ptr<Helper>> helpers_;
  detail::Loop loop_;
  alignas(64) std::atomic<std::uint64_t> state_{0};
  alignas(64) std::atomic<std::size_t> next_{0};
  SpinLock error_lock_;
  std::exception_ptr error_;
};

void Team::start_helpers() {
  started_ = true;
  const int wanted = core_count() - 1;
  for (int i = 0; i < wanted; ++i) {
    auto helper = std::make_unique<Helper>();
    Helper* const self = helper.get();
    helpers_.push_back(std::move(helper));
    try {
      self->thread.start(fmt::format("slip-team-{}", i), [this, self] { help(*self); });
    } catch (const Error&) {  // a machine out of threads: fewer do it, too
      helpers_.pop_back();
      return;
    }
  }
}

bool Team::run(const detail::Loop& loop) {
  if (!busy_.try_lock()) return false;
  if (!started_) start_helpers();
  loop_ = loop;
  next_.store(0, std::memory_order_relaxed);  // published by the opening below
  // seq_cst: opens the loop, publishing it, before it looks who sleeps; a helper does both the other way round.
  state_.fetch_add(kNumber + kOpen, std::memory_order_seq_cst);
  wake(loop.count - 1);
  work();
  // acquire, with the release of those who leave: what they wrote is seen, and the loop is nobody's any more.
  state_.fetch_sub(kOpen, std::memory_order_acquire);
  for (int turn = 0; (state_.load(std::memory_order_acquire) & kInsideMask) != 0; ++turn) spin(turn);
  const std::exception_ptr error = std::exchange(error_, nullptr);
  busy_.unlock();
  if (error) std::rethrow_exception(error);
  return true;
}

void Team::wake(std::size_t wanted) {
  for (std::size_t i = 0; i < std::min(wanted, helpers_.size()); ++i) {
    // seq_cst: see run(). Whoever takes the mark wakes the helper, once.
    if (helpers_[i]->asleep.load(std::memory_order_seq_cst) &&
        helpers_[i]->asleep.exchange(false, std::memory_order_relaxed))
      helpers_[i]->parker.unpark();
  }
}

void Team::work() {
  try {
    for (;;) {
      const std::size_t index = next_.fetch_add(1, std::memory_order_relaxed);  // relaxed: only uniqueness counts
      if (index >= loop_.count) return;
      loop_.call(loop_.body, index);
    }
  } catch (...) {
    error_lock_.lock();
    if (!error_) error_ = std::current_exception();
    error_lock_.unlock();
    next_.store(loop_.count, std::memory_order_relaxed);  // a hint: one more index may begin
  }
}

bool Team::enter(std::uint64_t& last) {
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

void Team::await_loop(Helper& helper, std::uint64_t last) {
  const std::uint64_t begun = ticks();
  const auto limit = static_cast<std::uint64_t>(kSpinMicros * ticks_per_us());
  for (int turn = 0; ticks() - begun < limit; ++turn) {
    if (has_loop(last, std::memory_order_relaxed)) return;  // relaxed: enter() acquires
    spin(turn);
  }
  // seq_cst: first the mark, then the look; run() opens first and then looks for marks.
  helper.asleep.store(true, std::memory_order_seq_cst);
  if (!has_loop(last, std::memory_order_seq_cst)) helper.parker.park();
  helper.asleep.store(false, std::memory_order_relaxed);  // a token that still comes costs one more look
}

void Team::help(Helper& helper) {
  for (std::uint64_t last = 0;;) {
    if (!enter(last)) {
      await_loop(helper, last);
      continue;
    }
    work();
    state_.fetch_sub(kInside, std::memory_order_release);  // what this helper wrote is seen by the loop's owner
  }
}

std::atomic<Team*> g_team{nullptr};

// The child has none of the helpers; a loop that another thread of the parent ran is not the child's.
void forget_team() {
  static Team* left_behind = nullptr;
  Team* const old = g_team.exchange(nullptr, std::memory_order_relaxed);  // relaxed: the child has one thread
  if (!old) return;
  old->left_behind = left_behind;
  left_behind = old;
}

Team& team() {
  if (Team* const found = g_team.load(std::memory_order_acquire)) return *found;  // with the release below
  static const bool kInstalled = [] {
    at_fork(nullptr, nullptr, forget_team);
    return true;
  }();
  static_cast<void>(kInstalled);
  auto made = std::make_unique<Team>();
  Team* expected = nullptr;
  // release: others see it built; acquire where another thread was first.
  if (g_team.compare_exchange_strong(expected, made.get(), std::memory_order_acq_rel, std::memory_order_acquire))
    return *made.release();
  return *expected;
}

}  // namespace

void detail::run_loop(const Loop& loop) {
  if (loop.count > 1 && team().run(loop)) return;
  for (std::size_t index = 0; index < loop.count; ++index) loop.call(loop.body, index);
}

}  // namespace slip
