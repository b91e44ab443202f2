#include "backend/cpu/pool_queues.hpp"

namespace slip::backend {

bool SharedQueue::push(Lane& lane, bool urgent) {
  const base::LockGuard lock(lock_);
  if (one_core_) {
    lane.left_to_host = lane.syncs_shared != lane.syncs.load(std::memory_order_relaxed);
    lane.syncs_shared = lane.syncs.load(std::memory_order_relaxed);
  }
  urgent = urgent && !lane.left_to_host;
  if (lane.enqueued) return urgent;  // a driver claimed the lane earlier, and the lane's old entry is still here
  lane.enqueued = true;
  lanes_.push(lane);
  // seq_cst: the searcher stores that it stops searching and then reads the count. One of the two sees the other.
  count_.fetch_add(1, std::memory_order_seq_cst);
  if (urgent) urgent_.store(true, std::memory_order_relaxed);
  return urgent;
}

Lane* SharedQueue::take() {
  while (any()) {
    Lane* lane = nullptr;
    {
      const base::LockGuard lock(lock_);
      lane = lanes_.pop();
      if (!lane) return nullptr;
      lane->enqueued = false;
      if (count_.fetch_sub(1, std::memory_order_relaxed) == 1) urgent_.store(false, std::memory_order_relaxed);
    }
    LaneState queued = LaneState::kQueued;
    // acquire: sees what the last thread that ran the lane did. On failure: a driver claimed it.
    if (lane->state.compare_exchange_strong(queued, LaneState::kRunning, std::memory_order_acquire)) return lane;
  }
  return nullptr;
}

Lane* SharedQueue::take_abandoned() {
  const base::LockGuard lock(lock_);
  LaneList<&Lane::shared_next> kept;
  Lane* taken = nullptr;
  bool urgent = false;
  while (Lane* lane = lanes_.pop()) {
    const std::uint64_t done = lane->done.load(std::memory_order_relaxed);
    const bool progressed = done != std::exchange(lane->done_checked, done);
    if (taken || (lane->left_to_host && progressed)) {
      kept.push(*lane);
      urgent = urgent || !lane->left_to_host;
      continue;
    }
    lane->enqueued = false;
    count_.fetch_sub(1, std::memory_order_relaxed);
    LaneState queued = LaneState::kQueued;
    // acquire: sees what the last thread that ran the lane did. On failure: a driver has it, or it is idle.
    if (lane->state.compare_exchange_strong(queued, LaneState::kRunning, std::memory_order_acquire)) taken = lane;
  }
  lanes_ = kept;
  urgent_.store(urgent, std::memory_order_relaxed);
  return taken;
}

}  // namespace slip::backend
