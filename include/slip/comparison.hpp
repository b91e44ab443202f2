// Comparison: a measured step beside its prediction, op by op. compare_weights (runner.hpp) makes one for a Runner,
// compare_steps (gradient_report.hpp) for Gradients.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "slip/op.hpp"

namespace slip {

struct Comparison {
  struct Difference {
    // Runner: an op of the graph. Gradients: a bucket's call, a part of the backward pass, or the work after it.
    std::string op;
    Picos predicted = 0, measured = 0;
  };
  // One step in the steady state. Gradients: from the first gradient to the use of the last one.
  Picos predicted = 0, measured = 0;
  // The part of the step in which compute stalled for loads or for communication.
  Picos predicted_exposed = 0, measured_exposed = 0;
  Picos predicted_communication = 0, measured_communication = 0;  // Gradients: durations of all calls added up
  std::vector<Difference> differences = {};                       // the largest first
  double error() const;                                           // of the step: 0.05 is 5 %
  std::string text(std::size_t max_differences = 5) const;
};

}  // namespace slip
