// How much longer work takes beside other work of the same program. Other programs on the same cores disturb such
// measurements, and a disturbance can only lengthen a time.
#pragma once

#include <functional>
#include <string_view>

#include "slip/device.hpp"
#include "slip/graph.hpp"
#include "slip/op.hpp"

namespace slip {

// Kernels and loads share cores, memory and links: beside each other they take a few times as long. A measured slowdown
// above this is a time slice of another program.
inline constexpr double kMaxPlausibleSlowdown = 8;

struct TimesBeside {
  Picos alone = 0;
  Picos beside = 0;  // the same work while the other work runs

  // 0.07: takes 7 % longer beside the other work. Never negative; 0 if `alone` is unknown.
  double slowdown() const;
};

// `measure` times the work both ways. If the slowdown is implausible, it is called again, up to 3 more times or until a
// repeat takes as long, and the shortest time of each way counts.
TimesBeside measure_beside(const std::function<TimesBeside()>& measure);

// The slowdown of `times`, at most kMaxPlausibleSlowdown. Logs a warning that names `what` where it reduces the figure.
double plausible_slowdown(const TimesBeside& times, std::string_view what);

// What ops take when they follow each other for a while, as they will: a processor that is busy for long slows its
// clock down, and the next op finds what the one before left in caches. Bursts of one op show neither.

struct SustainedTimes {
  TimesBeside ops;   // all ops of the graph, once; beside loads in another stream
  TimesBeside load;  // one load; beside ops
};

// `load` issues one load, which takes `load_time`. Takes a few seconds. Zeros where time is virtual, and where the
// device has no room for it.
SustainedTimes sustained_times(const Graph& graph, const Device& device, const std::function<void(StreamRef)>& load,
                               Picos load_time);

}  // namespace slip
