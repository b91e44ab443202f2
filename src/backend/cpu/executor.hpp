// Executor: runs the lanes of a cpu device. CpuBackend calls it. Pool runs lanes concurrently, Serial one op at a time.
#pragma once

#include <cstdint>

#include "backend/cpu/lane.hpp"

namespace slip::backend {

class Executor {
 public:
  virtual ~Executor() = default;
  // CpuBackend gave work to an idle lane; its state is kQueued. A thread of the executor will run it.
  virtual void wake(Lane& lane) = 0;
  // Whether the thread that submits an exchange to an idle lane also begins it.
  virtual bool begins_early() const { return false; }
  // Finishes an exchange that was already done when it was submitted. The caller owns the lane; its state is kRunning.
  virtual void end_begun(Lane& lane) {
    // release: the thread that runs the lane sees what this thread did.
    lane.state.store(LaneState::kQueued, std::memory_order_release);
    wake(lane);
  }
  // Blocks until the lane has reached the position, and may run ops meanwhile. False: the deadline passed first.
  virtual bool wait(Lane& lane, std::uint64_t position, std::int64_t deadline_ns) = 0;
  // A thread polls whether work is done, and may depend on it: the executor must not delay queued work any longer.
  virtual void nudge() = 0;

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
    while (visitors_.load(std::memory_order_acquire) != 0) base::yield_thread();
  }

 private:
  std::atomic<int> visitors_{0};
};

}  // namespace slip::backend
