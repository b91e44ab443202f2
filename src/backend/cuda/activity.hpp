// Activity: start and end times of kernels and copies, measured by the GPU and read with CUPTI. Unlike timed events, it
// adds no gaps between kernels. RunTimes uses it.
//
// CUPTI is loaded at run time. If it is missing, or another profiler uses it, RunTimes falls back to timed events.
// Process-wide, as CUPTI is.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "slip/op.hpp"

namespace slip::backend {

struct GpuSpan {
  Picos started = 0, ended = 0;  // on the host's clock
};

class Activity {
 public:
  static Activity* get();  // null: CUPTI is not available
  void start();            // records from now on
  void pause();            // stops recording until the next start()

  // Work that this thread enqueues between push() and pop() gets the number.
  void push(std::uint64_t number) const;
  void pop() const;
  // Removes and returns the completed spans whose number is `wanted`. One number may have several spans.
  std::vector<std::pair<std::uint64_t, GpuSpan>> take(const std::function<bool(std::uint64_t)>& wanted);

 private:
  Activity() = default;
  static Activity* load();
};

}  // namespace slip::backend
