// GradientReport: the times of a step of gradients, measured or predicted by the same definitions, and their
// comparison.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "slip/comparison.hpp"
#include "slip/gradient_plan.hpp"

namespace slip {

// Times are by the device's clock and count from the arrival of the step's first gradient.
//
// Exposed is the time in which a stream stalled for communication. A stall lasts from when the stream reaches a wait
// until the call that it waits for has ended. A stall counts from the end of the backward pass on, or at once in a
// stream that still computes the backward pass. If several streams stalled, the one that stalled longest counts.
struct GradientReport {
  struct Part {  // a bucket
    Bucket bucket = {};
    std::string gradients = {};  // name of its first gradient, and how many more it has
    Picos ready = 0, start = 0, end = 0;
    Picos exposed = 0;       // the sum over all buckets is GradientReport::exposed
    std::string cause = {};  // why this time was exposed
  };
  std::uint64_t step = 0;
  Picos time = 0;           // until the next step's first gradient; until the end of the last wait if that is unknown
  Picos used = 0;           // until the end of the last wait
  Picos communication = 0;  // the sum of the calls, including their waits for other ranks
  Picos exposed = 0;
  Picos bound = 0;                 // the longer of compute and communication: no schedule takes less
  std::vector<Part> buckets = {};  // in the order of the calls
  double overlapped() const;       // percent of the communication that is not exposed
  double of_bound() const;         // time / bound
  std::string line() const;        // for a progress display
  std::string text() const;        // with a line for each bucket
};

// predict_step() bucket by bucket. `time` ends with the use of the last gradient, since the profile ends there.
GradientReport predict_report(const GradientProfile& profile, const ReduceCost& cost, const BucketPlan& plan,
                              Here here = Here::at());

// Throws kMismatch unless both reports have the same buckets.
Comparison compare_steps(const GradientReport& predicted, const GradientReport& measured, Here here = Here::at());

}  // namespace slip
