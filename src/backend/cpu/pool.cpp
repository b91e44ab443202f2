#include "backend/cpu/pool.hpp"

#include <algorithm>

#include "backend/cpu/hardware_queue.hpp"
#include "backend/cpu/pack.hpp"
#include "base/clock.hpp"
#include "base/cores.hpp"

namespace slip {
namespace {
constexpr unsigned kBatch = 64;              // ops of one lane before others get their turn
constexpr std::uint64_t kPrefetchCells = 4;  // cells
constexpr std::uint64_t kNoStop = ~0ull;
constexpr std::uint32_t kTimedVisits = 8;
constexpr int kLooks = 8;   // at an empty lane, before letting go of it
constexpr int kChase = 64;  // how far a waiting thread follows dependencies
}  // namespace

void Pool::work(Worker& self) {
  set_time_slice(self.runner.time_slice);  // a thread inherits the slice of the thread that started it
  while (Lane* lane = next(self)) run(self.runner, *lane, kNoStop);
}

// Runs the lane, which this thread owns, until it is empty, must wait, or has reached `stop`. Gives up ownership.
void Pool::run(Runner& self, Lane& lane, std::uint64_t stop) {
  // To read the clock takes a tenth of what a short op does: of a lane whose ops are short one visit in eight is timed.
  const bool timed = expected_long(lane, nullptr) || lane.visits++ % kTimedVisits == 0;
  std::uint64_t begun = timed ? ticks() : 0;
  unsigned ops = 0;
  const auto account = [&] {  // REQUIRES: the lane is ours
    if (timed && ops > 0) note_time(self, lane, (ticks() - begun) / ops);
  };
  for (;;) {
    if (lane.head == lane.limit) {
      publish(self, lane);
      if (self.is_worker && !self.has_local()) pace(self);
      lane.limit = load_acquire(lane.published);  // acquire: the cells up to it are written
      if (lane.head == lane.limit) {
        account();
        if (linger(self, lane) || leave_if_empty(lane)) return;
        begun = timed ? ticks() : 0, ops = 0;
        continue;
      }
      lane.looks = 0;
    }
    if (lane.head >= stop || turn_over(self, lane, ops)) {
      account();
      publish(self, lane);
      make_ready(self, lane);
      if (wanted(self.held)) let_go(self);
      return;
    }
    PackedOp& op = lane.at(lane.head);
    const std::uint64_t end = lane.head + op.cells;
    __builtin_prefetch(&lane.at(end + kPrefetchCells));  // written by another core
    if (op.padding) {
      lane.head = end;
      continue;
    }
    if (op.target && ops > 0) account();  // the lane may be gone after start()
    if (!start(self, lane, op)) return;
    self.steps.store(self.steps.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);  // one writer
    execute(lane, op, end);
    lane.head = end;
    lane.dispatched = false;
    if (op.kind == OpKind::kWait) continue;  // published with the next op, or when the lane stops
    ++ops;
    self.fruitless = 0;
    publish(self, lane);
  }
}

// Ends an exchange that was all done when it was submitted, by the thread that did so.
void Pool::end_begun(Lane& lane) {
  while (lane.at(lane.head).padding) lane.head += lane.at(lane.head).cells;
  PackedOp& op = lane.at(lane.head);
  const std::uint64_t end = lane.head + op.cells;
  execute(lane, op, end);
  lane.head = lane.limit = end;
  publish(host_, lane);
  if (!leave_if_empty(lane)) Executor::end_begun(lane);
}

// Whether others should have this thread, or its engine, before the lane goes on.
bool Pool::turn_over(const Runner& self, const Lane& lane, unsigned ops) const {
  if (ops == 0) return false;
  if (wanted(self.held) && (ops >= kBatch || expected_long(lane, nullptr))) return true;
  return ops >= kBatch && (self.has_local() || shared_count_.load(std::memory_order_relaxed) > 0);
}

// Everything that must be true before the op at head runs. False: the lane is parked and no longer ours.
bool Pool::start(Runner& self, Lane& lane, PackedOp& op) {
  if (lane.queue && !lane.dispatched) {
    publish(self, lane);
    if (!lane.queue->front_or_park(lane)) return false;
  }
  for (Point point = unreached_point(op); point.stream; point = unreached_point(op)) {
    publish(self, lane);
    if (!park_on_point(lane, point)) return false;
  }
  if (!word_reached(op)) {
    publish(self, lane);
    park_on_word(lane, op);
    return false;
  }
  if (op.kind == OpKind::kExchange) {
    publish(self, lane);
    if (self.has_local()) {  // it may take long
      keep(self);
      light_fence();  // see search()
      share_local(self);
    }
    use_time_slice(self, TimeSlice::kShort);
    if (!exchange(lane, op, lane.head + op.cells, self.is_worker ? Exchange::By::kWorker : Exchange::By::kWaiter)) {
      park_on_word(lane, op);
      return false;
    }
  }
  if (lane.queue && !lane.dispatched) {
    lane.dispatched = true;
    if (Lane* freed = lane.queue->dispatch()) make_ready(self, *freed);
  }
  if (op.engine == Engine::kNone || op.engine == Engine::kCommunication) return true;
  if (self.time_slice == TimeSlice::kShort && lane.op_ticks.load(std::memory_order_relaxed) > heavy_ticks_)
    use_time_slice(self, TimeSlice::kUsual);
  publish(self, lane);  // waits before it are done, whatever it waits for or how long it takes
  if (!hold(self, lane, op.engine)) return false;
  if (self.has_local()) {
    keep(self);
    light_fence();  // see search()
    if (expected_long(lane, &op)) share_local(self);
    else if (search_.load(std::memory_order_relaxed) == Search::kNone) wake_one();  // who would rescue the rest
    else if (trusts_.load(std::memory_order_relaxed)) wake_napper();                // who would rescue it late
  }
  return true;
}

// A worker that waits for other ranks has little to do, but at once; one that computes gets on without interruption.
void Pool::use_time_slice(Runner& self, TimeSlice slice) {
  if (!self.is_worker || self.time_slice == slice) return;
  set_time_slice(self.time_slice = slice);
}

// Everything before `head` is done: say so and wake who waits for it.
void Pool::publish(Runner& self, Lane& lane) {
  if (lane.done.load(std::memory_order_relaxed) == lane.head) return;
  // seq_cst, both: a waiter sets has_waiters and then reads `done`; one of the two sees the other.
  lane.done.store(lane.head, std::memory_order_seq_cst);
  if (lane.has_waiters.load(std::memory_order_seq_cst)) wake_waiters(self, lane);
}

void Pool::wake_waiters(Runner& self, Lane& lane) {
  Waiter* served = take_served(lane);
  LaneList<&Lane::next> ready;  // of this pool, for this worker: queued with one lock
  int count = 0;
  while (served) {
    Lane& next = *served->lane;
    served = served->next;  // before the lane runs and may use its waiter again
    if (!self.is_worker || !self.has_local() || next.executor.load(std::memory_order_relaxed) != this) {
      make_ready(self, next);
      continue;
    }
    next.state.store(LaneState::kLocal, std::memory_order_release);
    ready.push(next);
    ++count;
  }
  if (count == 0) return;
  const std::lock_guard lock(self.lock);
  while (Lane* next = ready.pop()) self.local.push(*next);
  self.count(count);
}

// Parks the lane until a point that its next op waits for is reached. True: it was reached meanwhile, the lane is
// still ours.
bool Pool::park_on_point(Lane& lane, Point point) {
  Lane& target = *static_cast<Lane*>(point.stream);
  const std::lock_guard lock(target.wait_lock);
  lane.waiter = {point.position, &lane, nullptr, target.waiters};
  lane.parked_on.store(&target, std::memory_order_relaxed);
  lane.parked_position.store(point.position, std::memory_order_relaxed);
  // From here on another thread may take the lane, but only after it got wait_lock.
  // Behind another waiter the flag is set: that one stored it and then read `done`, under this lock. A publisher that
  // did not see the flag had stored `done` before that, and this thread reads no older value.
  if (!target.waiters) target.has_waiters.store(true, std::memory_order_seq_cst);
  if (target.done.load(target.waiters ? std::memory_order_acquire : std::memory_order_seq_cst) >= point.position) {
    target.has_waiters.store(target.waiters != nullptr, std::memory_order_relaxed);
    return true;
  }
  target.waiters = &lane.waiter;
  lane.state.store(LaneState::kParked, std::memory_order_release);
  return false;
}

// Each look at `published` takes its cache line away from the host, who would then pay for it at every op: a worker
// with nothing else to do waits until some time has passed since its last look, and several ops have gathered.
void Pool::pace(Runner& self) {
  if (one_core_ || shares_host_core()) return;
  while (ticks() - self.looked < look_ticks_ && shared_count_.load(std::memory_order_relaxed) == 0) cpu_relax();
  self.looked = ticks();
}

// A worker that finds a lane empty keeps it a while and looks at it again, so that a host which submits op after op
// need not wake anybody. True: the lane is in the worker's queue again.
bool Pool::linger(Runner& self, Lane& lane) {
  if (!self.is_worker || one_core_ || lane.looks >= kLooks || shared_count_.load(std::memory_order_relaxed) > 0 ||
      wanted(self.held) || stopping_.load(std::memory_order_relaxed) || shares_host_core())
    return false;
  const std::uint32_t syncs = lane.syncs.load(std::memory_order_relaxed);
  if (lane.syncs_seen != syncs) {  // somebody submits and waits, in turns: let that thread run it, without a switch
    lane.syncs_seen = syncs;
    return false;
  }
  ++lane.looks;
  if (self.has_local() && self.fruitless++ >= self.local_count.load(std::memory_order_relaxed)) {  // all are empty
    self.fruitless = 0;
    pace(self);
  }
  make_ready(self, lane);
  return true;
}

// The lane, which nobody owns, can go on: by this thread next, or by others. The first one needs no queue.
void Pool::make_ready(Runner& self, Lane& lane) {
  Executor* owner = lane.executor.load(std::memory_order_relaxed);
  if (owner != this) return owner->wake_from_outside(lane);  // another device's lane, which waited for one of ours
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
  const std::lock_guard lock(self.lock);  // a successor is older, and stays before what is in the queue
  self.local.push(lane);
  self.count(+1);
}

// Puts the successor where the searcher can find it: this thread is about to do something else.
void Pool::keep(Runner& self) {
  if (!self.successor) return;
  const std::lock_guard lock(self.lock);
  self.local.push(*self.successor);
  self.count(+1);
  self.successor = nullptr;
}

// One step towards `position` by the waiting thread: finds the lane that holds it up and runs that one no further than
// needed. False: other threads are at it.
bool Pool::drive(Runner& self, Lane& lane, std::uint64_t position) {
  Lane* target = &lane;
  for (int depth = 0; depth < kChase; ++depth) {
    if (target->executor.load(std::memory_order_relaxed) != this) return false;  // another device runs its lanes itself
    LaneState state = load_acquire(target->state);
    if (state == LaneState::kQueued && target->state.compare_exchange_strong(state, LaneState::kRunning, kAcquire)) {
      acquire_fence();  // the lane as who queued it left it
      run(self, *target, position);
      let_go(self);
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
  const auto reached = [&] { return load_acquire(lane.done) >= position; };
  if (reached()) return true;
  Runner* self = nullptr;
  for (Runner& driver : drivers_) {
    if (deadline_ns != 0) break;  // an op cannot be left in the middle: who must be back in time lets others run it
    if (!driver.in_use.load(std::memory_order_relaxed) && !driver.in_use.exchange(true, kAcquire)) {
      acquire_fence();  // the slot as its last user left it
      self = &driver;
      break;
    }
  }
  if (!self) hurry();
  // On the core of the worker that has the lane, this thread would only keep it from running.
  const bool shares_core = current_core() == worker_core_.load(std::memory_order_relaxed);
  const int spins = one_core_ || shares_core ? 1 : 100;
  int idle = 0;
  while (!reached() && idle < spins) {
    if (self && drive(*self, lane, position)) {
      idle = 0;
      continue;
    }
    if (words_count_.load(std::memory_order_relaxed) > 0) static_cast<void>(poll_words(self));
    if (deadline_ns != 0 && (idle & 63) == 63 && now_ns() > deadline_ns) break;
    if (one_core_) yield_thread();
    for (int i = 0; i < std::min(idle, 32); ++i)
      cpu_relax();  // looking all the time would slow the running thread down
    ++idle;
  }
  if (self) self->in_use.store(false, std::memory_order_release);
  if (reached()) return true;

  Parker parker;
  Waiter waiter{position, nullptr, &parker, nullptr};
  {
    const std::lock_guard lock(lane.wait_lock);
    lane.has_waiters.store(true, std::memory_order_seq_cst);  // see complete()
    if (lane.done.load(std::memory_order_seq_cst) >= position) return true;
    waiter.next = lane.waiters;
    lane.waiters = &waiter;
  }
  parker.park(deadline_ns);
  const std::lock_guard lock(lane.wait_lock);
  for (Waiter** link = &lane.waiters; *link; link = &(*link)->next) {
    if (*link != &waiter) continue;
    *link = waiter.next;  // timed out: nobody may touch this stack frame any more
    break;
  }
  return reached();
}

}  // namespace slip
