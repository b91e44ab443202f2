// Activity: the GPU's own times of kernels and copies, from CUPTI, which measures without adding anything between them.
//
// The library is looked for at run time: a program starts without it, and where it is missing, or another profiler has
// it, RunTimes falls back on timed events. Process-wide, as CUPTI is.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "slip/op.hpp"

namespace slip {

struct GpuSpan {
  Picos started = 0, ended = 0;  // on the host's clock
};

class Activity {
 public:
  static Activity* get();  // null where CUPTI cannot be had
  void start();            // records from now on
  void pause();            // no more, until the next start()

  // What this thread enqueues between the two carries the number.
  void push(std::uint64_t number) const;
  void pop() const;
  // The spans that are complete, by number, of the numbers that are `wanted`; one number may have several.
  std::vector<std::pair<std::uint64_t, GpuSpan>> take(const std::function<bool(std::uint64_t)>& wanted);

 private:
  Activity() = default;
  static Activity* load();
};

}  // namespace slip
