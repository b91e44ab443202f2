// GradientNorm: the norm of all gradients, and clipping by it. It sums the squares of each parameter, and then adds
// these sums in the order of the parameters' numbers. So the bits do not depend on the buckets. A stream of its own
// computes the sums of a parameter when the parameter's last call has ended.
#pragma once

#include "flow/gradients/gradient_step.hpp"

namespace slip::flow {

class GradientNorm {
 public:
  // `stream` computes the sums.
  GradientNorm(const Device& device, Stream stream, const ParameterList& parameters, Here here);

  // Call it after calls [first_call, end_call) were issued. It issues the sums of the parameters that these calls
  // complete.
  void follow(const GradientStep& step, std::uint32_t first_call, std::uint32_t end_call, Here here);
  // Clipping takes three calls, so that the norm may be of several Gradients objects:
  // await(): `stream` waits for the sums.
  // total(): multiplies the sum of the squares by `share`. Writes the result to `total` or adds it there.
  // scale(): computes the norm, the root of `total`. If it is above `max_norm`, scales the gradients down to it. Later
  // waits of the step wait for the scaling.
  enum class Total : std::uint8_t { kSet, kAdd };
  void await(const GradientStep& step, StreamRef stream, GradientClock& clock, Here here);
  void total(Range total, Total how, double share, StreamRef stream, Here here);
  void scale(Range total, double max_norm, GradientStep& step, StreamRef stream, Here here);
  Range own_total() const { return totals_.slice(sizeof(double), sizeof(double)); }

  Range norm() const { return norm_; }
  void release_memory(std::vector<Buffer>& to) {  // of an object that is no longer used
    for (Buffer* const one : {&squares_, &parts_, &totals_, &norm_}) to.push_back(std::move(*one));
  }

 private:
  const ParameterList& parameters_;
  Stream stream_;
  Buffer squares_;  // a double for each parameter
  Buffer parts_;    // partial sums of one parameter, on a GPU
  Buffer totals_;   // two doubles: the factor for the gradients, and the total of squares
  Buffer norm_;     // pinned, for the program
  Event summed_;    // the sums of the step are computed
  Event scaled_;    // the gradients of the step are scaled
};

}  // namespace slip::flow
