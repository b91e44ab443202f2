// GradientPlanner: plans the buckets of a Gradients object from measured steps, so that all ranks use the same plan.
//
// After the first step rank 0 makes a plan from the measured times. Later steps are recorded now and then; if their
// times have drifted and a new plan gains enough, all ranks adopt it. Between steps the host never waits for a step
// that is less than one step old, except after the first one.
#pragma once

#include <span>
#include <vector>

#include "flow/gradients/gradient_clock.hpp"
#include "flow/gradients/gradient_set.hpp"
#include "flow/gradients/gradient_step.hpp"

namespace slip {

// Exchanges measured times and plans between the ranks, as ops of a stream. All ranks issue the same ops at the same
// point of the same step, and take the result a step later, when it is there without waiting.
class PlanExchange {
 public:
  PlanExchange(Communicator& comm, const Device& device, std::size_t parameters, Here here);

  // The arrival times of gradients: of each parameter the latest of all ranks.
  void put_arrivals(std::span<const Picos> own, StreamRef stream, Here here);
  std::span<const Picos> arrivals(Here here);  // by parameter; waits for them

  // Rank 0 sends its plan to all ranks; null if the present plan stays.
  void put_plan(const BucketPlan* plan, StreamRef stream, Here here);
  bool take_plan(BucketPlan& into, Here here);  // waits; false: the present plan stays

 private:
  Communicator& comm_;
  Buffer arrivals_;  // one time for each parameter
  Buffer words_;     // a plan: the number of buckets, then the first byte and the length of each
  Event arrivals_there_, plan_there_;
};

class GradientPlanner {
 public:
  struct Options {
    bool slices = true;   // buckets may cut gradients
    int check_every = 0;  // steps; 0: only the first step is measured
  };
  // The step that ended, with the plan that it used.
  struct PlannedStep {
    std::uint64_t steps = 0;  // that have ended so far, this one included
    const GradientStep& step;
    const GradientClock& clock;
    const GradientLayout& layout;
    const BucketPlan& plan;
  };

  // `cost` is the cost of a call while nothing else runs.
  GradientPlanner(Communicator& comm, const Device& device, std::size_t parameters, ReduceCost cost, Options options,
                  Here here);

  bool wants_recording(std::uint64_t steps) const { return steps == 0 || check_ == Check::kRecord; }

  // After the first step, which this waits for. order_of_arrival() gives the parameters in the order in which their
  // gradients came, at the slowest rank; nothing if the step was not recorded. With the layout in that order, or any
  // other, first_plan() makes the plan; false: rank 0 has none.
  std::optional<std::vector<std::uint32_t>> order_of_arrival(const PlannedStep& ended, Here here);
  bool first_plan(const GradientLayout& layout, StreamRef stream, BucketPlan& plan, Here here);

  // After each later step. True: `next` is to be adopted now, on all ranks.
  bool check(const PlannedStep& ended, BucketPlan& next, Here here);

  const ReduceCost& cost() const { return cost_; }
  const GradientProfile& profile() const { return profile_; }

 private:
  // A check takes one phase per step: record a step, collect its times, decide, adopt.
  enum class Check : std::uint8_t { kIdle, kRecord, kCollect, kDecide, kAdopt };

  void collect(const PlannedStep& ended, Here here);
  void decide(const PlannedStep& ended, Here here);
  void set_times(const GradientLayout& layout, std::span<const Picos> arrivals);
  double slowdown_of_calls(const PlannedStep& ended, std::span<const Picos> arrivals);
  bool has_drifted(const PlannedStep& ended, std::span<const Picos> arrivals, double slowdown) const;
  bool gains(const BucketPlan& present, const BucketPlan& next, Here here) const;
  BucketPlan make_plan(Here here) const;

  Communicator& comm_;
  PlanExchange exchange_;
  const Options options_;
  const ReduceCost cost_alone_;
  ReduceCost cost_;          // in steps: `slowdown_` times cost_alone_
  double slowdown_ = 1;      // of calls while compute runs, as planned for
  GradientProfile profile_;  // of the step that the last plan was made for
  Check check_ = Check::kIdle;
  GradientTimes times_;  // of the step that was recorded last
  StepAnalysis analysis_;
};

}  // namespace slip
