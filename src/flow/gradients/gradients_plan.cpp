// Gradients, as far as it plans: after the first step, and when arrival times have changed.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "flow/gradients/gradients_state.hpp"

namespace slip {
namespace {

// A new plan is looked for when something comes, or is needed, so much of the step earlier or later than it was planned
// for, or calls take so much more or less of it; and taken when it gains so much.
constexpr double kDrift = 0.03, kGain = 0.01;
constexpr int kEffortBetweenSteps = 1500;  // plans looked at: some milliseconds of one rank's host
constexpr double kMaxSlowdown = 4;         // of calls beside compute: a rank that was stopped is no measure

bool is_early(std::uint64_t steps) {
  // Waits that come after step_end() were not seen in the first step, nor what calls and compute take beside each
  // other.
  return steps == 2 || steps == 8;
}

}  // namespace

// Zeros: who adds up gradients begins with them.
void Gradients::State::set_memory(Here here) {
  memory = comm.allocate(layout.bytes(), "gradients", here);
  if (reduction.needs_scratch()) scratch = comm.allocate(layout.bytes(), "gradients: scratch", here);
  const HostView<std::byte> view = memory.buffer().host_write<std::byte>(here);
  std::fill(view.begin(), view.end(), std::byte{0});
}

void Gradients::State::adopt(BucketPlan next, Here here) {
  plan = std::move(next);
  step->adopt(layout, plan, memory, scratch.bytes() > 0 ? Range(scratch) : Range{});
  if (options.measure || options.buckets == BucketRule::kPlanned)
    clock->prepare(plan.buckets.size(), step->stream(), here);
  ++plans;
  steps_of_plan = 0;
}

void Gradients::State::set_times(std::span<const Picos> arrivals) {
  profile.backward_end = *std::max_element(arrivals.begin(), arrivals.end());
  const Picos later = profile.backward_end - needs.backward_end;  // than on this rank
  for (std::size_t i = 0; i < profile.gradients.size(); ++i) {
    const std::uint32_t parameter = layout.order()[i];
    profile.gradients[i].arrival = arrivals[parameter];
    profile.gradients[i].needed = needs.needed[parameter] + later;
  }
}

BucketPlan Gradients::State::make_plan(Here here) const {
  return plan_buckets(profile, cost,
                      {.granule = GradientLayout::kLine, .slices = !reduction.is_hook(), .effort = kEffortBetweenSteps},
                      here);
}

// Waits for the step, once: its times are the first that there are. If gradients came in another order than they lie,
// they are laid anew, with their values.
void Gradients::State::first_plan(Here here) {
  if (!clock->wait_for(0, times)) return;  // the plan stays DDP's until a step is recorded
  find_needs(times, needs);
  agreement->put_arrivals(times.arrivals, step->stream(), here);
  const std::span<const Picos> arrivals = agreement->arrivals(here);
  std::vector<std::uint32_t> order = layout.order();
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return arrivals[a] < arrivals[b]; });
  GradientLayout next(parameters, order);
  if (next.order() != layout.order()) {
    device.sync(here);
    const SharedBuffer before = std::move(memory);
    const GradientLayout old = std::exchange(layout, std::move(next));
    set_memory(here);
    const HostView<const std::byte> from = before.buffer().host_read<std::byte>(here);
    const HostView<std::byte> to = memory.buffer().host_write<std::byte>(here);
    for (std::uint32_t i = 0; i < parameters.size(); ++i)
      std::memcpy(to.begin() + layout.first(i), from.begin() + old.first(i), parameters[i].bytes);
  }
  profile = layout.profile();
  set_times(arrivals);
  BucketPlan made;
  if (comm.rank() == 0) made = make_plan(here);
  agreement->put_plan(comm.rank() == 0 ? &made : nullptr, step->stream(), here);
  if (agreement->take_plan(made, here)) adopt(std::move(made), here);
}

// A step is recorded, the next one passes, and so on: what is waited for here is always at least a step old.
void Gradients::State::check_plan(Here here) {
  switch (check) {
    case Check::kIdle: {
      if (options.check_every == 0) return;
      if (is_early(steps) || steps % static_cast<std::uint64_t>(options.check_every) == 0) check = Check::kRecord;
      return;
    }
    case Check::kRecord: check = Check::kCollect; return;
    case Check::kCollect: return collect(here);
    case Check::kDecide: return decide(here);
    case Check::kAdopt: {
      check = Check::kIdle;
      BucketPlan next;
      if (agreement->take_plan(next, here)) adopt(std::move(next), here);
      return;
    }
  }
}

void Gradients::State::collect(Here here) {
  check = Check::kIdle;
  // Whether it was recorded is the same on all ranks: steps that are captured or not reduced come to all of them.
  if (!clock->wait_for(1, times)) return;
  find_needs(times, needs);
  agreement->put_arrivals(times.arrivals, step->stream(), here);
  check = Check::kDecide;
}

void Gradients::State::decide(Here here) {
  const std::span<const Picos> arrivals = agreement->arrivals(here);
  const double slowdown = slowdown_of_calls(arrivals);
  // Whether it has is rank 0's to say: needs and what calls took differ between ranks.
  if (has_drifted(arrivals, slowdown)) {
    set_times(arrivals);
    slowed = slowdown;
    for (std::size_t i = 0; i < cost.points.size(); ++i)
      cost.points[i].time = std::llround(static_cast<double>(cost_alone.points[i].time) * slowed);
    BucketPlan made;
    if (comm.rank() == 0) made = make_plan(here);
    agreement->put_plan(!made.buckets.empty() && gains(made, here) ? &made : nullptr, step->stream(), here);
  } else {
    agreement->put_plan(nullptr, step->stream(), here);
  }
  check = Check::kAdopt;
}

// What calls took, by what they take alone. A call's time counts from where all ranks had its gradients. Never below 1:
// a link that has rested gives the first bytes away, and a plan that counts on that lets it rest again.
double Gradients::State::slowdown_of_calls(std::span<const Picos> arrivals) {
  Picos alone = 0, took = 0;
  for (const Bucket& bucket : plan.buckets) alone += cost_alone.time(bucket.bytes);
  for (std::uint32_t parameter = 0; parameter < arrivals.size(); ++parameter) {
    for (const std::uint32_t call : step->calls_of(parameter))
      times.starts[call] = std::max(times.starts[call], arrivals[parameter]);
  }
  for (std::uint32_t call = 0; call < plan.buckets.size(); ++call)
    took += std::max<Picos>(0, times.ends[call] - times.starts[call]);
  return std::clamp(static_cast<double>(took) / static_cast<double>(alone), 1.0, kMaxSlowdown);
}

bool Gradients::State::gains(const BucketPlan& next, Here here) const {
  Picos span = profile.backward_end;
  for (const GradientProfile::Gradient& gradient : profile.gradients) span = std::max(span, gradient.needed);
  const Picos gain = exposure_of(profile, cost, plan, here).exposed - exposure_of(profile, cost, next, here).exposed;
  return static_cast<double>(gain) > kGain * static_cast<double>(span);
}

bool Gradients::State::has_drifted(std::span<const Picos> arrivals, double slowdown) const {
  if (profile.gradients.empty()) return false;
  const Picos end = *std::max_element(arrivals.begin(), arrivals.end());
  Picos span = profile.backward_end, most = 0, alone = 0;
  for (const Bucket& bucket : plan.buckets) alone += cost_alone.time(bucket.bytes);
  for (std::size_t i = 0; i < profile.gradients.size(); ++i) {
    const GradientProfile::Gradient& planned = profile.gradients[i];
    const std::uint32_t parameter = layout.order()[i];
    span = std::max(span, planned.needed);
    most = std::max(most, std::abs(arrivals[parameter] - planned.arrival));
    most = std::max(most, std::abs(needs.needed[parameter] - needs.backward_end + end - planned.needed));
  }
  const double moved = std::max(static_cast<double>(most), std::abs(slowdown - slowed) * static_cast<double>(alone));
  return moved > kDrift * static_cast<double>(span);
}

}  // namespace slip
