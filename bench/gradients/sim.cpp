// Exposed communication of whole networks on simulated machines: our plans compared with PyTorch's rule and, for few
// layers, with the best of all plans.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "../../tests/flow/exhaustive_plan.hpp"
#include "flow/gradients/bucket_plan.hpp"
#include "flow/gradients/predict_step.hpp"
#include "models.hpp"

namespace slip::bench {
namespace {

constexpr double kLatencyUs = 6;  // of a message to another machine

// An all_reduce between devices with a network port each: the better of a ring and of trees, in chunks of 512 KiB.
ReduceCost cost_of(int devices, double gigabits) {
  const double bytes_per_us = gigabits / 8 * 1e3, n = devices, levels = std::ceil(std::log2(n));
  ReduceCost cost;
  for (std::uint64_t bytes = 1024; bytes <= std::uint64_t{1} << 32; bytes *= 2) {
    const double block = static_cast<double>(bytes) / bytes_per_us;
    const double fill = std::min(block, 524288 / bytes_per_us);
    const double ring = 2 * (n - 1) * kLatencyUs + 2 * (n - 1) / n * block;
    const double tree = 2 * levels * (kLatencyUs + fill) + 2 * (block - fill);
    cost.points.push_back({bytes, static_cast<Picos>(std::min(ring, tree) * 1e6)});
  }
  return cost;
}

struct Case {
  std::string model;
  int devices = 0;
  double gigabits = 0;
  Picos ddp = 0;          // exposed: DDP's buckets, all waited for at the end of the backward pass
  Picos ddp_by_need = 0;  // DDP's buckets, each waited for where it is needed
  Picos at_once = 0;      // Slipstream's borders, all waited for at the end
  Picos ours = 0;
  Picos simulated = 0;  // ours, on the sim device
  Picos compute = 0, communication = 0;
};

template <class Visit>
void for_all(bool quick, const Visit& visit) {
  for (const Model& model : models()) {
    for (const int devices : {8, 16, 32, 64, 128, 256}) {
      for (const double gigabits : {25.0, 50.0, 100.0, 200.0, 400.0}) {
        if (quick && (devices == 16 || devices == 64 || devices == 128 || gigabits == 50 || gigabits == 200)) continue;
        visit(model, devices, gigabits);
      }
    }
  }
}

const std::vector<Case>& cases(bool quick) {
  static std::vector<Case> all;
  if (!all.empty()) return all;
  for_all(quick, [&](const Model& model, int devices, double gigabits) {
    const GradientProfile profile = step_of(model), at_once = needed_at_once(profile);
    const ReduceCost cost = cost_of(devices, gigabits);
    const BucketPlan ddp = ddp_buckets(profile), ours = plan_buckets(profile, cost);
    Case one{.model = model.name, .devices = devices, .gigabits = gigabits};
    one.ddp = exposure_of(at_once, cost, ddp).exposed;
    one.ddp_by_need = exposure_of(profile, cost, ddp).exposed;
    one.at_once = exposure_of(at_once, cost, plan_buckets(at_once, cost)).exposed;
    const BucketExposure seen = exposure_of(profile, cost, ours);
    one.ours = seen.exposed;
    one.communication = seen.communication;
    const Prediction simulated = predict_step(profile, cost, ours);
    one.simulated = simulated.exposed;
    one.compute = simulated.compute();
    all.push_back(one);
  });
  return all;
}

double ratio(Picos of, Picos to) { return to > 0 ? static_cast<double>(of) / static_cast<double>(to) : 0; }

// Counts only the cases in which DDP's rule exposes communication.
std::vector<double> shares(const std::vector<Case>& all, Picos Case::*which) {
  std::vector<double> result;
  for (const Case& one : all) {
    if (one.ddp > 0) result.push_back(100 * ratio(one.*which, one.ddp));
  }
  return result;
}

void note_models(Context& context, const std::vector<Case>& all) {
  for (const Model& model : models()) {
    std::vector<Case> own;
    for (const Case& one : all) {
      if (one.model == model.name) own.push_back(one);
    }
    const std::vector<double> ours = shares(own, &Case::ours);
    if (ours.empty()) continue;
    context.note(fmt::format(
        "{}: {} cases, {} with any exposed by DDP's rule; of that ours exposes {:.1f} % (median), {:.1f} % at most",
        model.name, own.size(), ours.size(), median(ours), *std::max_element(ours.begin(), ours.end())));
  }
}

std::optional<double> median_share(Context& context) {
  const std::vector<Case>& all = cases(context.quick());
  note_models(context, all);
  context.note(
      fmt::format("borders alone, all waited for at the end as DDP does: {:.1f} % (median); DDP's buckets with a wait "
                  "for each where it is "
                  "needed: {:.1f} %",
                  median(shares(all, &Case::at_once)), median(shares(all, &Case::ddp_by_need))));
  context.note(
      "f32 gradients, one network port for each device, 6 us a message, the better of ring and tree; compute at 60 "
      "(convolutions) and 125 TFLOP/s");
  return median(shares(all, &Case::ours));
}

std::optional<double> worst_share(Context& context) {
  const std::vector<double> all = shares(cases(context.quick()), &Case::ours);
  return *std::max_element(all.begin(), all.end());
}

std::optional<double> worst_disagreement(Context& context) {
  double worst = 0;
  for (const Case& one : cases(context.quick()))
    worst = std::max(worst, 100 * ratio(std::abs(one.simulated - one.ours), one.compute + one.ours));
  return worst;
}

// Networks joined to 12 layers.
std::optional<double> worst_of_optimum(Context& context) {
  double worst = 100;
  int exact = 0, count = 0;
  for_all(context.quick(), [&](const Model& model, int devices, double gigabits) {
    const GradientProfile profile = coarse_step_of(model, 12);
    const ReduceCost cost = cost_of(devices, gigabits);
    const Picos best = exposure_of(profile, cost, test::exhaustive_plan(flow::slices_of(profile, 0, 64), cost)).exposed;
    const Picos ours = exposure_of(profile, cost, plan_buckets(profile, cost, {.slices = false})).exposed;
    if (best > 0) worst = std::max(worst, 100 * ratio(ours, best));
    else if (ours > 0) worst = 1000;
    exact += ours == best;
    ++count;
  });
  context.note(
      fmt::format("{} of {} are the optimum itself: all borders in all orders, gradients not cut", exact, count));
  return worst;
}

Bar bar(std::string name, Measure measure, double limit) {
  return {.area = "gradients",
          .name = std::move(name),
          .unit = Unit::kPercent,
          .better = Better::kLower,
          .ours = std::move(measure),
          .limit = limit,
          .warmups = 0,
          .max_repeat = 1};
}

}  // namespace

void add_sim_bars(Harness& harness) {
  harness.add(bar("sim_exposed_of_ddp_median", median_share, 75));
  harness.add(bar("sim_exposed_of_ddp_worst", worst_share, 100));
  harness.add(bar("sim_exposed_of_optimum_worst", worst_of_optimum, 110));
  harness.add(bar("sim_recurrence_off_by", worst_disagreement, 0.1));
}

}  // namespace slip::bench
