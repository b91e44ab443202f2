// The norm of all gradients, and scaling by it. Sums of squares are of each parameter, then over parameters in the
// order of their numbers, so the bits do not depend on the buckets. They are computed in a stream of their own as calls
// end.
#pragma once

#include "flow/gradients/gradient_step.hpp"

namespace slip {

class GradientNorm {
 public:
  GradientNorm(const Device& device, const ParameterList& parameters, Here here);

  // Those calls have been made: the sums of the parameters that they complete follow them.
  void follow(const GradientStep& step, std::uint32_t first_call, std::uint32_t end_call, Here here);
  // The step's waits then wait for the scaling.
  void clip(double most, GradientStep& step, StreamRef stream, GradientClock& clock, Here here);

  // The same in parts, when others count, too: `stream` waits for the sums; their total, times a share, is written to
  // `total` or added to it; and when `total` is that of all, the gradients are scaled by it.
  enum class Total : std::uint8_t { kSet, kAdd };
  void await(const GradientStep& step, StreamRef stream, GradientClock& clock, Here here);
  void total(Range total, Total how, double share, StreamRef stream, Here here);
  void scale(Range total, double most, GradientStep& step, StreamRef stream, Here here);
  Range own_total() const { return results_.slice(2 * sizeof(double), sizeof(double)); }

  Range norm() const { return results_.slice(0, sizeof(double)); }

 private:
  const ParameterList& parameters_;
  Stream stream_;
  Buffer squares_;  // a double for each parameter
  Buffer results_;  // the norm, the factor, and the total of squares
  Event scaled_, summed_;
};

}  // namespace slip
