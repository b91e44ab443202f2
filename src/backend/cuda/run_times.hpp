// RunTimes: when ops ran on the GPU, for observers. A timed event before and after each op; read when they are reached.
//
// Timed events rather than CUPTI: they need no privileges, no second library and no single-client lock, and they
// measure what a stream sees. docs/benchmarks.md has what they cost.
#pragma once

#include <deque>
#include <mutex>

#include "backend/cuda/cuda_stream.hpp"
#include "slip/observer.hpp"

namespace slip {

class RunTimes {
 public:
  explicit RunTimes(int gpu) : gpu_(gpu) {}

  // Before and after the op's own calls, on the submitting thread.
  EventUse begin(const CudaStream& stream);
  void end(const CudaStream& stream, EventUse begun, const Op& op, std::uint64_t position, std::uint32_t device);
  // Tells observers of the ops that are done; those that are not stay for the next time.
  void collect();

 private:
  struct Run {
    EventUse begun, ended;
    Record record;
  };
  struct Base {  // an event whose time on the host's clock is known
    EventUse event;
    Picos at = 0;
  };
  void take_base();
  Picos time_of(const EventUse& event) const;

  const int gpu_;
  std::mutex mutex_;
  Base base_;             // guarded by mutex_
  std::deque<Run> runs_;  // guarded by mutex_
};

}  // namespace slip
