// `slip topo --predict` on GPUs: times by the cost model, and the fit of its constants to measured times.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/collectives/measure.hpp"
#include "cli/commands.hpp"
#include "cli/text.hpp"
#include "cli/topo/topo.hpp"
#include "comm/sim/cost_model.hpp"
#include "comm/sim/fit_costs.hpp"
#include "store/file.hpp"

namespace slip::cli {
namespace {

using comm::CollectiveModel;
using comm::Estimate;
using comm::GpuAlgorithm;

constexpr std::uint64_t kMaxTableBytes = 16 << 20;
constexpr const char* kBest = "best";  // --algorithm: only the choice of the tuning model

std::vector<GpuAlgorithm> algorithms_asked(const PredictOptions& options, const CollectiveModel& model,
                                           comm::Collective kind) {
  std::vector<GpuAlgorithm> result;
  std::vector<const char*> known;
  for (const GpuAlgorithm one : comm::kGpuAlgorithms) {
    if (!model.estimate(one, kind, 1 << 20)) continue;
    if (options.algorithms == "all" || options.algorithms == comm::gpu_algorithm_name(one)) result.push_back(one);
    known.push_back(comm::gpu_algorithm_name(one));
  }
  if (result.empty() && options.algorithms != kBest)
    throw UsageError(fmt::format("--algorithm {}: one of {}, best or all", options.algorithms, fmt::join(known, ", ")));
  return result;
}

std::string percent_text(double share) { return fmt::format("{:.1f} %", 100 * share); }

comm::CostFactors print_fit(const PredictOptions& options, const comm::ModelInputs& inputs, comm::Collective kind) {
  const std::string text = store::read_text(options.fit, kMaxTableBytes, "a table of measured times", {});
  const std::vector<comm::Measurement> rows = comm::parse_measurements(text, options.fit, options.table, {});
  const comm::Fit fit = comm::fit_costs(inputs, kind, rows, {});
  fmt::print("fitted to {} rows of {}\n", rows.size(), options.fit);
  fmt::print("  mean error on sizes left out of the fit: {} (worst {} at {:.0f} B)\n", percent_text(fit.left_out.mean),
             percent_text(fit.left_out.worst), fit.left_out.worst_bytes);
  fmt::print("  mean error on all sizes: {} before the fit, {} after it\n", percent_text(fit.before.mean),
             percent_text(fit.after.mean));
  for (const comm::Protocol protocol : comm::kAllProtocols) {
    const auto at = static_cast<std::size_t>(protocol);
    fmt::print("  {:<7} latency x {:.2f}, rate x {:.2f}\n", comm::protocol_name(protocol), fit.factors.latency[at],
               fit.factors.rate[at]);
  }
  return fit.factors;
}

struct Row {
  std::uint64_t bytes = 0;
  Estimate estimate;
  bool chosen = false;
};

std::vector<Row> rows_of(const CollectiveModel& model, comm::Collective kind, const PredictOptions& options) {
  const std::vector<GpuAlgorithm> algorithms = algorithms_asked(options, model, kind);
  std::vector<Row> rows;
  for (const double size : sizes_asked(options)) {
    const std::uint64_t bytes = whole_bytes(kind, size, model.inputs().ranks);
    const Estimate choice = model.choice(kind, static_cast<double>(bytes));
    if (options.algorithms == kBest) rows.push_back({bytes, choice, true});
    for (const GpuAlgorithm algorithm : algorithms) {
      const Estimate one = *model.estimate(algorithm, kind, static_cast<double>(bytes));
      rows.push_back({bytes, one, algorithm == choice.algorithm});
    }
  }
  return rows;
}

// "would choose  tree LL to 524288 B, tree LL128 to 33554432 B, tree Simple"
void print_choices(const CollectiveModel& model, comm::Collective kind, const std::vector<Row>& rows) {
  std::string text, last;
  std::uint64_t before = 0;
  for (const Row& row : rows) {
    const Estimate choice = model.choice(kind, static_cast<double>(row.bytes));
    const std::string name =
        fmt::format("{} {}", comm::gpu_algorithm_name(choice.algorithm), comm::protocol_name(choice.protocol));
    if (!last.empty() && name != last) text += fmt::format("{} to {} B, ", last, before);
    last = name;
    before = row.bytes;
  }
  fmt::print("would choose (*): {}{}\n", text, last);
}

}  // namespace

const comm::NetworkCosts& network_asked(const PredictOptions& options) {
  std::vector<const char*> known;
  for (const comm::NetworkCosts& one : comm::networks()) {
    if (options.network == one.name) return one;
    known.push_back(one.name);
  }
  throw UsageError(fmt::format("--network {}: one of {}", options.network, fmt::join(known, ", ")));
}

comm::ModelInputs inputs_asked(const PredictOptions& options, const topo::FoldedCluster& cluster,
                               const ChannelPlan& plan) {
  comm::ModelInputs inputs =
      comm::model_inputs(cluster, plan, options.rails ? comm::NetReach::kSameNumber : comm::NetReach::kAll);
  if (!options.network.empty()) inputs.network = network_asked(options);
  if (options.net_latency_given) inputs.network.latency_us = options.net_latency_us;
  return inputs;
}

void print_model(const PredictOptions& options, const topo::FoldedCluster& cluster, const ChannelPlan& plan) {
  const comm::Collective kind = kind_asked(options);
  if (cluster.ranks < 2) throw UsageError("--predict: there is one rank only; give more with --nodes");
  const comm::ModelInputs inputs = inputs_asked(options, cluster, plan);
  fmt::print("\n{} of {} ranks on {}, by the cost model of {} GPUs{}\n", comm::collective_name(kind), inputs.ranks,
             counted(static_cast<std::size_t>(inputs.machines), "machine"), inputs.gpu.name,
             inputs.machines > 1
                 ? fmt::format(" and network {} of {} us", inputs.network.name, inputs.network.latency_us)
                 : "");
  const comm::CostFactors factors = options.fit.empty() ? comm::CostFactors{} : print_fit(options, inputs, kind);
  const CollectiveModel model(inputs, factors);
  const std::vector<Row> rows = rows_of(model, kind, options);
  fmt::print("{:>12}  {:<9} {:>8} {:>12} {:>9} {:>9}  {}\n", "size (B)", "algorithm", "channels", "time (us)", "algbw",
             "busbw", "protocol");
  Json data = Json::array();
  for (const Row& row : rows) {
    const double gbps = static_cast<double>(row.bytes) / row.estimate.us / 1e3;
    const double bus = gbps * bus_share(kind, inputs.ranks);
    const char *const name = comm::gpu_algorithm_name(row.estimate.algorithm), *const protocol = comm::protocol_name(
                                                                                   row.estimate.protocol);
    fmt::print("{:>12}  {:<9} {:>8} {:>12.1f} {:>9.2f} {:>9.2f}  {}{}\n", row.bytes, name, row.estimate.channels,
               row.estimate.us, gbps, bus, protocol, row.chosen ? " *" : "");
    data.push_back({{"collective", comm::collective_name(kind)},
                    {"ranks", inputs.ranks},
                    {"bytes", row.bytes},
                    {"algorithm", name},
                    {"protocol", protocol},
                    {"channels", row.estimate.channels},
                    {"time_us", row.estimate.us},
                    {"algbw_gb_s", gbps},
                    {"busbw_gb_s", bus},
                    {"chosen", row.chosen}});
  }
  print_choices(model, kind, rows);
  write_json(options.json, data);
}

}  // namespace slip::cli
