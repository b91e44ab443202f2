// Waits and barriers of a trace that no conflict needs, with what they cost.
#pragma once

#include <span>
#include <vector>

#include "slip/check.hpp"
#include "watch/race/needed_edges.hpp"

namespace slip {

struct Superfluous {
  std::vector<SuperfluousWait> waits;            // dearest first
  std::vector<FalseDependency> legacy_barriers;  // dearest first
};

// `needed` has seen the whole trace; `spans` are the trace's.
Superfluous find_superfluous(const TraceData& trace, std::span<const TraceSpan> spans, const NeededEdges& needed);

}  // namespace slip
