// The times of a recorded step of gradients, and the results computed from them. The results are when each gradient is
// needed, how long streams stalled for communication, and the report of the step. Pure functions; the times may be
// measured or simulated.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "slip/gradient_report.hpp"
#include "slip/op.hpp"

namespace slip::flow {

// A recorded step, in picoseconds since the arrival of its first gradient. The lists are empty if nothing was recorded.
struct GradientTimes {
  static constexpr std::uint32_t kAll = ~std::uint32_t{0};
  struct WaitTimes {
    std::uint32_t parameter = 0;  // kAll: all parameters, as clip_norm() waits for
    std::uint32_t call = 0;       // the call whose end it waits for
    std::uint64_t stream = 0;
    Picos reached = 0, left = 0;
  };
  std::vector<Picos> arrivals;         // by parameter
  std::vector<std::uint64_t> sources;  // streams that wrote the gradients, by parameter
  std::vector<Picos> starts, ends;     // by call
  std::vector<WaitTimes> waits;        // in the order issued
  Picos next_step = 0;                 // arrival of the next recorded step's first gradient; 0: unknown
};

// When each gradient is needed, and how long streams stalled for communication.
//
// A stream stalls from the time when it reaches a wait until the call that it waits for has ended. The time from then
// until it continues counts as device time: it would pass without communication, too. While the backward pass still
// runs in another stream a stall costs nothing. A stream that still has gradients to write belongs to the backward
// pass.
struct StepAnalysis {
  struct StallTime {
    Picos from = 0, time = 0;
  };
  struct Chain {  // the waits of one stream, one after the other
    std::uint64_t stream = 0;
    Picos last_gradient = 0;  // arrival of the last gradient that the stream writes; -1: it writes none
    Picos left = 0;           // when it continued after its last wait
    Picos due = 0;            // when it would have reached that wait without stalls
    Picos stalled = 0;        // sum of its stalls
  };
  // By parameter: when its first use would begin if nothing were late, not before the end of the backward pass.
  // Parameters that no stream waited for are needed last.
  std::vector<Picos> needed;
  std::vector<StallTime> stalls;  // by wait
  Picos backward_end = 0;
  Picos exposed = 0;                // stall time of the stream that stalled longest
  std::uint64_t exposed_in = 0;     // id of that stream
  std::vector<Chain> chains;        // by stream
  std::vector<std::uint8_t> known;  // by parameter: some stream waited for it
};
// Allocates nothing if `into` was used for as many parameters before.
void analyze_step(const GradientTimes& times, StepAnalysis& into);

// Gives the calls that reduce a parameter.
using CallsOf = std::function<std::span<const std::uint32_t>(std::uint32_t parameter)>;

// The report of a recorded step; the names of the gradients are left empty.
GradientReport report_of(const GradientTimes& times, const CallsOf& calls_of, const BucketPlan& plan,
                         const ReduceCost& cost);

}  // namespace slip::flow
