// Executor: runs the lanes of a cpu device. CpuBackend calls it. Pool runs lanes concurrently, Serial one op at a time.
#pragma once

#include <cstdint>
#include <deque>

#include "backend/cpu/lane.hpp"
#include "base/wait.hpp"

namespace slip::backend {

class Executor {
 public:
  virtual ~Executor() = default;
  // CpuBackend gave work to an idle lane; its state is kQueued. A thread of the executor will run it.
  virtual void wake(Lane& lane) = 0;
  // Whether the thread that submits an exchange to an idle lane also begins it.
  virtual bool begins_early() const { return false; }
  // Finishes an exchange that was already done when it was submitted. The caller owns the lane; its state is kRunning.
  // REQUIRES: begins_early().
  virtual void end_begun(Lane&) {}
  // Blocks until the lane has reached the position, and may run ops meanwhile. False: the deadline passed first.
  virtual bool wait(Lane& lane, std::uint64_t position, std::int64_t deadline_ns) = 0;
  // A thread polls or waits for work that it does not run itself: the executor must not delay queued work any longer.
  virtual void hurry() = 0;

  // Queues a parked lane of this executor that can continue. A thread of another device calls this, when it has done
  // the work that the lane waited for.
  void wake_from_outside(Lane& lane) {
    // relaxed: the lane has work left, so this executor is not destroyed yet.
    visitors_.fetch_add(1, std::memory_order_relaxed);
    lane.state.store(LaneState::kQueued, std::memory_order_release);
    wake(lane);
    visitors_.fetch_sub(1, std::memory_order_release);
  }
  // Waits until no thread is inside wake_from_outside(). Call it after all work is done and before destruction.
  void await_visitors() const {
    // acquire: pairs with the release above, so the threads have finished with this executor.
    for (base::Backoff backoff(base::kYieldWait); visitors_.load(std::memory_order_acquire) != 0; backoff.pause()) {}
  }

 private:
  std::atomic<int> visitors_{0};
};

// HardwareQueue: the dispatch order of streams that share one hardware queue (docs/semantics.md, rules 92-94). An op
// leaves the queue when it is at the front and may start. An op with an unresolved dependency blocks all ops behind it,
// of any stream. CpuBackend creates hardware queues only if max_connections limits their number.
class HardwareQueue {
 public:
  void enqueue(Lane& lane) {
    const base::LockGuard lock(lock_);
    order_.push_back(&lane);
  }

  bool at_front(const Lane& lane) {
    const base::LockGuard lock(lock_);
    return order_.front() == &lane;
  }

  // Whether the lane's next op is at the front. If not, the lane is parked here, and the caller no longer owns it.
  bool front_or_park(Lane& lane) {
    const base::LockGuard lock(lock_);
    if (order_.front() == &lane) return true;
    // parked_on is null, not the lane of the front op, because a waiting host thread would run that op to its end. This
    // lane only needs it to start.
    lane.parked_on.store(nullptr, std::memory_order_relaxed);
    lane.queue_parked = true;
    lane.state.store(LaneState::kParked, std::memory_order_release);
    return false;
  }

  // The op at the front starts. Returns the lane that is at the front now, if it is parked here.
  Lane* dispatch() {
    const base::LockGuard lock(lock_);
    order_.pop_front();
    if (order_.empty() || !order_.front()->queue_parked) return nullptr;
    Lane* next = order_.front();
    next->queue_parked = false;
    return next;
  }

 private:
  base::SpinLock lock_;
  std::deque<Lane*> order_ SLIP_GUARDED_BY(lock_);  // one entry per op; bounded by the rings of the lanes
};

}  // namespace slip::backend
