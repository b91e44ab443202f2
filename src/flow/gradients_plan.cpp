// Gradients, as far as it plans: after the first step, and when arrival times have changed.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "flow/gradients_state.hpp"

namespace slip {
namespace {

// A plan is made again when something comes, or is needed, so much of the step earlier or later than it was planned
// for.
constexpr double kDrift = 0.1;
constexpr int kEffortBetweenSteps = 1500;  // plans looked at: some milliseconds of one rank's host

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

void Gradients::State::set_times(std::span<const Picos> arrivals, GradientProfile& of) const {
  of.backward_end = *std::max_element(arrivals.begin(), arrivals.end());
  const Picos later = of.backward_end - needs.backward_end;  // than on this rank
  for (std::size_t i = 0; i < of.gradients.size(); ++i) {
    const std::uint32_t parameter = layout.order()[i];
    of.gradients[i].arrival = arrivals[parameter];
    of.gradients[i].needed = needs.needed[parameter] + later;
  }
}

BucketPlan Gradients::State::make_plan(const GradientProfile& of, Here here) const {
  BucketPlan made = plan_buckets(
      of, cost, {.granule = GradientLayout::kLine, .slices = !reduction.is_hook(), .effort = kEffortBetweenSteps},
      here);
  return made.buckets.size() <= agreement->most_buckets() ? made : ddp_buckets(of, options.ddp);
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
  set_times(arrivals, profile);
  BucketPlan made;
  if (comm.rank() == 0) made = make_plan(profile, here);
  agreement->put_plan(comm.rank() == 0 ? &made : nullptr, step->stream(), here);
  if (agreement->take_plan(made, here)) adopt(std::move(made), here);
}

// A step is recorded, the next one passes, and so on: what is waited for here is always at least a step old.
void Gradients::State::check_plan(Here here) {
  switch (check) {
    case Check::kIdle: {
      if (options.check_every == 0) return;
      const bool early = steps == 2;  // waits that come after step_end() were not seen in the first step
      if (early || steps % static_cast<std::uint64_t>(options.check_every) == 0) check = Check::kRecord;
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
  const bool drifted = has_drifted(arrivals);  // equal in arrivals only: rank 0 decides
  BucketPlan made;
  if (drifted) set_times(arrivals, profile);
  if (drifted && comm.rank() == 0) {
    made = make_plan(profile, here);
    if (made == plan) made.buckets.clear();
  }
  agreement->put_plan(made.buckets.empty() ? nullptr : &made, step->stream(), here);
  check = Check::kAdopt;
}

bool Gradients::State::has_drifted(std::span<const Picos> arrivals) const {
  if (profile.gradients.empty()) return false;
  const Picos end = *std::max_element(arrivals.begin(), arrivals.end());
  Picos span = profile.backward_end, most = 0;
  for (std::size_t i = 0; i < profile.gradients.size(); ++i) {
    const GradientProfile::Gradient& planned = profile.gradients[i];
    const std::uint32_t parameter = layout.order()[i];
    span = std::max(span, planned.needed);
    most = std::max(most, std::abs(arrivals[parameter] - planned.arrival));
    most = std::max(most, std::abs(needs.needed[parameter] - needs.backward_end + end - planned.needed));
  }
  return static_cast<double>(most) > kDrift * static_cast<double>(span);
}

}  // namespace slip
