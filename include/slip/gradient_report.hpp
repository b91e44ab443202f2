// GradientReport: where the time of a training step went, measured or predicted, and a comparison of the two. Both
// reports follow the same definitions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "slip/gradient_plan.hpp"

namespace slip {

// Times are on the device's clock and start at the step's first gradient.
//
// `exposed` is the time in which a stream was idle only because of communication. It starts when the stream reaches a
// wait, or at the end of the backward pass for a stream that does not compute that pass. It ends when the call ends.
// If several streams wait, the longest time counts.
struct GradientReport {
  struct Part {  // one bucket
    Bucket bucket = {};
    std::string gradients = {};  // in it: the first one, and how many more
    Picos ready = 0, start = 0, end = 0;
    Picos exposed = 0;       // the parts add up to the step's
    std::string cause = {};  // why it was exposed
  };
  std::uint64_t step = 0;
  Picos time = 0;           // until the next step's first gradient; if unknown, until the last wait
  Picos used = 0;           // until the end of the last wait
  Picos communication = 0;  // durations of the calls, waits for other ranks included
  Picos exposed = 0;
  Picos bound = 0;                 // the longer of compute and communication: no schedule is faster
  std::vector<Part> buckets = {};  // in call order
  double overlapped() const;       // percent of the communication
  double of_bound() const;         // time / bound
  std::string line() const;        // for a progress display
  std::string text() const;        // with one line per bucket
};

// predict_step() bucket by bucket. `time` ends at the last use of a gradient, because a profile contains nothing later.
GradientReport predict_report(const GradientProfile& profile, const ReduceCost& cost, const BucketPlan& plan,
                              Here here = Here::at());

// A measured step compared with its prediction.
struct StepComparison {
  struct Difference {
    std::string op;  // a call, the backward pass up to a bucket, or a consumer of gradients
    Picos predicted = 0, measured = 0;
  };
  Picos predicted = 0, measured = 0;  // from the first gradient to the last use of one
  Picos predicted_exposed = 0, measured_exposed = 0;
  Picos predicted_communication = 0, measured_communication = 0;
  std::vector<Difference> differences = {};  // largest first
  double error() const;                      // relative error of the time: 0.05 is 5 %
  std::string text(std::size_t max_lines = 5) const;
};
// Throws kMismatch unless both have the same buckets.
StepComparison compare_steps(const GradientReport& predicted, const GradientReport& measured, Here here = Here::at());

}  // namespace slip
