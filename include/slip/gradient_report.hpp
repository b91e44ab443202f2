// What became of a step of gradients, what was predicted of it, and the one laid over the other. Both sides are made by
// the same definitions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "slip/comparison.hpp"
#include "slip/gradient_plan.hpp"

namespace slip {

// By the device's clock. Times count from the step's first gradient.
//
// Exposed is the time in which a stream stood still for communication only: from where it got to a wait, but not before
// the backward pass ended unless it is the one that computes it, until the call that it waited for had ended. Of
// several streams it is the one that stood still longest.
struct GradientReport {
  struct Part {  // a bucket, in the order of the calls
    Bucket bucket = {};
    std::string gradients = {};  // that it touches: the first one, and how many more
    Picos ready = 0, start = 0, end = 0;
    Picos exposed = 0;       // they add up to the step's
    std::string cause = {};  // of that
  };
  std::uint64_t step = 0;
  Picos time = 0;           // until the next step's first gradient; until the last wait where that is not known
  Picos used = 0;           // until the last wait was over
  Picos communication = 0;  // of the calls, with what they waited for other ranks
  Picos exposed = 0;
  Picos bound = 0;  // the longer of computing and communicating: no schedule takes less
  std::vector<Part> buckets = {};
  double overlapped() const;  // percent of the communication
  double of_bound() const;    // time / bound
  std::string line() const;   // for a progress display
  std::string text() const;   // with a line for each bucket
};

// predict_step() bucket by bucket. `time` ends where the last gradient is used: what comes then is not in a profile.
GradientReport predict_report(const GradientProfile& profile, const ReduceCost& cost, const BucketPlan& plan,
                              Here here = Here::at());

using StepComparison = Comparison;  // its name in earlier versions
// Throws kMismatch unless both are of the same buckets.
Comparison compare_steps(const GradientReport& predicted, const GradientReport& measured, Here here = Here::at());

}  // namespace slip
