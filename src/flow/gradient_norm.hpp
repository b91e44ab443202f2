// The norm of all gradients, and scaling by it. Sums of squares are of each parameter, then over parameters in the
// order of their numbers, so the bits do not depend on the buckets. They are computed in a stream of their own as calls
// end.
#pragma once

#include "flow/gradient_step.hpp"

namespace slip {

class GradientNorm {
 public:
  GradientNorm(const Device& device, const ParameterList& parameters, Here here);

  // Those calls have been made: the sums of the parameters that they complete follow them.
  void follow(const GradientStep& step, std::uint32_t first_call, std::uint32_t end_call, Here here);
  // The step's waits then wait for the scaling.
  void clip(double most, GradientStep& step, StreamRef stream, GradientClock& clock, Here here);
  Range norm() const { return results_.slice(0, sizeof(double)); }

 private:
  const ParameterList& parameters_;
  Stream stream_;
  Buffer squares_;  // a double for each parameter
  Buffer results_;  // the norm, and the factor
  Event scaled_, summed_;
};

}  // namespace slip
