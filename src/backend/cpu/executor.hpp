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
  // Blocks until the lane has reached the position, helping to get there; false when the deadline passed first.
  virtual bool wait(Lane& lane, std::uint64_t position, std::int64_t deadline_ns) = 0;
  // Somebody asked whether work is done: a chance to do some, for executors without threads of their own.
  virtual void nudge() = 0;
};

}  // namespace slip
