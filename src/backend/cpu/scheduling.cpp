// The pool's threads: who looks for work, who sleeps, who is woken.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/cpu/pack.hpp"
#include "backend/cpu/pool.hpp"
#include "base/clock.hpp"
#include "base/cores.hpp"
#include "base/team.hpp"
#include "runtime/exit.hpp"

namespace slip {
namespace {
constexpr std::int64_t kNapNs = 50'000;
constexpr int kNaps = 4;  // without work: then sleep. A nap costs about what waking a sleeper does
// Where there is one core, hosts do their work themselves: about 10 ms without any. To be woken for each call, and to
// nap briefly before it slept again, took 40 % of an all_reduce of 256 KiB among four ranks on two cores.
constexpr int kNapsOneCore = 16;
constexpr std::int64_t kMaxNapNs = 1'000'000;
// While other threads get on with what they keep, the searcher only looks whether one is stuck. Every 50 us that took a
// tenth of a core, and the core from a thread with work where all cores are busy.
constexpr std::int64_t kMaxRescueNapNs = 400'000;
// Between looks at words and other ranks that are waited for: a sixteenth of the time it has taken so far. Each look
// takes some microseconds of a core that kernels may want.
constexpr std::int64_t kMaxWordNapNs = 200'000;
// When others tell of all that is waited for, and looks are for failures alone.
constexpr std::int64_t kToldNapNs = 2'000'000;
constexpr std::int64_t kSpinNs = 20'000;
constexpr double kMoveUs = 1000;  // a move takes some microseconds, and the system has its reasons, too
constexpr double kLookUs = 1.0;
constexpr double kLongUs = 3.0;  // about what waking a thread costs
constexpr double kHeavyUs = 300;
constexpr std::size_t kLongCopyBytes = 32 << 10;
}  // namespace

Pool::Pool(int compute_workers, int cores)
    : max_workers_(compute_workers + 3),  // so that copies and host functions run while all kernels are busy
      one_core_(cores < 2),
      move_ticks_(static_cast<std::uint64_t>(kMoveUs * ticks_per_us())),
      look_ticks_(static_cast<std::uint64_t>(kLookUs * ticks_per_us())),
      long_ticks_(static_cast<std::uint64_t>(kLongUs * ticks_per_us())),
      heavy_ticks_(static_cast<std::uint64_t>(kHeavyUs * ticks_per_us())) {
  engines_[static_cast<std::size_t>(Engine::kCompute)].free = compute_workers;
  engines_[static_cast<std::size_t>(Engine::kCopyIn)].free = 1;
  engines_[static_cast<std::size_t>(Engine::kCopyOut)].free = 1;
  engines_[static_cast<std::size_t>(Engine::kHost)].free = 1;
  workers_.reserve(static_cast<std::size_t>(max_workers_));
}

Pool::~Pool() {
  stopping_.store(true, std::memory_order_seq_cst);
  {
    const std::lock_guard lock(sleep_mutex_);
    for (Worker* worker : sleeping_) worker->parker.unpark();
    if (napping_) napping_->parker.unpark();
  }
  for (auto& worker : workers_) worker->thread.join();
}

bool Pool::expected_long(const Lane& lane, const PackedOp* op) const {
  if (op && op->kind == OpKind::kCopy) return const_cast<PackedOp*>(op)->pieces()->bytes > kLongCopyBytes;
  return lane.op_ticks.load(std::memory_order_relaxed) > long_ticks_;  // all ones, not known yet, counts as long
}

// Puts a lane, whose state is kQueued, where any thread can take it, and sees to it that one looks.
//
// Where there is one core, waking a thread for a lane whose host waits for what it submits would only take the core
// away from that host: such a lane is left to it, and the napping thread takes it if it does not get on.
void Pool::share(Lane& lane) {
  bool urgent = expected_long(lane, nullptr);
  {
    const std::lock_guard lock(shared_lock_);
    if (one_core_) {
      lane.left_to_host = lane.syncs_shared != lane.syncs.load(std::memory_order_relaxed);
      lane.syncs_shared = lane.syncs.load(std::memory_order_relaxed);
    }
    const bool nobody_looks =
        naps_long_.load(std::memory_order_relaxed) && (one_core_ || active_.load(std::memory_order_relaxed) == 0);
    urgent = !lane.left_to_host && (urgent || nobody_looks);
    if (!lane.enqueued) {  // else a driver claimed it and gives it back while its entry is still there
      lane.enqueued = true;
      shared_.push(lane);
      // seq_cst: the searcher stores that it stops looking and then reads the count; one of the two sees the other.
      shared_count_.fetch_add(1, std::memory_order_seq_cst);
      if (urgent) shared_urgent_.store(true, std::memory_order_relaxed);
    }
  }
  switch (search_.load(std::memory_order_seq_cst)) {
    case Search::kSpinning: break;
    case Search::kNapping:
      if (urgent) wake_napper();
      break;
    case Search::kNone: wake_one(); break;
  }
}

void Pool::wake_napper() {
  const std::lock_guard lock(sleep_mutex_);
  if (napping_) napping_->parker.unpark();
}

// Somebody wants what is queued to be done and will not run it: nothing is left to hosts.
void Pool::hurry() {
  if (!one_core_ || shared_count_.load(std::memory_order_relaxed) == 0) return;
  if (hurried_.exchange(true, std::memory_order_relaxed))
    return;  // relaxed: a hint; a nap that misses it ends by itself
  wake_napper();
}

// Hands this thread's queue to the others.
void Pool::share_local(Runner& self) {
  for (;;) {
    Lane* lane = nullptr;
    {
      const std::lock_guard lock(self.lock);
      lane = self.local.pop();
      if (!lane) return;
      self.count(-1);
      lane->state.store(LaneState::kQueued, std::memory_order_release);
    }
    share(*lane);
  }
}

Lane* Pool::take_local(Runner& self) {
  if (Lane* lane = self.successor) {
    self.successor = nullptr;
    lane->state.store(LaneState::kRunning, std::memory_order_relaxed);
    return lane;
  }
  if (self.local_count.load(std::memory_order_relaxed) == 0) return nullptr;
  const std::lock_guard lock(self.lock);
  Lane* lane = self.local.pop();
  if (!lane) return nullptr;
  self.count(-1);
  lane->state.store(LaneState::kRunning, std::memory_order_relaxed);
  return lane;
}

Lane* Pool::take_shared() {
  while (shared_count_.load(std::memory_order_relaxed) > 0) {
    Lane* lane = nullptr;
    {
      const std::lock_guard lock(shared_lock_);
      lane = shared_.pop();
      if (!lane) return nullptr;
      lane->enqueued = false;
      if (shared_count_.fetch_sub(1, std::memory_order_relaxed) == 1)
        shared_urgent_.store(false, std::memory_order_relaxed);
    }
    LaneState queued = LaneState::kQueued;
    // acquire: what the thread that ran it last did. Failing: a driver claimed it.
    if (lane->state.compare_exchange_strong(queued, LaneState::kRunning, std::memory_order_acquire)) return lane;
  }
  return nullptr;
}

// The first lane that its host does not run: those that have got on since the last look stay.
Lane* Pool::take_left() {
  if (hurried_.exchange(false, std::memory_order_relaxed)) return take_shared();  // relaxed: see hurry()
  const std::lock_guard lock(shared_lock_);
  LaneList<&Lane::shared_next> kept;
  Lane* taken = nullptr;
  bool urgent = false;
  while (Lane* lane = shared_.pop()) {
    const std::uint64_t done = lane->done.load(std::memory_order_relaxed);
    const bool got_on = done != std::exchange(lane->done_looked, done);
    if (taken || (lane->left_to_host && got_on)) {
      kept.push(*lane);
      urgent = urgent || !lane->left_to_host;
      continue;
    }
    lane->enqueued = false;
    shared_count_.fetch_sub(1, std::memory_order_relaxed);
    LaneState queued = LaneState::kQueued;
    // acquire: what the thread that ran it last did. Failing: a driver has it, or it is idle.
    if (lane->state.compare_exchange_strong(queued, LaneState::kRunning, std::memory_order_acquire)) taken = lane;
  }
  shared_ = kept;
  shared_urgent_.store(urgent, std::memory_order_relaxed);
  return taken;
}

Lane* Pool::next(Worker& self) {
  Lane* lane = find(self);
  if (lane && !self.active) {
    self.active = true;
    leave_host_core(self.runner);
    worker_core_.store(current_core(), std::memory_order_relaxed);
    active_.fetch_add(1, std::memory_order_relaxed);
    full_fence();  // see search()
  }
  return lane;
}

Lane* Pool::find(Worker& self) {
  while (!stopping_.load(std::memory_order_relaxed) && !exiting()) {
    if (!self.searcher) {
      if (Lane* lane = take_local(self.runner)) return lane;
      let_go(self.runner);  // may bring a lane that waited for the engine
      if (Lane* lane = take_local(self.runner)) return lane;
      if (Lane* lane = take_shared()) {
        if (shared_count_.load(std::memory_order_relaxed) > 0) wake_one();  // more where that came from
        return lane;
      }
      if (std::exchange(self.active, false)) active_.fetch_sub(1, std::memory_order_relaxed);
      Search none = Search::kNone;
      self.searcher = search_.compare_exchange_strong(none, Search::kSpinning, std::memory_order_seq_cst);
      if (!self.searcher) sleep(self);  // woken as the searcher, or to stop
      continue;
    }
    if (Lane* lane = search(self)) return lane;
    sleep(self);
  }
  return nullptr;
}

// Looks for work for a while, then gives up the role of the searcher, with or without having found some.
//
// A worker that keeps a queue says so and then looks whether somebody searches, before each op; this thread says that
// it no longer searches and then looks who keeps a queue. Fences see to it that one sees the other: the dear one is
// here, and only when there are other workers, which is told by the same reasoning with plain fences.
Lane* Pool::search(Worker& self) {
  // While a loop has all cores, spinning would take one away.
  Lane* lane = team_is_busy() ? nullptr : spin_for_work(self);
  if (!lane) lane = nap_for_work(self);
  self.searcher = false;
  search_.store(Search::kNone, std::memory_order_seq_cst);
  full_fence();
  if (active_.load(std::memory_order_relaxed) > 0) heavy_fence();
  if (!lane) lane = take_shared();  // what came while the last look and this store crossed, see share()
  if (!lane) return nullptr;
  std::unique_lock lock(sleep_mutex_);
  const bool left = work_left();
  lock.unlock();
  if (left) wake_one();
  return lane;
}

// Whether somebody must go on looking: there is work to take or a word to watch, or a thread keeps a queue while it
// runs an op, which may turn out to be long. REQUIRES: sleep_mutex_.
bool Pool::work_left() const {
  return shared_count_.load(std::memory_order_seq_cst) > 0 || words_count_.load(std::memory_order_seq_cst) > 0 ||
         std::any_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return worker->runner.local_count.load(std::memory_order_relaxed) > 0; });
}

Lane* Pool::nap_for_work(Worker& self) {
  const int most = one_core_ ? kNapsOneCore : kNaps;
  std::int64_t length = kNapNs;
  bool missed = false;
  for (int quiet = 0; quiet < most && !stopping_.load(std::memory_order_relaxed) && !exiting();) {
    const bool trusts = !missed && only_told();
    naps_long_.store(trusts || length > kNapNs, std::memory_order_relaxed);
    bool told = false;
    {
      const std::lock_guard lock(sleep_mutex_);
      napping_ = &self;
      search_.store(Search::kNapping, std::memory_order_seq_cst);
      told = std::exchange(told_, false);
    }
    if (!told && !worth_taking()) self.parker.park(now_ns() + (trusts ? kToldNapNs : length));
    naps_long_.store(false, std::memory_order_relaxed);
    if (trusts) trusts_.store(false, std::memory_order_relaxed);
    {
      const std::lock_guard lock(sleep_mutex_);
      napping_ = nullptr;
      search_.store(Search::kSpinning, std::memory_order_seq_cst);
    }
    const bool kept = rescue_stuck();
    if (kept) quiet = 0;
    if (words_count_.load(std::memory_order_relaxed) > 0) {
      use_time_slice(self.runner, TimeSlice::kShort);
      missed = !poll_words(&self.runner);  // what was told may have come after the other thread's look
    } else {
      ++quiet;
    }
    if (Lane* lane = take_local(self.runner)) return lane;
    if (Lane* lane = one_core_ ? take_left() : take_shared()) return lane;
    const bool words = words_count_.load(std::memory_order_relaxed) > 0;
    if (words) length = std::min(length + length / 16, kMaxWordNapNs);
    else if (!one_core_) length = kept ? std::min(2 * length, kMaxRescueNapNs) : kNapNs;
    if (!one_core_) continue;
    // What is left in the queue, or just runs, is run by hosts: the less often this thread is in their way, the better.
    if (shared_count_.load(std::memory_order_relaxed) > 0 || active_.load(std::memory_order_relaxed) > 0) quiet = 0;
    if (!words) length = std::min(2 * length, kMaxNapNs);
  }
  return nullptr;
}

bool Pool::worth_taking() const {
  if (one_core_ && !hurried_.load(std::memory_order_relaxed)) return shared_urgent_.load(std::memory_order_relaxed);
  return shared_count_.load(std::memory_order_seq_cst) > 0 &&
         (shared_urgent_.load(std::memory_order_relaxed) || active_.load(std::memory_order_relaxed) == 0);
}

// While others are at work, short lanes are left to them, who look at the queue every few microseconds: running them
// here too would only move their cache lines between cores. After a nap everything is taken.
Lane* Pool::spin_for_work(Worker& self) {
  if (one_core_ || shares_host_core()) return nullptr;
  const std::int64_t until = now_ns() + kSpinNs;
  do {
    for (int i = 0; i < 32; ++i) {
      if (shared_count_.load(std::memory_order_relaxed) > 0 &&
          (shared_urgent_.load(std::memory_order_relaxed) || active_.load(std::memory_order_relaxed) == 0)) {
        if (Lane* lane = take_shared()) return lane;
      }
      cpu_relax();
    }
    if (words_count_.load(std::memory_order_relaxed) > 0) {
      static_cast<void>(poll_words(&self.runner));
      if (Lane* lane = take_local(self.runner)) return lane;
    }
  } while (now_ns() < until && !stopping_.load(std::memory_order_relaxed));
  return nullptr;
}

// Threads that have begun no op since the last look are stuck in a long one: what they keep for themselves is shared.
// True while some thread keeps a queue, so somebody must go on looking.
bool Pool::rescue_stuck() {
  bool any = false;
  const std::lock_guard lock(sleep_mutex_);
  for (const auto& worker : workers_) {
    Runner& runner = worker->runner;
    const std::uint64_t steps = runner.steps.load(std::memory_order_relaxed);
    if (runner.local_count.load(std::memory_order_relaxed) > 0) {
      any = true;
      if (steps == runner.steps_seen) share_local(runner);
    }
    runner.steps_seen = steps;
  }
  return any;
}

// Sleeps until woken, as the searcher or to stop; or returns at once as the searcher, when work came and nobody looks.
void Pool::sleep(Worker& self) {
  {
    const std::lock_guard lock(sleep_mutex_);
    if (stopping_.load(std::memory_order_relaxed)) return;
    // Work may have come, and its sharer found nobody asleep, before this thread was on the list.
    Search none = Search::kNone;
    if (work_left() && search_.compare_exchange_strong(none, Search::kSpinning, std::memory_order_seq_cst)) {
      self.searcher = true;
      return;
    }
    sleeping_.push_back(&self);
  }
  for (;;) {
    self.parker.park();  // may also return for a token that came late, meant for a nap
    const std::lock_guard lock(sleep_mutex_);
    if (self.searcher || stopping_.load(std::memory_order_relaxed)) return;
  }
}

// Makes a sleeping thread the searcher, or starts a new one as such. Does nothing if one searches already.
void Pool::wake_one() {
  Worker* woken = nullptr;
  {
    const std::lock_guard lock(sleep_mutex_);
    if (stopping_.load(std::memory_order_relaxed)) return;
    if (sleeping_.empty() && static_cast<int>(workers_.size()) >= max_workers_)
      return;  // all busy: they look when done
    Search none = Search::kNone;
    if (!search_.compare_exchange_strong(none, Search::kSpinning, std::memory_order_seq_cst)) return;
    if (sleeping_.empty()) return start_worker();
    woken = sleeping_.back();
    sleeping_.pop_back();
    woken->searcher = true;
  }
  woken->parker.unpark();
}

// REQUIRES: sleep_mutex_ held. With at least one thread running, work goes on without the new one.
void Pool::start_worker() {
  workers_.push_back(std::make_unique<Worker>());
  Worker& worker = *workers_.back();
  worker.runner.is_worker = true;
  worker.searcher = true;
  try {
    worker.thread.start(
        fmt::format("slip worker {}", workers_.size()), [this, &worker] { work(worker); }, true);
  } catch (...) {
    workers_.pop_back();
    search_.store(Search::kNone, std::memory_order_seq_cst);
    if (workers_.empty()) throw;
  }
}

}  // namespace slip
