// What every drawing of a trace needs: when each device's clock starts, and the arrows between its ops.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "slip/trace.hpp"

namespace slip {

// By device: what to take from its times. Clocks that start with the machine run far ahead of virtual time and are
// shifted to zero, for viewers count in doubles; devices on such a clock share one start, so that they stay aligned.
std::map<std::uint32_t, Picos> clock_origins(const TraceData& trace);

// From the last op that a wait covers to the first op that it holds: indices of spans.
struct Arrow {
  std::uint32_t from = 0, to = 0;
  bool barrier = false;
};

// In the order of the waits. Ops that did not run, or whose submission was not seen, have none.
std::vector<Arrow> arrows(const TraceData& trace, std::span<const TraceSpan> spans);

}  // namespace slip
