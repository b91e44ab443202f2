// RunTimes: when ops ran on the GPU, for observers.
//
// CUPTI's activity records where they can be had, because they add nothing between two kernels; else a timed event
// before and after each op, which costs some 4 us of the stream's time (docs/benchmarks.md).
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "backend/cuda/activity.hpp"
#include "backend/cuda/cuda_stream.hpp"
#include "slip/observer.hpp"

namespace slip {

class RunTimes {
 public:
  explicit RunTimes(int gpu) : gpu_(gpu) {}

  // Around the CUDA calls of one op, on the submitting thread.
  class Scope {
   public:
    Scope(RunTimes& times, const CudaStream& stream, const Op& op, std::uint64_t position, std::uint32_t device);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    RunTimes& times_;
    const CudaStream& stream_;
    Record record_;
    Activity* const activity_;
    std::uint64_t number_ = 0;
    EventUse begun_;
  };

  bool active() const { return active_.load(std::memory_order_relaxed); }
  // Tells observers of the ops that are done; those that are not stay for the next time. With no observer left, stops.
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
  void collect_events();
  void collect_activity();

  const int gpu_;
  std::atomic<bool> active_{false};
  std::mutex mutex_;  // guards what follows
  Base base_;
  std::deque<Run> runs_;                                // by events
  std::unordered_map<std::uint64_t, Record> numbered_;  // by activity
};

}  // namespace slip
