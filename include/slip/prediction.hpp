// Prediction: a plan's step, simulated on a sim device. predict_weights (weights.hpp) makes one for a plan of weights,
// predict_step (gradient_plan.hpp) for a plan of gradient buckets.
#pragma once

#include <cstdint>

#include "slip/op.hpp"
#include "slip/trace.hpp"

namespace slip {

struct Prediction {
  // One step. Weights: in the steady state. Gradients: from the start of the backward pass to the use of the last
  // gradient.
  Picos step = 0;
  Picos first_step = 0;  // weights: it waits for its first loads. Gradients: the same as `step`
  // The part of the step in which compute stalled for loads or for communication.
  Picos exposed = 0;
  Picos communication = 0;           // gradients: durations of all calls added up
  std::uint64_t loaded_bytes = 0;    // weights: by a step
  std::uint64_t device_bytes = 0;    // weights: the maximum in use
  std::uint64_t compute_stream = 0;  // its id in the trace
  TraceData trace;                   // of the simulated ops only
  Picos compute() const { return step - exposed; }
};

}  // namespace slip
