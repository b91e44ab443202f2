// The time and memory of predictions: the whole command line work, from the machine's file to the times, on one core.
// Also the difference between planned and simulated rings.
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>

#include "bars.hpp"
#include "comm/sim/predict.hpp"
#include "store/topology_file.hpp"

namespace slip::bench {
namespace {

constexpr double kMiB = 1 << 20, kGiB = 1 << 30;

std::string machine_file(const char* name) { return std::string(SLIP_SOURCE_DIR "/bench/predict/machines/") + name; }

// Reads the file, plans, and predicts 1 MiB and 1 GiB by ring and tree.
double seconds_for(int machines, Context& context) {
  const auto begun = std::chrono::steady_clock::now();
  const topo::FoldedCluster cluster =
      topo::folded(store::read_topologies(machine_file("h100x8_8x400g.xml"), {}), machines);
  const comm::CollectiveModel model(comm::model_inputs(cluster, plan_channels(cluster.cluster)));
  std::string times;
  for (const double bytes : {kMiB, kGiB}) {
    for (const comm::GpuAlgorithm algorithm : {comm::GpuAlgorithm::kRing, comm::GpuAlgorithm::kTree}) {
      const comm::Estimate found = *model.estimate(algorithm, comm::Collective::kAllReduce, bytes);
      times += fmt::format(" {} of {:.0f} MiB {:.0f} us", comm::gpu_algorithm_name(algorithm), bytes / kMiB, found.us);
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  context.note(fmt::format("{} ranks:{}", cluster.ranks, times));
  return took.count();
}

// The peak memory of this process since the last reset.
std::optional<double> peak_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) * 1024;  // in KiB
  }
  return std::nullopt;
}

// Simulated against planned: 0.05 means that they are 5 % apart.
double gap(const std::string& file, int machines, Algorithm algorithm, Context& context) {
  const Cluster cluster = topo::repeated(store::read_topologies(file, {}), machines);
  const ChannelPlan plan = plan_channels(cluster);
  comm::PredictionRequest asked;
  asked.call = {
      .kind = comm::Collective::kAllReduce, .type = DataType::kF32, .elements = static_cast<std::uint64_t>(kGiB) / 4};
  asked.algorithm = algorithm;
  const bool ring = algorithm == Algorithm::kRing;
  const double n = static_cast<double>(cluster.ranks.size()), passes = ring ? 2 * (n - 1) / n : 1;
  const double us = comm::predict(cluster, plan, asked).us, gbps = passes * kGiB / us / 1e3;
  const double planned = ring ? plan.ring_gbps : plan.tree_gbps;
  const std::string name = file.substr(file.rfind('/') + 1);
  context.note(fmt::format("{} x{}: planned {:.1f} GB/s, simulated {:.1f}", name, machines, planned, gbps));
  return std::abs(gbps / planned - 1);
}

}  // namespace

void add_plan_bars(Harness& harness) {
  const auto add = [&](const char* bar, Algorithm algorithm) {
    harness.add({.area = "predict",
                 .name = bar,
                 .unit = Unit::kPercent,
                 .ours = [algorithm](Context& context) -> std::optional<double> {
                   double worst = 0;
                   for (const char* name : {"a100x8_8x200g.xml", "h100x8_8x400g.xml", "h100x8_8x200g.xml",
                                            "a100x8_4x100g_efa.xml", "a100x8_16x100g.xml", "mi300x8.xml"}) {
                     for (const int machines : {1, 2})
                       worst = std::max(worst, gap(machine_file(name), machines, algorithm, context));
                   }
                   return 100 * worst;
                 },
                 .limit = 5,
                 .max_repeat = 1});
  };
  add("ring_of_1GiB_simulated_against_planned", Algorithm::kRing);
  add("tree_of_1GiB_simulated_against_planned", Algorithm::kTree);
}

void add_scale_bars(Harness& harness) {
  struct Scale {
    const char* name;
    int machines;
    double seconds;
  };
  for (const Scale& each : {Scale{"time_for_8_machines", 8, 0.1}, Scale{"time_for_1024_ranks", 128, 1},
                            Scale{"time_for_16384_ranks", 2048, 3}, Scale{"time_for_100000_ranks", 12500, 10}}) {
    harness.add(
        {.area = "predict",
         .name = each.name,
         .ours = [=](Context& context) -> std::optional<double> { return seconds_for(each.machines, context) * 1e9; },
         .limit = each.seconds * 1e9});
  }
  harness.add({.area = "predict",
               .name = "memory_after_100000_ranks",
               .unit = Unit::kBytes,
               .ours = [](Context& context) -> std::optional<double> {
                 // Simulations in the same process needed more memory before: the peak begins again here.
                 ::malloc_trim(0);
                 std::ofstream("/proc/self/clear_refs") << "5";
                 seconds_for(12500, context);
                 return peak_bytes();
               },
               .limit = 2.0 * kGiB,
               .max_repeat = 1});
}

}  // namespace slip::bench
