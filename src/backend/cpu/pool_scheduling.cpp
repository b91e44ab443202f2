// Pool: which thread searches for work, which sleeps, and which is woken. See pool.hpp.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "backend/cpu/pool.hpp"
#include "base/clock.hpp"
#include "base/team.hpp"

namespace slip::backend {
namespace {
constexpr std::int64_t kSleepNs = 50'000;
constexpr int kSleeps = 4;  // without finding work, before the searcher parks: a sleep costs about as much as a wake-up
// On one core the hosts run their lanes themselves, so the searcher sleeps about 10 ms in all before it parks. Waking
// it for each call took 40 % of the time of an all_reduce of 256 KiB among four ranks on two cores.
constexpr int kSleepsOneCore = 16;
constexpr std::int64_t kMaxSleepNs = 1'000'000;
// While other threads make progress with their local queues, the searcher only checks whether one is stuck. Checking
// every 50 us took a tenth of a core, and preempted working threads if all cores were busy.
constexpr std::int64_t kMaxRescueSleepNs = 400'000;
// Maximum sleep between two polls of flags and exchanges. The sleeps grow by a sixteenth each time. A poll takes
// microseconds of a core that kernels may need.
constexpr std::int64_t kMaxFlagSleepNs = 200'000;
// The sleep if all lanes wait for exchanges that send notifications. Then a poll only serves to find failures.
constexpr std::int64_t kNotifiedSleepNs = 2'000'000;
constexpr std::int64_t kSpinNs = 20'000;
// Minimum time between two moves. A move takes some microseconds, and the scheduler may have reasons for its choice.
constexpr double kMoveUs = 1000;
constexpr double kLookUs = 1.0;
constexpr double kLongUs = 3.0;  // about the time that it takes to wake a thread
constexpr double kHeavyUs = 300;
constexpr std::size_t kLongCopyBytes = 32 << 10;
}  // namespace

Pool::Pool(int compute_workers, int cores)
    // 3 more, so that copies in, copies out and host functions run while kernels use all compute slots
    : max_workers_(compute_workers + 3),
      one_core_(cores < 2),
      move_ticks_(static_cast<std::uint64_t>(kMoveUs * base::ticks_per_us())),
      look_ticks_(static_cast<std::uint64_t>(kLookUs * base::ticks_per_us())),
      long_ticks_(static_cast<std::uint64_t>(kLongUs * base::ticks_per_us())),
      heavy_ticks_(static_cast<std::uint64_t>(kHeavyUs * base::ticks_per_us())) {
  engines_[static_cast<std::size_t>(Engine::kCompute)].set_slots(compute_workers);
  engines_[static_cast<std::size_t>(Engine::kCopyIn)].set_slots(1);
  engines_[static_cast<std::size_t>(Engine::kCopyOut)].set_slots(1);
  engines_[static_cast<std::size_t>(Engine::kHost)].set_slots(1);
  workers_.reserve(static_cast<std::size_t>(max_workers_));
}

Pool::~Pool() {
  stopping_.store(true, std::memory_order_seq_cst);
  {
    const base::LockGuard lock(sleep_mutex_);
    for (Worker* worker : parked_) worker->parker.unpark();
    if (sleeping_searcher_) sleeping_searcher_->parker.unpark();
  }
  for (auto& worker : workers_) worker->thread.join();
}

bool Pool::expected_long(const Lane& lane, const PackedOp* op) const {
  if (op && op->kind == OpKind::kCopy) return pieces(const_cast<PackedOp&>(*op))->bytes > kLongCopyBytes;
  return lane.op_ticks.load(std::memory_order_relaxed) > long_ticks_;  // all ones, not known yet, counts as long
}

// Puts a lane, whose state is kQueued, into the shared queue, and makes sure that a thread will take it.
//
// On one core, a woken worker would only take the core from a host that is about to wait for the ops it submits. Such a
// lane is left to its host; if it makes no progress, the sleeping searcher takes it.
void Pool::share(Lane& lane) {
  bool urgent = expected_long(lane, nullptr);
  {
    const base::LockGuard lock(shared_lock_);
    if (one_core_) {
      lane.left_to_host = lane.syncs_shared != lane.syncs.load(std::memory_order_relaxed);
      lane.syncs_shared = lane.syncs.load(std::memory_order_relaxed);
    }
    const bool nobody_looks =
        sleeps_long_.load(std::memory_order_relaxed) && (one_core_ || active_.load(std::memory_order_relaxed) == 0);
    urgent = !lane.left_to_host && (urgent || nobody_looks);
    if (!lane.enqueued) {  // if true, a driver claimed the lane earlier, and the lane's old entry is still in the queue
      lane.enqueued = true;
      shared_.push(lane);
      // seq_cst: the searcher stores that it stops searching and then reads the count. One of the two sees the other.
      shared_count_.fetch_add(1, std::memory_order_seq_cst);
      if (urgent) shared_urgent_.store(true, std::memory_order_relaxed);
    }
  }
  switch (search_.load(std::memory_order_seq_cst)) {
    case Search::kSpinning: break;
    case Search::kSleeping:
      if (urgent) wake_searcher();
      break;
    case Search::kNone: wake_one(); break;
  }
}

void Pool::wake_searcher() {
  const base::LockGuard lock(sleep_mutex_);
  if (sleeping_searcher_) sleeping_searcher_->parker.unpark();
}

// Only on one core: a thread waits for queued work that it will not run itself. The searcher wakes up now, and takes
// also lanes that are left to their hosts.
void Pool::hurry() {
  if (!one_core_ || shared_count_.load(std::memory_order_relaxed) == 0) return;
  // relaxed: a hint. A sleep that misses it ends by itself.
  if (hurried_.exchange(true, std::memory_order_relaxed)) return;
  wake_searcher();
}

// Moves all lanes of this thread's local queue to the shared queue.
void Pool::share_local(LaneRunner& self) {
  for (;;) {
    Lane* lane = nullptr;
    {
      const base::LockGuard lock(self.lock);
      lane = self.local.pop();
      if (!lane) return;
      self.count(-1);
      lane->state.store(LaneState::kQueued, std::memory_order_release);
    }
    share(*lane);
  }
}

Lane* LaneRunner::take_local() {
  if (Lane* lane = std::exchange(successor, nullptr)) {
    lane->state.store(LaneState::kRunning, std::memory_order_relaxed);
    return lane;
  }
  if (local_count.load(std::memory_order_relaxed) == 0) return nullptr;
  const base::LockGuard guard(lock);
  Lane* lane = local.pop();
  if (!lane) return nullptr;
  count(-1);
  lane->state.store(LaneState::kRunning, std::memory_order_relaxed);
  return lane;
}

Lane* Pool::take_shared() {
  while (shared_count_.load(std::memory_order_relaxed) > 0) {
    Lane* lane = nullptr;
    {
      const base::LockGuard lock(shared_lock_);
      lane = shared_.pop();
      if (!lane) return nullptr;
      lane->enqueued = false;
      if (shared_count_.fetch_sub(1, std::memory_order_relaxed) == 1)
        shared_urgent_.store(false, std::memory_order_relaxed);
    }
    LaneState queued = LaneState::kQueued;
    // acquire: sees what the last thread that ran the lane did. On failure: a driver claimed it.
    if (lane->state.compare_exchange_strong(queued, LaneState::kRunning, std::memory_order_acquire)) return lane;
  }
  return nullptr;
}

// Takes the first lane that its host does not run: it is not left to the host, or it made no progress since the last
// check. The other lanes stay.
Lane* Pool::take_abandoned() {
  if (hurried_.exchange(false, std::memory_order_relaxed)) return take_shared();  // relaxed: see hurry()
  const base::LockGuard lock(shared_lock_);
  LaneList<&Lane::shared_next> kept;
  Lane* taken = nullptr;
  bool urgent = false;
  while (Lane* lane = shared_.pop()) {
    const std::uint64_t done = lane->done.load(std::memory_order_relaxed);
    const bool progressed = done != std::exchange(lane->done_checked, done);
    if (taken || (lane->left_to_host && progressed)) {
      kept.push(*lane);
      urgent = urgent || !lane->left_to_host;
      continue;
    }
    lane->enqueued = false;
    shared_count_.fetch_sub(1, std::memory_order_relaxed);
    LaneState queued = LaneState::kQueued;
    // acquire: sees what the last thread that ran the lane did. On failure: a driver has it, or it is idle.
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
    worker_core_.store(base::current_core(), std::memory_order_relaxed);
    active_.fetch_add(1, std::memory_order_relaxed);
    base::full_fence();  // see search()
  }
  return lane;
}

Lane* Pool::find(Worker& self) {
  while (!stopping_.load(std::memory_order_relaxed) && !runtime::exiting()) {
    if (!self.searcher) {
      if (Lane* lane = self.runner.take_local()) return lane;
      release_engine(self.runner);  // may make a lane ready that waited for the engine
      if (Lane* lane = self.runner.take_local()) return lane;
      if (Lane* lane = take_shared()) {
        if (shared_count_.load(std::memory_order_relaxed) > 0) wake_one();  // another thread can take the next one
        return lane;
      }
      if (std::exchange(self.active, false)) active_.fetch_sub(1, std::memory_order_relaxed);
      Search none = Search::kNone;
      self.searcher = search_.compare_exchange_strong(none, Search::kSpinning, std::memory_order_seq_cst);
      if (!self.searcher) park(self);  // it returns when this thread is woken as the searcher, or to stop
      continue;
    }
    if (Lane* lane = search(self)) return lane;
    park(self);
  }
  return nullptr;
}

// Searches for a while, then gives up the role of searcher, with or without a lane.
//
// Before each op, a worker with a local queue stores its count and then checks whether there is a searcher. This thread
// stores that it no longer searches and then checks for workers with local queues. Fences ensure that at least one of
// the two sees the other's store. The expensive fence is on this side, and only if other workers are active. To see
// that, the full fences here and in next() suffice.
Lane* Pool::search(Worker& self) {
  // While a parallel loop uses all cores, spinning would slow it down.
  Lane* lane = base::team_is_busy() ? nullptr : spin_for_work(self);
  if (!lane) lane = sleep_for_work(self);
  self.searcher = false;
  search_.store(Search::kNone, std::memory_order_seq_cst);
  base::full_fence();
  if (active_.load(std::memory_order_relaxed) > 0) base::heavy_fence();
  if (!lane) lane = take_shared();  // work that was shared just before the store above, see share()
  if (!lane) return nullptr;
  sleep_mutex_.lock();
  const bool left = work_left();
  sleep_mutex_.unlock();
  if (left) wake_one();
  return lane;
}

// Whether a searcher is still needed: there is work to take, a flag to poll, or a worker has a local queue and may be
// stuck in a long op.
bool Pool::work_left() const {
  return shared_count_.load(std::memory_order_seq_cst) > 0 || flag_waiters_.any(std::memory_order_seq_cst) ||
         any_local();
}

bool Pool::any_local() const {
  return std::ranges::any_of(
      workers_, [](const auto& worker) { return worker->runner.local_count.load(std::memory_order_relaxed) > 0; });
}

Lane* Pool::sleep_for_work(Worker& self) {
  const int most = one_core_ ? kSleepsOneCore : kSleeps;
  std::int64_t length = kSleepNs;
  bool missed = false;
  for (int quiet = 0; quiet < most && !stopping_.load(std::memory_order_relaxed) && !runtime::exiting();) {
    const bool trusts = !missed && only_subscribed();
    sleeps_long_.store(trusts || length > kSleepNs, std::memory_order_relaxed);
    bool notified = false;
    {
      const base::LockGuard lock(sleep_mutex_);
      sleeping_searcher_ = &self;
      search_.store(Search::kSleeping, std::memory_order_seq_cst);
      notified = std::exchange(notified_, false);
    }
    if (!notified && !worth_taking()) self.parker.park(base::now_ns() + (trusts ? kNotifiedSleepNs : length));
    sleeps_long_.store(false, std::memory_order_relaxed);
    if (trusts) trusts_notifications_.store(false, std::memory_order_relaxed);
    {
      const base::LockGuard lock(sleep_mutex_);
      sleeping_searcher_ = nullptr;
      search_.store(Search::kSpinning, std::memory_order_seq_cst);
    }
    const bool kept = rescue_stuck();
    if (kept) quiet = 0;
    if (flag_waiters_.any()) {
      self.runner.use_time_slice(base::TimeSlice::kShort);
      missed = !poll_flags(&self.runner);  // if another thread polls, its poll may have begun before the notification
    } else {
      ++quiet;
    }
    if (Lane* lane = self.runner.take_local()) return lane;
    if (Lane* lane = one_core_ ? take_abandoned() : take_shared()) return lane;
    const bool flags = flag_waiters_.any();
    if (flags) length = std::min(length + length / 16, kMaxFlagSleepNs);
    else if (!one_core_) length = kept ? std::min(2 * length, kMaxRescueSleepNs) : kSleepNs;
    if (!one_core_) continue;
    // Host threads run the queued lanes themselves, so this thread wakes up as rarely as possible.
    if (shared_count_.load(std::memory_order_relaxed) > 0 || active_.load(std::memory_order_relaxed) > 0) quiet = 0;
    if (!flags) length = std::min(2 * length, kMaxSleepNs);
  }
  return nullptr;
}

bool Pool::worth_taking() const {
  if (one_core_ && !hurried_.load(std::memory_order_relaxed)) return shared_urgent_.load(std::memory_order_relaxed);
  return shared_count_.load(std::memory_order_seq_cst) > 0 &&
         (shared_urgent_.load(std::memory_order_relaxed) || active_.load(std::memory_order_relaxed) == 0);
}

// Active workers check the shared queue every few microseconds, so short lanes are left to them. If this thread ran
// them, it would only move their cache lines between cores. After a sleep the searcher takes every lane.
Lane* Pool::spin_for_work(Worker& self) {
  if (one_core_ || shares_host_core()) return nullptr;
  const std::int64_t until = base::now_ns() + kSpinNs;
  do {
    for (int i = 0; i < 32; ++i) {
      if (shared_count_.load(std::memory_order_relaxed) > 0 &&
          (shared_urgent_.load(std::memory_order_relaxed) || active_.load(std::memory_order_relaxed) == 0)) {
        if (Lane* lane = take_shared()) return lane;
      }
      base::cpu_relax();
    }
    if (flag_waiters_.any()) {
      static_cast<void>(poll_flags(&self.runner));
      if (Lane* lane = self.runner.take_local()) return lane;
    }
  } while (base::now_ns() < until && !stopping_.load(std::memory_order_relaxed));
  return nullptr;
}

// Shares the local queue of each worker that has begun no op since the last check: it is stuck in a long op. True: some
// worker has a local queue, so the searcher must continue.
bool Pool::rescue_stuck() {
  bool any = false;
  const base::LockGuard lock(sleep_mutex_);
  for (const auto& worker : workers_) {
    LaneRunner& runner = worker->runner;
    const std::uint64_t steps = runner.steps.load(std::memory_order_relaxed);
    if (runner.local_count.load(std::memory_order_relaxed) > 0) {
      any = true;
      if (steps == runner.steps_seen) share_local(runner);
    }
    runner.steps_seen = steps;
  }
  return any;
}

// Parks the thread until it is woken as the searcher or to stop. If there is work and no searcher, returns at once as
// the searcher.
void Pool::park(Worker& self) {
  {
    const base::LockGuard lock(sleep_mutex_);
    if (stopping_.load(std::memory_order_relaxed)) return;
    // Another thread may have shared work and found no parked thread, before this one was in the list.
    Search none = Search::kNone;
    if (work_left() && search_.compare_exchange_strong(none, Search::kSpinning, std::memory_order_seq_cst)) {
      self.searcher = true;
      return;
    }
    parked_.push_back(&self);
  }
  for (;;) {
    self.parker.park();  // may also return early, for an unpark() that was meant for an earlier timed sleep
    const base::LockGuard lock(sleep_mutex_);
    if (self.searcher || stopping_.load(std::memory_order_relaxed)) return;
  }
}

// Makes a parked worker the searcher, or starts a new worker. Does nothing if there is already a searcher.
void Pool::wake_one() {
  Worker* woken = nullptr;
  {
    const base::LockGuard lock(sleep_mutex_);
    if (stopping_.load(std::memory_order_relaxed)) return;
    if (parked_.empty() && static_cast<int>(workers_.size()) >= max_workers_)
      return;  // all workers are busy: they check the shared queue when they are done
    Search none = Search::kNone;
    if (!search_.compare_exchange_strong(none, Search::kSpinning, std::memory_order_seq_cst)) return;
    if (parked_.empty()) return start_worker();
    woken = parked_.back();
    parked_.pop_back();
    woken->searcher = true;
  }
  woken->parker.unpark();
}

// If the system is out of threads, work continues with the existing ones.
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

void Pool::wake(Lane& lane) {
  host_core_.store(base::current_core(), std::memory_order_relaxed);
  share(lane);
}

// If all cores are busy, a woken thread starts on the core of the thread that woke it. Then the two share this core
// instead of running concurrently, so the worker moves away.
void Pool::leave_host_core(LaneRunner& self) {
  if (one_core_ || !shares_host_core() || base::ticks() - self.moved < move_ticks_) return;
  base::leave_core(host_core_.load(std::memory_order_relaxed));
  self.moved = base::ticks();
}

// Notes the mean time of an op. Ignores a long time if the thread was preempted meanwhile: the ops may still be short.
void Pool::note_time(LaneRunner& self, Lane& lane, std::uint64_t op_ticks) const {
  if (op_ticks > long_ticks_ && !expected_long(lane, nullptr)) {
    const std::int64_t before = std::exchange(self.preemptions, base::preemptions());
    if (before != self.preemptions) return;
  }
  lane.op_ticks.store(op_ticks, std::memory_order_relaxed);
}

// Parks the lane until its flag has the value, or until its exchange can continue. The searcher and waiting host
// threads poll these.
void Pool::park_on_flag(Lane& lane, PackedOp& op) {
  // First: afterwards another thread may own the lane.
  const bool subscribed = op.kind == OpKind::kExchange && op.exchange->subscribe(*this);
  flag_waiters_.park(lane, subscribed);
  if (subscribed) wake_up();  // poll once: events before the subscription sent no notification
  if (search_.load(std::memory_order_seq_cst) == Search::kNone) wake_one();
  else if (!subscribed && trusts_notifications_.load(std::memory_order_seq_cst)) wake_searcher();
}

void Pool::wake_up() noexcept {
  const base::LockGuard lock(sleep_mutex_);
  notified_ = true;
  if (sleeping_searcher_) sleeping_searcher_->parker.unpark();
}

// Queues the lanes whose flag or exchange is ready. False: another thread polls at the moment, or `self` is null.
bool Pool::poll_flags(LaneRunner* self) {
  std::vector<Lane*> ready;
  if (!self || !flag_waiters_.poll(ready)) return false;
  for (Lane* lane : ready) make_ready(*self, *lane);
  return true;
}

// Whether the searcher may sleep long: every awaited flag and exchange sends a notification, and no worker has a local
// queue that may have to be shared. A thread that parks a lane without notification counts it and then reads
// trusts_notifications_. A worker stores the count of its local queue before each op and then reads it, too. This
// thread stores trusts_notifications_ first and then reads the counts. So at least one of the two sees the other's
// store. Against workers that needs the expensive fence, as in search().
bool Pool::only_subscribed() {
  if (!flag_waiters_.any()) return false;
  trusts_notifications_.store(true, std::memory_order_seq_cst);
  base::full_fence();
  if (active_.load(std::memory_order_relaxed) > 0) base::heavy_fence();
  const base::LockGuard lock(sleep_mutex_);
  const bool others = flag_waiters_.any_unsubscribed() || any_local();
  if (others) trusts_notifications_.store(false, std::memory_order_relaxed);
  return !others;
}

}  // namespace slip::backend
