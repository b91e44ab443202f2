#include "backend/cpu/lane_scheduler.hpp"

#include <algorithm>
#include <utility>

#include "backend/cpu/pack.hpp"
#include "base/team.hpp"
#include "base/wait.hpp"

namespace slip::backend {
namespace {
constexpr std::int64_t kSleepNs = 50'000;
constexpr int kSleeps = 4;  // without finding work, before the searcher parks: a sleep costs about as much as a wake-up
// On one core host threads run their lanes themselves, so the searcher sleeps about 12 ms in all before it parks.
// Waking it for each call took 40 % of the time of an all_reduce of 256 KiB among four ranks on two cores.
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
// Minimum time between two moves of a worker to another core than the host thread's. A move takes some microseconds,
// and the kernel's scheduler may have had a reason to put the worker there.
constexpr double kMoveUs = 1000;
constexpr double kLookUs = 1.0;
constexpr double kLongUs = 3.0;  // about the time that it takes to wake a thread
constexpr double kHeavyUs = 300;
constexpr std::size_t kLongCopyBytes = 32 << 10;

// Only kernels have priorities, 0 to -2; copy engines ignore them (rule 48).
std::size_t level(Engine engine, const Lane& lane) {
  return engine == Engine::kCompute ? static_cast<std::size_t>(lane.priority + 2) : 2;
}

std::uint64_t ticks_of(double microseconds) { return static_cast<std::uint64_t>(microseconds * base::ticks_per_us()); }

}  // namespace

PoolLimits::PoolLimits(int cores)
    : one_core(cores < 2),
      move_ticks(ticks_of(kMoveUs)),
      look_ticks(ticks_of(kLookUs)),
      long_ticks(ticks_of(kLongUs)),
      heavy_ticks(ticks_of(kHeavyUs)) {}

bool PoolLimits::expected_long(const Lane& lane, const PackedOp* op) const {
  if (op && op->kind == OpKind::kCopy) return pieces(const_cast<PackedOp&>(*op))->bytes > kLongCopyBytes;
  return lane.op_ticks.load(std::memory_order_relaxed) > long_ticks;  // all ones, not known yet, counts as long
}

LaneScheduler::LaneScheduler(Executor& executor, const PoolLimits& limits, int compute_workers,
                             std::function<void(Worker&)> work)
    : executor_(executor),
      limits_(limits),
      shared_(limits.one_core),
      // 3 more, so that copies in, copies out and host functions run while kernels use all compute slots
      workers_(compute_workers + 3, std::move(work), shared_, flags_) {
  engines_[static_cast<std::size_t>(Engine::kCompute)].set_slots(compute_workers);
  engines_[static_cast<std::size_t>(Engine::kCopyIn)].set_slots(1);
  engines_[static_cast<std::size_t>(Engine::kCopyOut)].set_slots(1);
  engines_[static_cast<std::size_t>(Engine::kHost)].set_slots(1);
}

// --- lanes that can continue ---

void LaneScheduler::make_ready(LaneRunner& self, Lane& lane) {
  Executor* owner = lane.executor.load(std::memory_order_relaxed);
  if (owner != &executor_) return owner->wake_from_outside(lane);  // of another device; it waited for a lane of ours
  if (!self.is_worker) {
    lane.state.store(LaneState::kQueued, std::memory_order_release);
    share(lane);
    return;
  }
  lane.state.store(LaneState::kLocal, std::memory_order_release);
  if (!self.has_local()) {
    self.successor = &lane;
    return;
  }
  const base::LockGuard lock(self.lock);  // the successor became ready earlier and stays first
  self.local.push(lane);
  self.count(+1);
}

// Wakes a thread for the lane only if needed. On one core, a woken worker would only take the core from a host thread
// that submits ops and waits for them itself. SharedQueue::push() leaves such a lane to its host thread. If the lane
// makes no progress, the searcher takes it after its sleep.
void LaneScheduler::share(Lane& lane) {
  const bool unwatched = sleeps_long_.load(std::memory_order_relaxed) &&
                         (limits_.one_core || active_.load(std::memory_order_relaxed) == 0);
  const bool urgent = shared_.push(lane, unwatched || limits_.expected_long(lane));
  // seq_cst: see SharedQueue::push().
  switch (workers_.search(std::memory_order_seq_cst)) {
    case Search::kSpinning: break;
    case Search::kSleeping:
      if (urgent) workers_.wake_searcher();
      break;
    case Search::kNone: workers_.wake_one(); break;
  }
}

// Moves all lanes of this thread's local queue to the shared queue.
void LaneScheduler::share_local(LaneRunner& self) {
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

void LaneScheduler::offer_local(LaneRunner& self, bool is_long) {
  self.queue_successor();
  base::light_fence();  // see search()
  if (is_long) share_local(self);
  else if (workers_.search(std::memory_order_relaxed) == Search::kNone)
    workers_.wake_one();  // only a searcher can share the local queue if this op turns out to be long
  else if (trusts_notifications_.load(std::memory_order_relaxed))
    workers_.notify();  // the searcher sleeps long while it trusts notifications: it would share the queue too late
}

// Only on one core: the searcher wakes up now, and also takes lanes that are left to their host threads.
void LaneScheduler::hurry() {
  if (!limits_.one_core || !has_shared()) return;
  // relaxed: a hint. A sleep that misses it ends by itself.
  if (hurried_.exchange(true, std::memory_order_relaxed)) return;
  workers_.wake_searcher();
}

Lane* LaneScheduler::take_abandoned() {
  if (hurried_.exchange(false, std::memory_order_relaxed)) return shared_.take();  // relaxed: see hurry()
  return shared_.take_abandoned();
}

// --- engines ---

bool LaneScheduler::hold_engine(LaneRunner& self, Lane& lane, Engine engine) {
  if (lane.granted == engine) {  // it got the slot while it was parked
    release_engine(self);
    self.held = engine;
    lane.granted = Engine::kNone;
    return true;
  }
  if (self.held == engine) return true;
  release_engine(self);
  if (!engines_[static_cast<std::size_t>(engine)].take_or_park(lane, level(engine, lane))) return false;
  self.held = engine;
  return true;
}

void LaneScheduler::release_engine(LaneRunner& self) {
  if (self.held == Engine::kNone) return;
  const Engine engine = self.held;
  self.held = Engine::kNone;
  if (Lane* lane = engines_[static_cast<std::size_t>(engine)].release(engine)) make_ready(self, *lane);
}

// --- idle workers ---

Lane* LaneScheduler::next(Worker& self) {
  Lane* lane = find(self);
  if (lane && !self.active) {
    self.active = true;
    if (!limits_.one_core && cores_.on_host_core() && base::ticks() - self.runner.moved >= limits_.move_ticks) {
      cores_.leave_host_core();
      self.runner.moved = base::ticks();
    }
    cores_.note_worker();
    active_.fetch_add(1, std::memory_order_relaxed);
    base::full_fence();  // see search()
  }
  return lane;
}

Lane* LaneScheduler::find(Worker& self) {
  while (!stopping() && !runtime::exiting()) {
    if (!self.searcher) {
      if (Lane* lane = self.runner.take_local()) return lane;
      release_engine(self.runner);  // may make a lane ready that waited for the engine
      if (Lane* lane = self.runner.take_local()) return lane;
      if (Lane* lane = shared_.take()) {
        if (has_shared()) workers_.wake_one();  // another thread can take the next one
        return lane;
      }
      if (std::exchange(self.active, false)) active_.fetch_sub(1, std::memory_order_relaxed);
      if (!workers_.begin_search(self)) workers_.park(self);  // returns when this thread is the searcher, or must stop
      continue;
    }
    if (Lane* lane = search(self)) return lane;
    workers_.park(self);
  }
  return nullptr;
}

// Searches for a while, then gives up the role of searcher, with or without a lane.
//
// Before each op, a worker with a local queue stores its count and then checks whether there is a searcher. This thread
// stores that it no longer searches and then checks for workers with local queues. Fences ensure that at least one of
// the two sees the other's store. The expensive fence is on this side, and only if other workers are active. The full
// fences here and in next() suffice to see whether they are.
Lane* LaneScheduler::search(Worker& self) {
  // While a parallel loop uses all cores, spinning would slow it down.
  Lane* lane = base::team_is_busy() ? nullptr : spin_for_work(self);
  if (!lane) lane = sleep_for_work(self);
  workers_.end_search(self);
  base::full_fence();
  if (active_.load(std::memory_order_relaxed) > 0) base::heavy_fence();
  if (!lane) lane = shared_.take();  // work that was shared just before the store above, see share()
  if (lane && workers_.search_left()) workers_.wake_one();
  return lane;
}

// Has no policy of base/wait.hpp: the length of a sleep depends on what the last one found, not on their number.
Lane* LaneScheduler::sleep_for_work(Worker& self) {
  const int max_sleeps = limits_.one_core ? kSleepsOneCore : kSleeps;
  std::int64_t length = kSleepNs;
  bool missed = false;
  for (int quiet = 0; quiet < max_sleeps && !stopping() && !runtime::exiting();) {
    const bool trusts = !missed && only_subscribed();
    sleeps_long_.store(trusts || length > kSleepNs, std::memory_order_relaxed);
    if (!workers_.begin_sleep(self) && !worth_taking())
      self.parker.park(base::now_ns() + (trusts ? kNotifiedSleepNs : length));
    sleeps_long_.store(false, std::memory_order_relaxed);
    if (trusts) trusts_notifications_.store(false, std::memory_order_relaxed);
    workers_.end_sleep();
    const bool any_local = rescue_stuck();
    if (any_local) quiet = 0;
    if (flags_.any()) {
      self.runner.use_time_slice(base::TimeSlice::kShort);
      missed = !poll_flags(self.runner);  // if another thread polls, its poll may have begun before the notification
    } else {
      ++quiet;
    }
    if (Lane* lane = self.runner.take_local()) return lane;
    if (Lane* lane = limits_.one_core ? take_abandoned() : shared_.take()) return lane;
    const bool flags = flags_.any();
    if (flags) length = std::min(length + length / 16, kMaxFlagSleepNs);
    else if (!limits_.one_core) length = any_local ? std::min(2 * length, kMaxRescueSleepNs) : kSleepNs;
    if (!limits_.one_core) continue;
    // Host threads run the queued lanes themselves, so this thread wakes up as rarely as possible.
    if (has_shared() || active_.load(std::memory_order_relaxed) > 0) quiet = 0;
    if (!flags) length = std::min(2 * length, kMaxSleepNs);
  }
  return nullptr;
}

bool LaneScheduler::worth_taking() const {
  if (limits_.one_core && !hurried_.load(std::memory_order_relaxed)) return shared_.urgent();
  return shared_.any(std::memory_order_seq_cst) && (shared_.urgent() || active_.load(std::memory_order_relaxed) == 0);
}

// Active workers check the shared queue every few microseconds, so short lanes are left to them. If this thread ran
// them, it would only move their cache lines between cores. After a sleep the searcher takes every lane.
Lane* LaneScheduler::spin_for_work(Worker& self) {
  if (limits_.one_core || cores_.on_host_core()) return nullptr;
  base::IdleWait idle(base::kSearchWait);
  do {
    for (int i = 0; i < 32; ++i) {
      if (worth_taking()) {
        if (Lane* lane = shared_.take()) return lane;
      }
      base::cpu_relax();
    }
    if (poll_flags(self.runner)) {
      if (Lane* lane = self.runner.take_local()) return lane;
    }
  } while (idle.next(false) == base::IdleWait::Next::kSpin && !stopping());
  return nullptr;
}

// Shares the local queue of each worker that has begun no op since the last check: it is stuck in a long op. True: some
// worker has a local queue, so the searcher must continue. Sharing wakes no thread, as for_each() requires: this thread
// is the searcher, and it does not sleep.
bool LaneScheduler::rescue_stuck() {
  bool any = false;
  workers_.for_each([&](LaneRunner& runner) {
    const std::uint64_t steps = runner.steps.load(std::memory_order_relaxed);
    if (runner.local_count.load(std::memory_order_relaxed) > 0) {
      any = true;
      if (steps == runner.steps_seen) share_local(runner);
    }
    runner.steps_seen = steps;
  });
  return any;
}

// --- lanes that wait for flags in memory and for other ranks ---

void LaneScheduler::park_on_flag(Lane& lane, PackedOp& op) {
  // First: afterwards another thread may own the lane.
  const bool subscribed = op.kind == OpKind::kExchange && op.exchange->subscribe(*this);
  flags_.park(lane, subscribed);
  if (subscribed) wake_up();  // poll once: events before the subscription sent no notification
  if (workers_.search(std::memory_order_seq_cst) == Search::kNone) workers_.wake_one();
  else if (!subscribed && trusts_notifications_.load(std::memory_order_seq_cst)) workers_.notify();
}

void LaneScheduler::wake_up() noexcept { workers_.notify(); }

bool LaneScheduler::poll_flags(LaneRunner& self) {
  if (!flags_.any()) return false;
  std::vector<Lane*> ready;
  if (!flags_.poll(ready)) return false;
  for (Lane* lane : ready) make_ready(self, *lane);
  return true;
}

// Whether the searcher may sleep long: every awaited flag and exchange sends a notification, and no worker has a local
// queue that may have to be shared. A thread that parks a lane without notification counts it and then reads
// trusts_notifications_. A worker stores the count of its local queue before each op and then reads it, too. This
// thread stores trusts_notifications_ first and then reads the counts. So at least one of the two sees the other's
// store. If the other thread sees it, it calls notify(), because this thread may not sleep yet: wake_searcher() would
// do nothing, and this thread would then sleep for kNotifiedSleepNs. Against workers the order needs the expensive
// fence, as in search().
bool LaneScheduler::only_subscribed() {
  if (!flags_.any()) return false;
  trusts_notifications_.store(true, std::memory_order_seq_cst);
  base::full_fence();
  if (active_.load(std::memory_order_relaxed) > 0) base::heavy_fence();
  const bool others = flags_.any_unsubscribed() || workers_.any_local();
  if (others) trusts_notifications_.store(false, std::memory_order_relaxed);
  return !others;
}

}  // namespace slip::backend
