#include "backend/cpu/pool.hpp"

#include <algorithm>

#include "backend/cpu/pack.hpp"
#include "base/clock.hpp"

namespace slip::backend {
namespace {
constexpr unsigned kBatch = 64;              // a thread runs so many ops of one lane before it lets other lanes run
constexpr std::uint64_t kPrefetchCells = 4;  // cells
constexpr std::uint64_t kNoStop = ~0ull;
constexpr std::uint32_t kTimedVisits = 8;  // if the ops of a lane are short, one run() of the lane in so many is timed
constexpr int kChecks = 8;                 // a worker checks an empty lane so often before it leaves the lane
constexpr int kChase = 64;                 // the maximum number of dependencies that a waiting host thread follows

// Only kernels have priorities, 0 to -2; copy engines ignore them (rule 48).
std::size_t level(Engine engine, const Lane& lane) {
  return engine == Engine::kCompute ? static_cast<std::size_t>(lane.priority + 2) : 2;
}

}  // namespace

void Pool::work(Worker& self) {
  base::set_time_slice(self.runner.time_slice);  // a thread inherits the slice of the thread that started it
  while (Lane* lane = next(self)) run(self.runner, *lane, kNoStop);
}

// Runs the lane, which this thread owns, until it is empty, must wait, or has reached `stop`. Releases ownership.
void Pool::run(LaneRunner& self, Lane& lane, std::uint64_t stop) {
  // Reading the clock takes a tenth of the time of a short op. So if the ops of a lane are short, only one run() in
  // kTimedVisits is timed.
  const bool timed = expected_long(lane, nullptr) || lane.visits++ % kTimedVisits == 0;
  std::uint64_t begun = timed ? base::ticks() : 0;
  unsigned ops = 0;
  const auto account = [&] {  // REQUIRES: this thread owns the lane
    if (timed && ops > 0) note_time(self, lane, (base::ticks() - begun) / ops);
  };
  for (;;) {
    if (lane.head == lane.limit) {
      publish(self, lane);
      if (self.is_worker && !self.has_local()) pace(self);
      lane.limit = base::load_acquire(lane.published);  // acquire: the cells up to it are written
      if (lane.head == lane.limit) {
        account();
        if (linger(self, lane) || leave_if_empty(lane)) return;
        begun = timed ? base::ticks() : 0, ops = 0;
        continue;
      }
      lane.checks = 0;
    }
    if (lane.head >= stop || should_yield(self, lane, ops)) {
      account();
      publish(self, lane);
      make_ready(self, lane);
      if (engine_wanted(self.held)) release_engine(self);
      return;
    }
    PackedOp& op = op_at(lane, lane.head);
    const std::uint64_t end = lane.head + op.cells;
    __builtin_prefetch(&op_at(lane, end + kPrefetchCells));  // another core wrote these cells
    if (op.padding) {
      lane.head = end;
      continue;
    }
    if (op.target && ops > 0) account();  // start() may release the lane
    if (!start(self, lane, op)) return;
    self.steps.store(self.steps.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);  // one writer
    execute(lane, op, end);
    lane.head = end;
    lane.dispatched = false;
    // The end of a wait is published with the next op, or when this thread leaves the lane.
    if (op.kind == OpKind::kWait) continue;
    ++ops;
    self.empty_checks = 0;
    publish(self, lane);
  }
}

// Finishes an exchange that was already done when this thread submitted it.
void Pool::end_begun(Lane& lane) {
  while (op_at(lane, lane.head).padding) lane.head += op_at(lane, lane.head).cells;
  PackedOp& op = op_at(lane, lane.head);
  const std::uint64_t end = lane.head + op.cells;
  execute(lane, op, end);
  lane.head = lane.limit = end;
  publish(host_, lane);
  if (leave_if_empty(lane)) return;
  // release: the thread that runs the lane sees what this thread did.
  lane.state.store(LaneState::kQueued, std::memory_order_release);
  wake(lane);
}

// Whether other lanes should get this thread or its engine before this lane continues.
bool Pool::should_yield(const LaneRunner& self, const Lane& lane, unsigned ops) const {
  if (ops == 0) return false;
  if (engine_wanted(self.held) && (ops >= kBatch || expected_long(lane, nullptr))) return true;
  return ops >= kBatch && (self.has_local() || shared_count_.load(std::memory_order_relaxed) > 0);
}

// Checks everything that the op at head waits for, and takes its engine. False: the lane is parked, and this thread no
// longer owns it.
bool Pool::start(LaneRunner& self, Lane& lane, PackedOp& op) {
  if (lane.queue && !lane.dispatched) {
    publish(self, lane);
    if (!lane.queue->front_or_park(lane)) return false;
  }
  for (Point point = unreached_point(op); point.stream; point = unreached_point(op)) {
    publish(self, lane);
    if (!park_on_point(lane, point)) return false;
  }
  if (!flag_reached(op)) {
    publish(self, lane);
    park_on_flag(lane, op);
    return false;
  }
  if (op.kind == OpKind::kExchange) {
    publish(self, lane);
    if (self.has_local()) {  // the exchange may take long: other threads get the local queue
      self.queue_successor();
      base::light_fence();  // see search()
      share_local(self);
    }
    self.use_time_slice(base::TimeSlice::kShort);
    if (!exchange(lane, op, lane.head + op.cells,
                  self.is_worker ? runtime::Exchange::By::kWorker : runtime::Exchange::By::kWaiter)) {
      park_on_flag(lane, op);
      return false;
    }
  }
  if (lane.queue && !lane.dispatched) {
    lane.dispatched = true;
    if (Lane* freed = lane.queue->dispatch()) make_ready(self, *freed);
  }
  if (op.engine == Engine::kNone || op.engine == Engine::kCommunication) return true;
  if (self.time_slice == base::TimeSlice::kShort && lane.op_ticks.load(std::memory_order_relaxed) > heavy_ticks_)
    self.use_time_slice(base::TimeSlice::kUsual);
  publish(self, lane);  // publish the waits before the op now: the op may wait or run for long
  if (!hold_engine(self, lane, op.engine)) return false;
  if (self.has_local()) {
    self.queue_successor();
    base::light_fence();  // see search()
    if (expected_long(lane, &op)) share_local(self);
    else if (search_.load(std::memory_order_relaxed) == Search::kNone)
      wake_one();  // only a searcher can share the local queue if this op turns out to be long
    else if (trusts_notifications_.load(std::memory_order_relaxed))
      wake_searcher();  // the searcher sleeps long while it trusts notifications: it would share the queue too late
  }
  return true;
}

// A worker that waits for other ranks needs the core rarely, but without delay, so it takes a short time slice. A
// worker that computes takes the usual one.
void LaneRunner::use_time_slice(base::TimeSlice slice) {
  if (!is_worker || time_slice == slice) return;
  base::set_time_slice(time_slice = slice);
}

// Publishes that everything before `head` is done, and wakes the waiters.
void Pool::publish(LaneRunner& self, Lane& lane) {
  if (lane.done.load(std::memory_order_relaxed) == lane.head) return;
  // seq_cst, both: a waiter sets has_waiters and then reads `done`. One of the two threads sees the other's store.
  lane.done.store(lane.head, std::memory_order_seq_cst);
  if (lane.has_waiters.load(std::memory_order_seq_cst)) wake_waiters(self, lane);
}

void Pool::wake_waiters(LaneRunner& self, Lane& lane) {
  Waiter* served = take_served(lane);
  LaneList<&Lane::next> ready;  // lanes for this worker, queued with one lock
  int count = 0;
  while (served) {
    Lane& next = *served->lane;
    served = served->next;  // first: the lane may run at once and reuse its waiter
    if (!self.is_worker || !self.has_local() || next.executor.load(std::memory_order_relaxed) != this) {
      make_ready(self, next);
      continue;
    }
    next.state.store(LaneState::kLocal, std::memory_order_release);
    ready.push(next);
    ++count;
  }
  if (count == 0) return;
  const base::LockGuard lock(self.lock);
  while (Lane* next = ready.pop()) self.local.push(*next);
  self.count(count);
}

// Parks the lane until a point that its next op waits for is reached. True: it was reached meanwhile, and this thread
// still owns the lane.
bool Pool::park_on_point(Lane& lane, Point point) {
  Lane& target = *static_cast<Lane*>(point.stream);
  const base::LockGuard lock(target.wait_lock);
  lane.waiter = {point.position, &lane, nullptr, target.waiters};
  lane.parked_on.store(&target, std::memory_order_relaxed);
  lane.parked_position.store(point.position, std::memory_order_relaxed);
  // From here on another thread may take the lane, but only after it got wait_lock. If the list already has a waiter,
  // that waiter has set has_waiters and then read `done`, under this lock. A publisher that did not see has_waiters had
  // stored `done` before that, and this thread reads no older value.
  if (!target.waiters) target.has_waiters.store(true, std::memory_order_seq_cst);
  if (target.done.load(target.waiters ? std::memory_order_acquire : std::memory_order_seq_cst) >= point.position) {
    target.has_waiters.store(target.waiters != nullptr, std::memory_order_relaxed);
    return true;
  }
  target.waiters = &lane.waiter;
  lane.state.store(LaneState::kParked, std::memory_order_release);
  return false;
}

// Each read of `published` takes its cache line from the host's core, and the host's next store to it is slow. So a
// worker with nothing else to do reads it only at intervals, in which the host submits several ops.
void Pool::pace(LaneRunner& self) {
  if (one_core_ || shares_host_core()) return;
  while (base::ticks() - self.last_check < look_ticks_ && shared_count_.load(std::memory_order_relaxed) == 0)
    base::cpu_relax();
  self.last_check = base::ticks();
}

// A worker that finds a lane empty checks it some more times before it leaves. Otherwise a host that submits op after
// op would have to wake a thread each time. True: the lane is in the worker's queue again.
bool Pool::linger(LaneRunner& self, Lane& lane) {
  if (!self.is_worker || one_core_ || lane.checks >= kChecks || shared_count_.load(std::memory_order_relaxed) > 0 ||
      engine_wanted(self.held) || stopping_.load(std::memory_order_relaxed) || shares_host_core())
    return false;
  const std::uint32_t syncs = lane.syncs.load(std::memory_order_relaxed);
  if (lane.syncs_seen != syncs) {  // the host waits after each op: let it run the lane, without a thread switch
    lane.syncs_seen = syncs;
    return false;
  }
  ++lane.checks;
  if (self.has_local() && self.empty_checks++ >= self.local_count.load(std::memory_order_relaxed)) {  // all are empty
    self.empty_checks = 0;
    pace(self);
  }
  make_ready(self, lane);
  return true;
}

// Queues a lane that can continue: a worker queues it for itself, another thread for all workers. If the worker's queue
// is empty, the lane becomes its successor, which saves taking the lock.
void Pool::make_ready(LaneRunner& self, Lane& lane) {
  Executor* owner = lane.executor.load(std::memory_order_relaxed);
  if (owner != this) return owner->wake_from_outside(lane);  // a lane of another device, which waited for one of ours
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

// Moves the successor to `local`, where the searcher can find it, because this thread is about to run an op.
void LaneRunner::queue_successor() {
  if (!successor) return;
  const base::LockGuard guard(lock);
  local.push(*successor);
  count(+1);
  successor = nullptr;
}

// One step of a waiting host thread (a driver) towards `position`: follows the dependencies to a lane that can run, and
// runs it no further than needed. False: this thread can run nothing, because other threads run these lanes.
bool Pool::drive(LaneRunner& self, Lane& lane, std::uint64_t position) {
  Lane* target = &lane;
  for (int depth = 0; depth < kChase; ++depth) {
    if (target->executor.load(std::memory_order_relaxed) != this) return false;  // another device runs its own lanes
    LaneState state = base::load_acquire(target->state);
    if (state == LaneState::kQueued &&
        target->state.compare_exchange_strong(state, LaneState::kRunning, base::kAcquire)) {
      base::acquire_fence();  // sees the lane as the thread that queued it left it
      run(self, *target, position);
      release_engine(self);
      return true;
    }
    if (state != LaneState::kParked) return false;
    Lane* holder = target->parked_on.load(std::memory_order_relaxed);
    if (!holder || holder == target) return false;
    position = target->parked_position.load(std::memory_order_relaxed);
    target = holder;
  }
  return false;
}

bool Pool::wait(Lane& lane, std::uint64_t position, std::int64_t deadline_ns) {
  const auto reached = [&] { return base::load_acquire(lane.done) >= position; };
  if (reached()) return true;
  LaneRunner* self = nullptr;
  for (LaneRunner& driver : drivers_) {
    if (deadline_ns != 0) break;  // a thread with a deadline cannot leave an op in the middle: others run the lane
    if (!driver.in_use.load(std::memory_order_relaxed) && !driver.in_use.exchange(true, base::kAcquire)) {
      base::acquire_fence();  // sees the slot as its last user left it
      self = &driver;
      break;
    }
  }
  if (!self) hurry();
  // On the same core as the worker that runs the lane, a spinning thread would only delay it.
  const bool shares_core = base::current_core() == worker_core_.load(std::memory_order_relaxed);
  const int spins = one_core_ || shares_core ? 1 : 100;
  int idle = 0;
  while (!reached() && idle < spins) {
    if (self && drive(*self, lane, position)) {
      idle = 0;
      continue;
    }
    if (flag_waiters_.any()) static_cast<void>(poll_flags(self));
    if (deadline_ns != 0 && (idle & 63) == 63 && base::now_ns() > deadline_ns) break;
    if (one_core_) base::yield_thread();
    // Reading `done` too often would slow down the thread that runs the lane.
    for (int i = 0; i < std::min(idle, 32); ++i) base::cpu_relax();
    ++idle;
  }
  if (self) self->in_use.store(false, std::memory_order_release);
  if (reached()) return true;

  base::Parker parker;
  Waiter waiter{position, nullptr, &parker, nullptr};
  {
    const base::LockGuard lock(lane.wait_lock);
    lane.has_waiters.store(true, std::memory_order_seq_cst);  // see publish()
    if (lane.done.load(std::memory_order_seq_cst) >= position) return true;
    waiter.next = lane.waiters;
    lane.waiters = &waiter;
  }
  parker.park(deadline_ns);
  const base::LockGuard lock(lane.wait_lock);
  for (Waiter** link = &lane.waiters; *link; link = &(*link)->next) {
    if (*link != &waiter) continue;
    *link = waiter.next;  // after a timeout: no thread may use this stack frame any more
    break;
  }
  return reached();
}

// Gives `self` the engine for the lane's next op. False: no slot was free, and the lane is parked until it gets one.
bool Pool::hold_engine(LaneRunner& self, Lane& lane, Engine engine) {
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

// Passes the held engine to the first lane that waits for it, or frees the slot.
void Pool::release_engine(LaneRunner& self) {
  if (self.held == Engine::kNone) return;
  const Engine engine = self.held;
  self.held = Engine::kNone;
  if (Lane* lane = engines_[static_cast<std::size_t>(engine)].release(engine)) make_ready(self, *lane);
}

}  // namespace slip::backend
