// Finds the waits and barriers of a trace that no conflict needs, and the time that they cost. Used by check_trace().
#pragma once

#include <span>
#include <vector>

#include "slip/check.hpp"
#include "watch/race/needed_edges.hpp"

namespace slip::watch {

struct Superfluous {
  std::vector<SuperfluousWait> waits;            // most expensive first
  std::vector<FalseDependency> legacy_barriers;  // most expensive first
};

// `needed` must have been filled by check_races() of the same trace; `spans` is trace.spans().
Superfluous find_superfluous(const TraceData& trace, std::span<const TraceSpan> spans, const NeededEdges& needed);

}  // namespace slip::watch
