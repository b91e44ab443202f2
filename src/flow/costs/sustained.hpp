// What ops take when they follow each other for a while, as they will: a processor that is busy for long slows its
// clock down, and the next op finds what the one before left in caches. Bursts of one op show neither.
#pragma once

#include <functional>

#include "flow/costs/interference.hpp"
#include "slip/device.hpp"
#include "slip/graph.hpp"

namespace slip {

struct SustainedTimes {
  TimesBeside ops;   // all ops of the graph, once; beside loads in another stream
  TimesBeside load;  // one load; beside ops
};

// `load` issues one load, which takes `load_time`. Takes a few seconds. Zeros where time is virtual, and where the
// device has no room for it.
SustainedTimes sustained_times(const Graph& graph, const Device& device, const std::function<void(StreamRef)>& load,
                               Picos load_time);

}  // namespace slip
