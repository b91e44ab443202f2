// What ops take when they follow each other for a while, as they will: a processor that is busy for long slows its
// clock down, and the next op finds what the one before left in caches. Bursts of one op show neither.
#pragma once

#include <functional>

#include "slip/device.hpp"
#include "slip/graph.hpp"

namespace slip {

struct SustainedTimes {
  Picos alone = 0;                        // all ops of the graph, once
  Picos beside = 0;                       // the same while loads run in another stream
  Picos load_alone = 0, load_beside = 0;  // of one load, and while ops run
};

// `load` issues one load, which takes `load_time`. Takes a few seconds. Zeros where time is virtual, and where the
// device has no room for it.
SustainedTimes sustained_times(const Graph& graph, const Device& device, const std::function<void(StreamRef)>& load,
                               Picos load_time);

}  // namespace slip
