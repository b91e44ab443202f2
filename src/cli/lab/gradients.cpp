// Lab gradients: a whole training step, backward pass, reduction of each gradient, then optimizer and next forward pass
// layer by layer, in five manners: blocking, in a stream of its own, the same with one hardware queue, with the buckets
// of PyTorch's DDP, and planned.
//
// In virtual time a reduction takes what it is said to take, or what it takes between the machines of a topology file;
// on cpu ranks, each a thread with a device, reduce real gradients (gradient_ranks.cpp).
#include <fmt/format.h>

#include <algorithm>

#include "cli/lab/gradient_cases.hpp"

namespace slip::cli {

std::uint64_t bytes_of_layer(std::size_t layer, std::size_t layers) {
  constexpr std::uint64_t kLayerBytes = std::uint64_t{4} << 20;
  return std::max<std::uint64_t>(kLayerBytes * 2 * (layer + 1) / (layers + 1) / 4096, 1) * 4096;
}

namespace {

GradientProfile profile_of(std::size_t layers, Picos unit) {
  GradientProfile profile;
  Picos now = 0;
  for (std::size_t layer = layers; layer-- > 0;) {
    now += unit;
    profile.gradients.push_back({bytes_of_layer(layer, layers), now, 0, 0});
  }
  profile.backward_end = now;
  for (std::size_t layer = 0; layer < layers; ++layer)
    profile.gradients[layers - 1 - layer].needed = now + static_cast<Picos>(layer) * unit / 2;
  return profile;
}

BucketPlan plan_by(BucketRule rule, const GradientProfile& profile, const ReduceCost& cost) {
  if (rule == BucketRule::kDdp) return ddp_buckets(profile);
  return rule == BucketRule::kEach ? each_alone(profile) : plan_buckets(profile, cost);
}

void in_virtual_time(const Bench& bench, std::size_t layers, Report& report) {
  Picos unit = bench.kernel_time();
  const std::uint64_t bytes = profile_of(layers, unit).bytes();
  // Compute as long as communication in any case: there is most to gain.
  const auto compute_of = [&](Picos backward) { return profile_of(layers, backward).gradients.front().needed; };
  std::string network = "a network as fast as the compute";
  ReduceCost cost =
      ReduceCost::of({.bytes_per_second = static_cast<double>(bytes) / static_cast<double>(compute_of(unit)) * 1e12,
                      .latency = unit / 50});
  if (bench.cluster()) {
    const ClusterCost& found = *bench.cluster();
    cost = found.cost;
    unit =
        std::max<Picos>(static_cast<Picos>(static_cast<double>(unit) * ratio(cost.time(bytes), compute_of(unit))), 2);
    network = fmt::format("{} devices of {}, by rings or trees{}", found.ranks, bench.options().topology,
                          found.extended ? " (times go on from those of fewer machines)" : "");
  }
  const GradientProfile profile = profile_of(layers, unit);
  const Picos compute = compute_of(unit);
  report.ask(fmt::format(
      "What does a step of {} layers expose? Backward {} a layer, forward {}; {} of gradients over {}. Without any "
      "communication the step takes {}.",
      layers, format_time(unit), format_time(unit / 2), format_bytes(profile.bytes()), network, format_time(compute)));
  Table table("", {{"case", "case"}, {"step", "time_ps"}, {"exposed", "exposed_ps"}, {"calls", "calls"}});
  Picos ddp = 0, ours = 0;
  for (const StepCase& each : kStepCases) {
    const BucketPlan plan = plan_by(each.rule, profile, cost);
    const Device device = bench.open({.max_connections = each.queues, .run_functions = false});
    const StepPrediction seen = simulate_step(device, profile, cost, plan, each.policy);
    table.row({word(each.name), time(seen.time), time(seen.exposed()),
               number(static_cast<std::int64_t>(plan.buckets.size()))});
    if (each.rule == BucketRule::kDdp) ddp = seen.exposed();
    if (each.rule == BucketRule::kPlanned) ours = seen.exposed();
  }
  report.show(table);
  const Exposure least = exposure_of(profile, cost, plan_buckets(profile, cost));
  report.conclude(fmt::format("The plan exposes {} where DDP's rule exposes {}; all calls together take {}.",
                              format_time(ours), format_time(ddp), format_time(least.communication)));
}

}  // namespace

void lab_gradients(const Bench& bench, Report& report) {
  const LabOptions& options = bench.options();
  const std::size_t layers = options.layers > 0 ? static_cast<std::size_t>(options.layers) : 12;
  if (bench.virtual_time()) in_virtual_time(bench, layers, report);
  else if (bench.on_gpu()) report.ask("Communicators are of the cpu so far: this lab runs there, and on sim.");
  else gradients_of_ranks(bench, layers, options.ranks > 0 ? static_cast<std::size_t>(options.ranks) : 2, report);
}

}  // namespace slip::cli
