// Interference: how much longer kernels take while loads run, and loads while kernels run. measure_costs uses it.
// Another program on the same cores disturbs these measurements; a disturbance can only make a time longer.
#pragma once

#include <functional>
#include <string_view>

#include "slip/device.hpp"
#include "slip/graph.hpp"
#include "slip/op.hpp"

namespace slip::flow {

// Kernels and loads that run concurrently share cores, memory and links, and take at most a few times as long. A larger
// measured slowdown shows that another program had the cores for a time slice.
inline constexpr double kMaxPlausibleSlowdown = 8;

struct InterferenceTimes {
  Picos alone = 0;
  Picos beside = 0;  // the same work while the other work runs

  // 0.07: the work takes 7 % longer while the other work runs. Never negative; 0 if `alone` is unknown.
  double slowdown() const;
};

// `measure` times the work alone and concurrently. If the slowdown is implausible, `measure` is repeated up to 3 times,
// or until a repeat takes as long. The result has the shortest time of each kind.
InterferenceTimes measure_interference(const std::function<InterferenceTimes()>& measure);

// The slowdown of `times`, at most kMaxPlausibleSlowdown. Logs a warning with `what` if the measured one is larger.
double plausible_slowdown(const InterferenceTimes& times, std::string_view what);

// Times of a whole graph that runs for a while. Short bursts of one op do not show them. Under sustained load a
// processor lowers its clock, and an op finds data of the previous op in the caches.
struct SustainedTimes {
  InterferenceTimes ops;   // all ops of the graph, once; `beside`: while loads run in another stream
  InterferenceTimes load;  // one load; `beside`: while ops run
};

// `load` issues one load, which takes about `load_time`. The measurement takes a few seconds. Returns zeros on a device
// with virtual time, and if the device has too little free memory.
SustainedTimes sustained_times(const Graph& graph, const Device& device, const std::function<void(StreamRef)>& load,
                               Picos load_time);

}  // namespace slip::flow
