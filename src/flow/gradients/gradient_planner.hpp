// GradientPlanner: plans the buckets of a Gradients object from measured steps, so that all ranks use the same plan.
//
// After the first step rank 0 makes a plan from the measured times. Later the third and the ninth step are recorded,
// and one step after every Options::check_every steps. If its times have drifted and a new plan gains enough, all ranks
// adopt that plan. Between steps the host waits only for ops that were issued at least one step ago, except after the
// first step.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "flow/gradients/gradient_set.hpp"
#include "flow/gradients/gradient_step.hpp"
#include "flow/gradients/gradient_times.hpp"

namespace slip::flow {

// Exchanges measured times and plans between the ranks, as ops of a stream. All ranks issue the same ops at the same
// point of the same step, and take the result a step later, when it has arrived.
class PlanExchange {
 public:
  PlanExchange(Communicator& comm, const Device& device, std::size_t parameters, Here here);

  // Exchanges the arrival times of gradients. The result has the latest time over all ranks for each parameter.
  void put_arrivals(std::span<const Picos> own, StreamRef stream, Here here) {
    std::copy(own.begin(), own.end(), arrivals_.host_write<Picos>(here).begin());
    comm_.all_reduce(arrivals_, arrivals_, DataType::kI64, ReduceOp::kMax, stream, here);
    stream.record(arrivals_there_, here);
  }
  std::span<const Picos> arrivals(Here here) {  // by parameter; waits until they are exchanged
    arrivals_there_.sync(here);
    return arrivals_.host_read<Picos>(here).span();
  }

  // Rank 0 sends its plan to all ranks; null if the current plan stays.
  void put_plan(const BucketPlan* plan, StreamRef stream, Here here);
  bool take_plan(BucketPlan& into, Here here);  // waits; false: the current plan stays

  void release_memory(std::vector<Buffer>& to) {  // of an object that is no longer used
    for (Buffer* const one : {&arrivals_, &words_}) to.push_back(std::move(*one));
  }

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
    std::uint64_t steps = 0;  // number of steps that have ended, including this one
    const GradientStep& step;
    const GradientClock& clock;
    const GradientLayout& layout;
    const BucketPlan& plan;
  };

  // `cost` is the cost of a call while nothing else runs.
  GradientPlanner(Communicator& comm, const Device& device, std::size_t parameters, ReduceCost cost, Options options,
                  Here here);

  bool wants_recording(std::uint64_t steps) const { return steps == 0 || check_ == Check::kRecord; }

  // For the end of the first step. order_of_arrival() waits for the step. It returns the parameters in the order in
  // which their gradients arrived, by the latest rank for each. It returns nullopt if the step was not recorded. Then
  // first_plan() makes the plan for `layout`, which should have that order. It returns false if rank 0 has no plan.
  std::optional<std::vector<std::uint32_t>> order_of_arrival(const PlannedStep& ended, Here here);
  bool first_plan(const GradientLayout& layout, StreamRef stream, BucketPlan& plan, Here here);

  // After each later step. True: `next` is to be adopted now, on all ranks.
  bool check(const PlannedStep& ended, BucketPlan& next, Here here);

  const ReduceCost& cost() const { return cost_; }
  const GradientProfile& profile() const { return profile_; }

  void release_memory(std::vector<Buffer>& to) { exchange_.release_memory(to); }

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
  ReduceCost cost_;          // of a call while compute runs: `slowdown_` times cost_alone_
  double slowdown_ = 1;      // of calls while compute runs, as the last plan assumes
  GradientProfile profile_;  // of the step that the last plan was made for
  Check check_ = Check::kIdle;
  GradientTimes times_;  // of the step that was recorded last
  StepAnalysis analysis_;
};

}  // namespace slip::flow
