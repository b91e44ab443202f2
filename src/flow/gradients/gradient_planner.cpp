#include "flow/gradients/gradient_planner.hpp"

#include <cmath>
#include <cstdlib>

#include "flow/gradients/bucket_plan.hpp"

namespace slip::flow {
namespace {

// Rank 0 makes a new plan if a time deviates from the plan by more than kDrift of a step. The times are the arrival and
// the need of each gradient, and the sum of the calls. The plan is adopted if it saves at least kGain of a step.
constexpr double kDrift = 0.03, kGain = 0.01;
constexpr int kEffortBetweenSteps = 1500;  // plans evaluated: a few milliseconds of host time on rank 0
constexpr double kMaxSlowdown = 4;         // limit for the slowdown of calls: a larger one means that a rank was paused

// Steps 2 and 8 are checked in any case. The first step shows neither waits that come after step_end() nor how calls
// and compute slow each other.
bool is_early(std::uint64_t steps) { return steps == 2 || steps == 8; }

}  // namespace

PlanExchange::PlanExchange(Communicator& comm, const Device& device, std::size_t parameters, Here here)
    : comm_(comm),
      arrivals_(device.alloc(parameters * sizeof(Picos), MemoryKind::kPinned, "arrival of gradients", here)),
      words_(device.alloc((1 + 2 * (parameters + kMaxSlices)) * sizeof(std::uint64_t), MemoryKind::kPinned,
                          "plan of gradients", here)) {}

void PlanExchange::put_plan(const BucketPlan* plan, StreamRef stream, Here here) {
  {
    const HostView<std::uint64_t> words = words_.host_write<std::uint64_t>(here);
    std::fill(words.begin(), words.end(), 0);
    words[0] = plan ? plan->buckets.size() : 0;
    for (std::size_t i = 0; i < words[0]; ++i) {
      words[1 + 2 * i] = plan->buckets[i].first;
      words[2 + 2 * i] = plan->buckets[i].bytes;
    }
  }
  comm_.broadcast(words_, words_, 0, stream, here);
  stream.record(plan_there_, here);
}

bool PlanExchange::take_plan(BucketPlan& into, Here here) {
  plan_there_.sync(here);
  const HostView<const std::uint64_t> words = words_.host_read<std::uint64_t>(here);
  if (words[0] == 0) return false;
  into.buckets.clear();
  for (std::size_t i = 0; i < words[0]; ++i) into.buckets.push_back({words[1 + 2 * i], words[2 + 2 * i]});
  return true;
}

GradientPlanner::GradientPlanner(Communicator& comm, const Device& device, std::size_t parameters, ReduceCost cost,
                                 Options options, Here here)
    : comm_(comm),
      exchange_(comm, device, parameters, here),
      options_(options),
      cost_alone_(std::move(cost)),
      cost_(cost_alone_) {}

std::optional<std::vector<std::uint32_t>> GradientPlanner::order_of_arrival(const PlannedStep& ended, Here here) {
  if (!ended.clock.wait_for(0, times_)) return std::nullopt;
  analyze_step(times_, analysis_);
  exchange_.put_arrivals(times_.arrivals, ended.step.stream(), here);
  const std::span<const Picos> arrivals = exchange_.arrivals(here);
  std::vector<std::uint32_t> order = ended.layout.order();
  std::ranges::stable_sort(order, {}, [&](std::uint32_t i) { return arrivals[i]; });
  return order;
}

bool GradientPlanner::first_plan(const GradientLayout& layout, StreamRef stream, BucketPlan& plan, Here here) {
  profile_ = layout.profile();
  set_times(layout, exchange_.arrivals(here));
  if (comm_.rank() == 0) plan = make_plan(here);
  exchange_.put_plan(comm_.rank() == 0 ? &plan : nullptr, stream, here);
  return exchange_.take_plan(plan, here);
}

bool GradientPlanner::check(const PlannedStep& ended, BucketPlan& next, Here here) {
  switch (check_) {
    case Check::kIdle: {
      if (options_.check_every == 0) break;
      const auto every = static_cast<std::uint64_t>(options_.check_every);
      if (is_early(ended.steps) || ended.steps % every == 0) check_ = Check::kRecord;
      break;
    }
    case Check::kRecord: check_ = Check::kCollect; break;
    case Check::kCollect: collect(ended, here); break;
    case Check::kDecide: decide(ended, here); break;
    case Check::kAdopt: check_ = Check::kIdle; return exchange_.take_plan(next, here);
  }
  return false;
}

void GradientPlanner::collect(const PlannedStep& ended, Here here) {
  check_ = Check::kIdle;
  // wait_for() returns the same value on all ranks: a step is captured, or not reduced, on all ranks or on none.
  if (!ended.clock.wait_for(1, times_)) return;
  analyze_step(times_, analysis_);
  exchange_.put_arrivals(times_.arrivals, ended.step.stream(), here);
  check_ = Check::kDecide;
}

// All ranks use rank 0's plan. Their own plans would differ, because each rank measures other need times and call
// times.
void GradientPlanner::decide(const PlannedStep& ended, Here here) {
  const std::span<const Picos> arrivals = exchange_.arrivals(here);
  const double slowdown = slowdown_of_calls(ended, arrivals);
  BucketPlan made;
  if (has_drifted(ended, arrivals, slowdown)) {
    set_times(ended.layout, arrivals);
    slowdown_ = slowdown;
    for (std::size_t i = 0; i < cost_.points.size(); ++i)
      cost_.points[i].time = std::llround(static_cast<double>(cost_alone_.points[i].time) * slowdown_);
    if (comm_.rank() == 0) made = make_plan(here);
  }
  const bool better = !made.buckets.empty() && gains(ended.plan, made, here);
  exchange_.put_plan(better ? &made : nullptr, ended.step.stream(), here);
  check_ = Check::kAdopt;
}

void GradientPlanner::set_times(const GradientLayout& layout, std::span<const Picos> arrivals) {
  profile_.backward_end = *std::max_element(arrivals.begin(), arrivals.end());
  const Picos later = profile_.backward_end - analysis_.backward_end;  // than on this rank
  for (std::size_t i = 0; i < profile_.gradients.size(); ++i) {
    const std::uint32_t parameter = layout.order()[i];
    profile_.gradients[i].arrival = arrivals[parameter];
    profile_.gradients[i].needed = analysis_.needed[parameter] + later;
  }
}

// The times of the calls divided by their times alone. A call counts from the time when all ranks have its gradients.
// Never below 1: a link with a token bucket (rate limiter) sends the first bytes after an idle period faster. A plan
// that relies on this rate would leave the link idle again.
double GradientPlanner::slowdown_of_calls(const PlannedStep& ended, std::span<const Picos> arrivals) {
  Picos alone = 0, took = 0;
  for (const Bucket& bucket : ended.plan.buckets) alone += cost_alone_.time(bucket.bytes);
  if (alone <= 0) return 1;  // the program gave a cost of 0
  for (std::uint32_t parameter = 0; parameter < arrivals.size(); ++parameter) {
    for (const std::uint32_t call : ended.step.calls_of(parameter))
      times_.starts[call] = std::max(times_.starts[call], arrivals[parameter]);
  }
  for (std::uint32_t call = 0; call < ended.plan.buckets.size(); ++call)
    took += std::max<Picos>(0, times_.ends[call] - times_.starts[call]);
  return std::clamp(static_cast<double>(took) / static_cast<double>(alone), 1.0, kMaxSlowdown);
}

bool GradientPlanner::has_drifted(const PlannedStep& ended, std::span<const Picos> arrivals, double slowdown) const {
  if (profile_.gradients.empty()) return false;
  const Picos end = *std::max_element(arrivals.begin(), arrivals.end());
  Picos span = profile_.backward_end, max = 0, alone = 0;
  for (const Bucket& bucket : ended.plan.buckets) alone += cost_alone_.time(bucket.bytes);
  for (std::size_t i = 0; i < profile_.gradients.size(); ++i) {
    const GradientProfile::Gradient& planned = profile_.gradients[i];
    const std::uint32_t parameter = ended.layout.order()[i];
    span = std::max(span, planned.needed);
    max = std::max(max, std::abs(arrivals[parameter] - planned.arrival));
    max = std::max(max, std::abs(analysis_.needed[parameter] - analysis_.backward_end + end - planned.needed));
  }
  const double moved = std::max(static_cast<double>(max), std::abs(slowdown - slowdown_) * static_cast<double>(alone));
  return moved > kDrift * static_cast<double>(span);
}

bool GradientPlanner::gains(const BucketPlan& present, const BucketPlan& next, Here here) const {
  Picos span = profile_.backward_end;
  for (const GradientProfile::Gradient& gradient : profile_.gradients) span = std::max(span, gradient.needed);
  const Picos gain =
      exposure_of(profile_, cost_, present, here).exposed - exposure_of(profile_, cost_, next, here).exposed;
  return static_cast<double>(gain) > kGain * static_cast<double>(span);
}

BucketPlan GradientPlanner::make_plan(Here here) const {
  return plan_buckets(profile_, cost_,
                      {.granule = GradientLayout::kLine, .slices = options_.slices, .effort = kEffortBetweenSteps},
                      here);
}

}  // namespace slip::flow
