// HardwareQueue: the dispatch order of streams that share one hardware queue (docs/semantics.md, rules 92-94). An op
// leaves the queue when it is at the front and may start. An op with an unresolved dependency blocks all ops behind it,
// of any stream. CpuBackend creates hardware queues only if max_connections limits their number.
#pragma once

#include <deque>

#include "backend/cpu/lane.hpp"

namespace slip::backend {

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
    // parked_on is null, not the lane of the front op: this lane only needs that op to start, but a waiting host thread
    // would run it to its end.
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
