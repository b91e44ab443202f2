// Circles of waits among the ops of a trace that never ran.
#pragma once

#include <span>
#include <vector>

#include "slip/check.hpp"

namespace slip {

std::vector<Deadlock> find_deadlocks(const TraceData& trace, std::span<const TraceSpan> spans);

}  // namespace slip
