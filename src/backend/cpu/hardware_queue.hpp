// HardwareQueue: dispatch order of the streams that share one of the device's queues (rules 92-94). An op leaves the
// queue when it is at the front and may start; one whose dependency is unresolved holds back all behind it, whoever
// they belong to. Used only when the number of queues is limited.
#pragma once

#include <deque>

#include "backend/cpu/lane.hpp"

namespace slip {

class HardwareQueue {
 public:
  void enqueue(Lane& lane) {
    const std::lock_guard lock(lock_);
    order_.push_back(&lane);
  }

  bool at_front(const Lane& lane) {
    const std::lock_guard lock(lock_);
    return order_.front() == &lane;
  }

  // Whether the lane's next op is at the front. If not, the lane is parked here and its owner must let go of it.
  bool front_or_park(Lane& lane) {
    const std::lock_guard lock(lock_);
    if (order_.front() == &lane) return true;
    // Nobody to drive: the lane needs the front op to start, and who drives it would wait for its end.
    lane.parked_on.store(nullptr, std::memory_order_relaxed);
    lane.queue_parked = true;
    lane.state.store(LaneState::kParked, std::memory_order_release);
    return false;
  }

  // The op at the front starts. Returns the lane that was parked for the place, if any.
  Lane* dispatch() {
    const std::lock_guard lock(lock_);
    order_.pop_front();
    if (order_.empty() || !order_.front()->queue_parked) return nullptr;
    Lane* next = order_.front();
    next->queue_parked = false;
    return next;
  }

 private:
  SpinLock lock_;
  std::deque<Lane*> order_;  // one entry per op; bounded because the lanes' rings are
};

}  // namespace slip
