#include "backend/cpu/pool.hpp"

#include <utility>

#include "backend/cpu/pack.hpp"
#include "base/clock.hpp"
#include "base/wait.hpp"

namespace slip::backend {
namespace {
constexpr unsigned kBatch = 64;              // ops of one lane that a thread runs before it lets other lanes run
constexpr std::uint64_t kPrefetchCells = 4;  // distance of the prefetched cell from the end of the current op
constexpr std::uint64_t kNoStop = ~0ull;
constexpr std::uint32_t kTimedVisits = 8;  // if the ops of a lane are short, one run() in kTimedVisits is timed
constexpr int kChecks = 8;                 // checks of an empty lane before a worker leaves it
constexpr int kMaxDependencies = 64;       // the maximum number of dependencies that a waiting host thread follows

}  // namespace

Pool::Pool(int compute_workers, int cores)
    : limits_(cores), scheduler_(*this, limits_, compute_workers, [this](Worker& self) { work(self); }) {}

void Pool::wake(Lane& lane) {
  scheduler_.cores().note_host();
  scheduler_.share(lane);
}

void Pool::work(Worker& self) {
  base::set_time_slice(self.runner.time_slice);  // a thread inherits the slice of the thread that started it
  while (Lane* lane = scheduler_.next(self)) run(self.runner, *lane, kNoStop);
}

// Runs the lane, which this thread owns, until it is empty, must wait, has reached `stop`, or other lanes should run.
// Then the thread no longer owns the lane.
void Pool::run(LaneRunner& self, Lane& lane, std::uint64_t stop) {
  // Reading the clock takes a tenth of the time of a short op. So if the ops of a lane are short, only one run() in
  // kTimedVisits is timed.
  const bool timed = limits_.expected_long(lane) || lane.visits++ % kTimedVisits == 0;
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
      scheduler_.make_ready(self, lane);
      if (scheduler_.engine_wanted(self.held)) scheduler_.release_engine(self);
      return;
    }
    PackedOp& op = op_at(lane, lane.head);
    const std::uint64_t end = lane.head + op.cells;
    __builtin_prefetch(&op_at(lane, end + kPrefetchCells));  // another core wrote these cells
    if (op.padding) {
      lane.head = end;
      continue;
    }
    if (op.target && ops > 0) account();  // before start(), which may park the lane
    if (!start(self, lane, op)) return;
    // Not a fetch_add: only this thread writes `steps`.
    self.steps.store(self.steps.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    execute(lane, op, end);
    lane.head = end;
    lane.dispatched = false;
    // publish() reports the end of a wait together with the next op, or before this thread leaves the lane.
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
  if (scheduler_.engine_wanted(self.held) && (ops >= kBatch || limits_.expected_long(lane))) return true;
  return ops >= kBatch && (self.has_local() || scheduler_.has_shared());
}

// Checks whether the op at head may run, and takes a slot of its engine. False: the op must wait, the lane is parked,
// and this thread no longer owns it.
bool Pool::start(LaneRunner& self, Lane& lane, PackedOp& op) {
  if (lane.queue && !lane.dispatched) {
    publish(self, lane);
    if (!lane.queue->front_or_park(lane)) return false;
  }
  for (StreamPoint point = unreached_point(op); point.stream; point = unreached_point(op)) {
    publish(self, lane);
    if (!park_on_point(lane, point)) return false;
  }
  if (!flag_reached(op)) {
    publish(self, lane);
    scheduler_.park_on_flag(lane, op);
    return false;
  }
  if (op.kind == OpKind::kExchange) {
    publish(self, lane);
    if (self.has_local()) scheduler_.offer_local(self, true);  // the exchange may take long
    self.use_time_slice(base::TimeSlice::kShort);
    if (!exchange(lane, op, lane.head + op.cells,
                  self.is_worker ? runtime::Exchange::By::kWorker : runtime::Exchange::By::kWaiter)) {
      scheduler_.park_on_flag(lane, op);
      return false;
    }
  }
  if (lane.queue && !lane.dispatched) {
    lane.dispatched = true;
    if (Lane* freed = lane.queue->dispatch()) scheduler_.make_ready(self, *freed);
  }
  if (op.engine == Engine::kNone || op.engine == Engine::kCommunication) return true;
  if (self.time_slice == base::TimeSlice::kShort && lane.op_ticks.load(std::memory_order_relaxed) > limits_.heavy_ticks)
    self.use_time_slice(base::TimeSlice::kUsual);
  publish(self, lane);  // reports the waits before the op: the op may wait for its engine or run for long
  if (!scheduler_.hold_engine(self, lane, op.engine)) return false;
  if (self.has_local()) scheduler_.offer_local(self, limits_.expected_long(lane, &op));
  return true;
}

// Publishes that everything before `head` is done, and wakes the waiters for these positions.
void Pool::publish(LaneRunner& self, Lane& lane) {
  if (lane.done.load(std::memory_order_relaxed) == lane.head) return;
  // seq_cst, both: a waiter sets has_waiters and then reads `done`. One of the two threads sees the other's store.
  lane.done.store(lane.head, std::memory_order_seq_cst);
  if (lane.has_waiters.load(std::memory_order_seq_cst)) wake_waiters(self, lane);
}

void Pool::wake_waiters(LaneRunner& self, Lane& lane) {
  Waiter* served = take_served(lane);
  LaneList<&Lane::next> ready;  // for this worker's local queue; collected so that one lock suffices
  int count = 0;
  while (served) {
    Lane& next = *served->lane;
    served = served->next;  // first: the lane may run at once and reuse its waiter
    if (!self.is_worker || !self.has_local() || next.executor.load(std::memory_order_relaxed) != this) {
      scheduler_.make_ready(self, next);
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
bool Pool::park_on_point(Lane& lane, StreamPoint point) {
  Lane& target = *static_cast<Lane*>(point.stream);
  const base::LockGuard lock(target.wait_lock);
  lane.waiter = {point.position, &lane, nullptr, target.waiters};
  lane.parked_on.store(&target, std::memory_order_relaxed);
  lane.parked_position.store(point.position, std::memory_order_relaxed);
  // If the list already has a waiter, its thread has set has_waiters and then read `done`, under this lock. A publisher
  // that did not see has_waiters had stored `done` before that read, so this thread reads no older value.
  if (!target.waiters) target.has_waiters.store(true, std::memory_order_seq_cst);
  if (target.done.load(target.waiters ? std::memory_order_acquire : std::memory_order_seq_cst) >= point.position) {
    target.has_waiters.store(target.waiters != nullptr, std::memory_order_relaxed);
    return true;
  }
  // Another thread can take the lane out of the list only after this thread has released wait_lock.
  target.waiters = &lane.waiter;
  lane.state.store(LaneState::kParked, std::memory_order_release);
  return false;
}

// Each read of `published` takes its cache line from the host's core, and the host's next store to it is slow. So a
// worker with nothing else to do reads it only at intervals, in which the host submits several ops.
void Pool::pace(LaneRunner& self) {
  if (limits_.one_core || scheduler_.cores().on_host_core()) return;
  while (base::ticks() - self.last_check < limits_.look_ticks && !scheduler_.has_shared()) base::cpu_relax();
  self.last_check = base::ticks();
}

// A worker that finds a lane empty checks it some more times before it leaves. Otherwise a host that submits op after
// op would have to wake a thread each time. True: the lane is in the worker's queue again.
bool Pool::linger(LaneRunner& self, Lane& lane) {
  if (!self.is_worker || limits_.one_core || lane.checks >= kChecks || scheduler_.has_shared() ||
      scheduler_.engine_wanted(self.held) || scheduler_.stopping() || scheduler_.cores().on_host_core())
    return false;
  const std::uint32_t syncs = lane.syncs.load(std::memory_order_relaxed);
  if (lane.syncs_seen != syncs) {  // the host waits after each op: let it run the lane, without a thread switch
    lane.syncs_seen = syncs;
    return false;
  }
  ++lane.checks;
  // After as many empty checks as there are local lanes, all of them are empty.
  if (self.has_local() && self.empty_checks++ >= self.local_count.load(std::memory_order_relaxed)) {
    self.empty_checks = 0;
    pace(self);
  }
  scheduler_.make_ready(self, lane);
  return true;
}

// One step of a waiting host thread (a driver) towards `position`: follows the dependencies to a lane that is queued,
// and runs it up to the needed position. False: there is nothing to run: another thread runs that lane, or the lane
// waits for a flag, another rank or another device.
bool Pool::drive(LaneRunner& self, Lane& lane, std::uint64_t position) {
  Lane* target = &lane;
  for (int depth = 0; depth < kMaxDependencies; ++depth) {
    if (target->executor.load(std::memory_order_relaxed) != this) return false;  // a lane of another device
    LaneState state = base::load_acquire(target->state);
    if (state == LaneState::kQueued &&
        target->state.compare_exchange_strong(state, LaneState::kRunning, base::kAcquire)) {
      base::acquire_fence();  // sees the lane as the thread that queued it left it
      run(self, *target, position);
      scheduler_.release_engine(self);
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

// Reserves an entry of drivers_ for a waiting host thread. Null: all are in use.
LaneRunner* Pool::take_driver() {
  for (LaneRunner& driver : drivers_) {
    if (!driver.in_use.load(std::memory_order_relaxed) && !driver.in_use.exchange(true, base::kAcquire)) {
      base::acquire_fence();  // sees the entry as its last user left it
      return &driver;
    }
  }
  return nullptr;
}

bool Pool::wait(Lane& lane, std::uint64_t position, std::int64_t deadline_ns) {
  const auto reached = [&] { return base::load_acquire(lane.done) >= position; };
  if (reached()) return true;
  // A thread with a deadline runs no ops, because it could not stop in the middle of one. Other threads run the lane.
  LaneRunner* const self = deadline_ns == 0 ? take_driver() : nullptr;
  if (!self) hurry();
  // If this thread shares a core with the worker that runs the lane, spinning would only delay that worker.
  const int polls = limits_.one_core || scheduler_.cores().on_worker_core() ? 1 : base::kLaneWait.spins;
  base::Backoff backoff(limits_.one_core ? base::kYieldWait : base::kLaneWait);
  while (!reached() && backoff.pauses() < polls) {
    if (self && drive(*self, lane, position)) {
      backoff.restart();
      continue;
    }
    if (self) static_cast<void>(scheduler_.poll_flags(*self));
    if (deadline_ns != 0 && (backoff.pauses() & 63) == 63 && base::now_ns() > deadline_ns) break;
    backoff.pause();
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

// Stores the mean time of the lane's last ops. Ignores a long time if the thread was preempted since the last long
// time: the ops may still be short.
void Pool::note_time(LaneRunner& self, Lane& lane, std::uint64_t op_ticks) const {
  if (op_ticks > limits_.long_ticks && !limits_.expected_long(lane)) {
    const std::int64_t before = std::exchange(self.preemptions, base::preemptions());
    if (before != self.preemptions) return;
  }
  lane.op_ticks.store(op_ticks, std::memory_order_relaxed);
}

}  // namespace slip::backend
