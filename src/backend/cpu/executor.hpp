// Executor: how the lanes of a cpu device are run: by a pool of threads, or one op at a time.
#pragma once

#include <cstdint>

#include "backend/cpu/lane.hpp"

namespace slip {

class Executor {
 public:
  virtual ~Executor() = default;
  // Work came for a lane that was idle; its state is kQueued now.
  virtual void wake(Lane& lane) = 0;
  // Whether an exchange that comes to an idle lane is begun by the thread that submits it.
  virtual bool begins_early() const { return false; }
  // Such an exchange is already done. The lane is the caller's, its state kRunning.
  virtual void end_begun(Lane& lane) {
    lane.state.store(LaneState::kQueued, std::memory_order_release);  // release: who runs it sees what was done to it
    wake(lane);
  }
  // Blocks until the lane has reached the position, helping to get there; false when the deadline passed first.
  virtual bool wait(Lane& lane, std::uint64_t position, std::int64_t deadline_ns) = 0;
  // Somebody asked whether work is done: no reason to put it off any longer.
  virtual void nudge() = 0;

  // A parked lane of this executor can go on: told by a thread of another device, for whose work it waited.
  void wake_from_outside(Lane& lane) {
    visitors_.fetch_add(1, std::memory_order_relaxed);  // relaxed: the lane has work left, so nobody destroys us yet
    lane.state.store(LaneState::kQueued, std::memory_order_release);
    wake(lane);
    visitors_.fetch_sub(1, std::memory_order_release);
  }
  // After all work is done and before destruction: that no such thread is still inside.
  void await_visitors() const {
    while (visitors_.load(std::memory_order_acquire) != 0) yield_thread();
  }

 private:
  std::atomic<int> visitors_{0};
};

}  // namespace slip
