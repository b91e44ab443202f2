// The containers of Pool for lanes that do not run: lists, the queue that all threads share, the queues of engines, and
// the lanes that wait for flags. A LaneList needs the lock of its owner; the others have their own locks. No thread
// blocks in them.
#pragma once

#include <atomic>
#include <utility>
#include <vector>

#include "backend/cpu/lane.hpp"
#include "backend/cpu/pack.hpp"

namespace slip::backend {

// An intrusive queue of lanes. The lock of its owner guards it.
template <Lane* Lane::*Next>
class LaneList {
 public:
  void push(Lane& lane) {
    lane.*Next = nullptr;
    if (last_) last_->*Next = &lane;
    else first_ = &lane;
    last_ = &lane;
  }
  Lane* pop() {
    Lane* lane = first_;
    if (lane) {
      first_ = lane->*Next;
      if (!first_) last_ = nullptr;
    }
    return lane;
  }

 private:
  Lane* first_ = nullptr;
  Lane* last_ = nullptr;
};

// The queue of ready lanes that any thread may take. A driver is a host thread that waits for a lane and runs it
// meanwhile. It claims the lane by changing the lane's state alone, so the lane's entry may stay here after that.
class SharedQueue {
 public:
  // On one core: if a host thread submits to a lane and waits each time, the worker leaves the lane to that thread.
  explicit SharedQueue(bool one_core) : one_core_(one_core) {}

  // Adds a lane whose state is kQueued. `urgent`: a sleeping worker should be woken for it, see
  // LaneScheduler::share(). Returns whether it is urgent; a lane that is left to its host is not.
  bool push(Lane& lane, bool urgent) {
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
  // Takes the first lane that nobody claimed; its state is then kRunning. Null: there is none.
  Lane* take() {
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
  // Takes the first lane that its host does not run: it is not left to the host, or it made no progress since the last
  // call. The other lanes stay.
  Lane* take_abandoned() {
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

  bool any(std::memory_order order = std::memory_order_relaxed) const { return count_.load(order) > 0; }
  bool urgent() const { return urgent_.load(std::memory_order_relaxed); }  // a hint

 private:
  const bool one_core_;
  base::SpinLock lock_;
  LaneList<&Lane::shared_next> lanes_ SLIP_GUARDED_BY(lock_);
  alignas(64) std::atomic<int> count_{0};  // threads read it far more often than a thread takes the lock
  std::atomic<bool> urgent_{false};        // the queue may have an urgent lane; a hint
};

// The slots of one engine: as many ops as there are slots may run on it concurrently.
class EngineSlots {
 public:
  static constexpr std::size_t kLevels = 3;  // of priority, 0 is the highest

  void set_slots(int count) {
    const base::LockGuard lock(lock_);
    free_ = count;
  }
  // Takes a slot. False: none is free, and the lane is parked until release() returns it.
  bool take_or_park(Lane& lane, std::size_t level) {
    const base::LockGuard lock(lock_);
    if (free_ > 0) {
      --free_;
      return true;
    }
    lane.parked_on.store(nullptr, std::memory_order_relaxed);
    lane.state.store(LaneState::kParked, std::memory_order_release);
    waiting_[level].push(lane);
    waiting_count_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  // Passes a slot to the first waiting lane of the highest priority, sets its `granted`, and returns that lane. Null:
  // no lane waits, and the slot is free now.
  Lane* release(Engine engine) {
    const base::LockGuard lock(lock_);
    Lane* lane = nullptr;
    for (auto& waiting : waiting_) {
      if ((lane = waiting.pop())) break;
    }
    if (!lane) {
      ++free_;
      return nullptr;
    }
    waiting_count_.fetch_sub(1, std::memory_order_relaxed);
    lane->granted = engine;
    return lane;
  }
  bool wanted() const { return waiting_count_.load(std::memory_order_relaxed) > 0; }  // a hint

 private:
  base::SpinLock lock_;
  int free_ SLIP_GUARDED_BY(lock_) = 0;
  LaneList<&Lane::next> waiting_[kLevels] SLIP_GUARDED_BY(lock_);
  std::atomic<int> waiting_count_{0};
};

// Lanes that are parked on a flag in memory or on an exchange. Waiting host threads poll them, and so does the
// searcher, which is the idle worker that looks for work (see lane_scheduler.hpp).
class FlagWaiters {
 public:
  // `subscribed`: the exchange notifies the pool, so the pool may poll rarely.
  void park(Lane& lane, bool subscribed) {
    const base::LockGuard lock(lock_);
    lane.subscribed = subscribed;
    if (!subscribed)
      unsubscribed_count_.fetch_add(1, std::memory_order_seq_cst);  // see LaneScheduler::only_subscribed()
    lane.parked_on.store(nullptr, std::memory_order_relaxed);
    lane.state.store(LaneState::kParked, std::memory_order_release);
    lanes_.push_back(&lane);
    count_.fetch_add(1, std::memory_order_seq_cst);
  }
  // Moves the lanes that can continue to `ready`. False: another thread polls at the moment. REQUIRES: `ready` is
  // empty, because its size is subtracted from the count.
  bool poll(std::vector<Lane*>& ready) {
    if (!lock_.try_lock()) return false;
    std::erase_if(lanes_, [&](Lane* lane) {
      if (!can_continue(op_at(*lane, lane->head))) return false;
      ready.push_back(lane);
      if (!lane->subscribed) unsubscribed_count_.fetch_sub(1, std::memory_order_relaxed);
      return true;
    });
    count_.fetch_sub(static_cast<int>(ready.size()), std::memory_order_relaxed);
    lock_.unlock();
    return true;
  }
  bool any(std::memory_order order = std::memory_order_relaxed) const { return count_.load(order) > 0; }
  // Whether some lane waits for a flag or an exchange that sends no notification. seq_cst: see
  // LaneScheduler::only_subscribed().
  bool any_unsubscribed() const { return unsubscribed_count_.load(std::memory_order_seq_cst) > 0; }

 private:
  base::SpinLock lock_;
  std::vector<Lane*> lanes_ SLIP_GUARDED_BY(lock_);
  std::atomic<int> count_{0};
  std::atomic<int> unsubscribed_count_{0};
};

}  // namespace slip::backend
