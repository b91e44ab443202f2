// GradientReduction: how a bucket is reduced: by all_reduce, by all_reduce of compressed values, or by the user's hook.
// measure_reduction measures the cost.
#pragma once

#include "slip/gradients.hpp"

namespace slip::flow {

class GradientReduction {
 public:
  GradientReduction(Compression compression, GradientHook hook) : compression_(compression), hook_(std::move(hook)) {}

  bool needs_scratch() const { return hook_ || compression_ != Compression::kNone; }
  bool is_hook() const { return static_cast<bool>(hook_); }
  // Enqueues the reduction. Throws what the hook throws.
  void enqueue(const GradientCall& call, Here here) const;

 private:
  Compression compression_;
  GradientHook hook_;
};

// Measures calls on zeros, from small sizes up to `max_bytes` or until a call takes long. All ranks call it and get the
// same result: the times of the slowest rank. Waits for the calls.
ReduceCost measure_reduction(const GradientReduction& reduction, Communicator& comm, StreamRef stream,
                             std::uint64_t max_bytes, Here here);

}  // namespace slip::flow
