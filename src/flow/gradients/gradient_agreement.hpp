// What ranks tell each other about plans: when gradients came, at the slowest rank, and rank 0's plan. Both are ops of
// a stream; all ranks issue them at the same place, and take the answer when a step has passed, by when it is there.
#pragma once

#include <span>

#include "slip/gradients.hpp"

namespace slip {

class GradientAgreement {
 public:
  GradientAgreement(Communicator& comm, const Device& device, std::size_t parameters, Here here);

  void put_arrivals(std::span<const Picos> own, StreamRef stream, Here here);
  std::span<const Picos> arrivals(Here here);  // by parameter; waits for them

  // Rank 0's counts: a plan, or none if the present one stays.
  void put_plan(const BucketPlan* plan, StreamRef stream, Here here);
  bool take_plan(BucketPlan& into, Here here);  // false: the present one stays. Waits

 private:
  Communicator& comm_;
  Buffer arrivals_;  // one for each parameter
  Buffer words_;     // of a plan: how many buckets, then where each begins and how long it is
  Event arrivals_there_, plan_there_;
};

}  // namespace slip
