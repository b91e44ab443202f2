// RunTimes: reports to observers when ops ran on the GPU. CudaBackend uses it while there are observers.
//
// It uses CUPTI's activity records if available, because they add no gaps between kernels. Otherwise it records a timed
// event before and after each op, which costs about 4 us of the stream's time (docs/benchmarks.md).
#pragma once

#include <atomic>
#include <deque>
#include <unordered_map>

#include "backend/cuda/cuda_stream.hpp"
#include "base/sync.hpp"
#include "slip/observer.hpp"

namespace slip::backend {

class Activity;  // CUPTI, see run_times.cpp

class RunTimes {
 public:
  explicit RunTimes(int gpu) : gpu_(gpu) {}

  // The submitting thread keeps a Scope alive around the CUDA calls of one op.
  class Scope {
   public:
    Scope(RunTimes& times, const CudaStream& stream, const Op& op, std::uint64_t position, std::uint32_t device);
    ~Scope();

   private:
    RunTimes& times_;
    const CudaStream& stream_;
    Record record_;
    Activity* const activity_;
    std::uint64_t number_ = 0;  // of the op, for CUPTI; 0: the op is timed by events
    EventUse begun_;            // recorded before the op; empty: the op is timed by CUPTI
  };

  // True from the first timed op until collect() finds no observer.
  bool active() const { return active_.load(std::memory_order_relaxed); }
  // Reports finished ops to observers. Unfinished ops stay for the next call.
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
  void take_base() SLIP_REQUIRES(mutex_);
  void collect_events() SLIP_REQUIRES(mutex_);
  void collect_activity() SLIP_REQUIRES(mutex_);

  const int gpu_;
  std::atomic<bool> active_{false};
  base::Mutex mutex_;
  Base base_ SLIP_GUARDED_BY(mutex_);
  std::deque<Run> runs_ SLIP_GUARDED_BY(mutex_);  // timed by events and not yet reported
  // Runs timed by CUPTI and not yet reported, by op number.
  std::unordered_map<std::uint64_t, Record> numbered_ SLIP_GUARDED_BY(mutex_);
};

}  // namespace slip::backend
