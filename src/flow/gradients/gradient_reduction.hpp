// What reduces a bucket: an all_reduce, the same with fewer bits on the way, or a user's hook; and what that costs.
#pragma once

#include "slip/gradients.hpp"

namespace slip {

class GradientReduction {
 public:
  GradientReduction(Compression compression, GradientHook hook) : compression_(compression), hook_(std::move(hook)) {}

  bool needs_scratch() const { return hook_ || compression_ != Compression::kNone; }
  bool is_hook() const { return static_cast<bool>(hook_); }
  // Enqueues it. Throws what a hook throws.
  void enqueue(const GradientCall& call, Here here) const;

 private:
  Compression compression_;
  GradientHook hook_;
};

// Measures calls of up to `max_bytes` on zeros, from small ones up, until they take long. All ranks call it and get
// the same figures: those of the slowest. Waits.
ReduceCost measure_reduction(const GradientReduction& reduction, Communicator& comm, StreamRef stream,
                             std::uint64_t max_bytes, Here here);

}  // namespace slip
