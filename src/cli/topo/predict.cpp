// `slip topo --predict`: the times of a collective by a simulation of its messages, or on GPUs by the cost model, whose
// constants --fit adapts to measured times.
#include "comm/sim/predict.hpp"

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

// A row of the table and of --json.
struct PredictedRow {
  std::uint64_t bytes;
  const char* algorithm;
  const char* protocol;  // null in a simulation, which has none
  int channels;
  double us;
  bool chosen;  // by the tuning model
};

void print_head(bool protocols) {
  fmt::print("{:>12}  {:<9} {:>8} {:>12} {:>9} {:>9}{}\n", "size (B)", "algorithm", "channels", "time (us)", "algbw",
             "busbw", protocols ? "  protocol" : "");
}

// Prints the row and appends it to `rows`.
void add_row(Json& rows, comm::Collective kind, int ranks, const PredictedRow& row) {
  const double gbps = static_cast<double>(row.bytes) / row.us / 1e3, bus = gbps * bus_share(kind, ranks);
  const std::string protocol = row.protocol ? fmt::format("  {}", row.protocol) : "";
  fmt::print("{:>12}  {:<9} {:>8} {:>12.1f} {:>9.2f} {:>9.2f}{}{}\n", row.bytes, row.algorithm, row.channels, row.us,
             gbps, bus, protocol, row.chosen ? " *" : "");
  Json json = {{"collective", comm::collective_name(kind)},
               {"ranks", ranks},
               {"bytes", row.bytes},
               {"algorithm", row.algorithm}};
  if (row.protocol) json["protocol"] = row.protocol;
  json["channels"] = row.channels;
  json["time_us"] = row.us;
  json["algbw_gb_s"] = gbps;
  json["busbw_gb_s"] = bus;
  if (row.protocol) json["chosen"] = row.chosen;
  rows.push_back(std::move(json));
}

struct NamedAlgorithm {
  const char* name;
  Algorithm algorithm;
  bool through_switch = false;
};
constexpr NamedAlgorithm kNamedAlgorithms[] = {{"ring", Algorithm::kRing},         {"tree", Algorithm::kTree},
                                               {"switch", Algorithm::kTree, true}, {"doubling", Algorithm::kDoubling},
                                               {"direct", Algorithm::kDirect},     {"relay", Algorithm::kRelay}};

std::vector<NamedAlgorithm> algorithms_asked(const PredictOptions& options, comm::Collective kind,
                                             const ChannelPlan& plan) {
  std::vector<NamedAlgorithm> result;
  std::vector<const char*> known;
  for (const NamedAlgorithm& one : kNamedAlgorithms) {
    const bool has_switch = kind == comm::Collective::kAllReduce && !plan.channels.front().switch_tree.parent.empty();
    if (!comm::find_schedule(one.algorithm, kind) || (one.through_switch && !has_switch)) continue;
    if (options.algorithms == "all" || options.algorithms == one.name) result.push_back(one);
    known.push_back(one.name);
  }
  if (result.empty())
    throw UsageError(fmt::format("--algorithm {}: one of {} or all", options.algorithms, fmt::join(known, ", ")));
  return result;
}

constexpr std::uint64_t kMaxTableBytes = 16 << 20;
constexpr const char* kBest = "best";  // --algorithm: only the choice of the tuning model

std::vector<GpuAlgorithm> gpu_algorithms_asked(const PredictOptions& options, const CollectiveModel& model,
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

comm::CostFactors print_fit(const PredictOptions& options, const comm::ModelInputs& inputs, comm::Collective kind) {
  const std::string text = store::read_text(options.fit, kMaxTableBytes, "a table of measured times", {});
  const std::vector<comm::Measurement> rows = comm::parse_measurements(text, options.fit, options.table, {});
  const comm::Fit fit = comm::fit_costs(inputs, kind, rows, {});
  fmt::print("fitted to {} rows of {}\n", rows.size(), options.fit);
  fmt::print("  mean error on sizes left out of the fit: {} (worst {} at {:.0f} B)\n",
             base::format_percent(100 * fit.left_out.mean), base::format_percent(100 * fit.left_out.worst),
             fit.left_out.worst_bytes);
  fmt::print("  mean error on all sizes: {} before the fit, {} after it\n", base::format_percent(100 * fit.before.mean),
             base::format_percent(100 * fit.after.mean));
  for (const comm::Protocol protocol : comm::kAllProtocols) {
    const auto at = static_cast<std::size_t>(protocol);
    fmt::print("  {:<7} latency x {:.2f}, rate x {:.2f}\n", comm::protocol_name(protocol), fit.factors.latency[at],
               fit.factors.rate[at]);
  }
  return fit.factors;
}

std::vector<PredictedRow> rows_of(const CollectiveModel& model, comm::Collective kind, const PredictOptions& options) {
  const std::vector<GpuAlgorithm> algorithms = gpu_algorithms_asked(options, model, kind);
  std::vector<PredictedRow> rows;
  for (const double size : sizes_asked(options)) {
    const std::uint64_t bytes = whole_bytes(kind, size, model.inputs().ranks);
    const auto add = [&](const Estimate& one, bool chosen) {
      rows.push_back({bytes, comm::gpu_algorithm_name(one.algorithm), comm::protocol_name(one.protocol), one.channels,
                      one.us, chosen});
    };
    const Estimate choice = model.choice(kind, static_cast<double>(bytes));
    if (options.algorithms == kBest) add(choice, true);
    for (const GpuAlgorithm algorithm : algorithms)
      add(*model.estimate(algorithm, kind, static_cast<double>(bytes)), algorithm == choice.algorithm);
  }
  return rows;
}

// "would choose  tree LL to 524288 B, tree LL128 to 33554432 B, tree Simple"
void print_choices(const CollectiveModel& model, comm::Collective kind, const std::vector<PredictedRow>& rows) {
  std::string text, last;
  std::uint64_t before = 0;
  for (const PredictedRow& row : rows) {
    const Estimate choice = model.choice(kind, static_cast<double>(row.bytes));
    const std::string name =
        fmt::format("{} {}", comm::gpu_algorithm_name(choice.algorithm), comm::protocol_name(choice.protocol));
    if (!last.empty() && name != last) text += fmt::format("{} to {} B, ", last, before);
    last = name;
    before = row.bytes;
  }
  fmt::print("would choose (*): {}{}\n", text, last);
}

// The network that --network names. REQUIRES: it is given.
const comm::NetworkCosts& network_asked(const PredictOptions& options) {
  std::vector<const char*> known;
  for (const comm::NetworkCosts& one : comm::networks()) {
    if (options.network == one.name) return one;
    known.push_back(one.name);
  }
  throw UsageError(fmt::format("--network {}: one of {}", options.network, fmt::join(known, ", ")));
}

}  // namespace

comm::Collective kind_asked(const PredictOptions& options) {
  std::vector<const char*> known;
  for (const comm::Collective kind : std::span(kCollectives).first<kCollectives.size() - 1>()) {
    if (options.kind == comm::collective_name(kind)) return kind;
    known.push_back(comm::collective_name(kind));
  }
  throw UsageError(fmt::format("--predict {}: one of {}", options.kind, fmt::join(known, ", ")));
}

ChannelLimits limits_asked(const PredictOptions& options) {
  if (options.channels < 1 || options.channels > 64)
    throw UsageError(fmt::format("--channels {}: must be 1 to 64", options.channels));
  const CrossNic cross = options.one_nic ? CrossNic::kNever : options.rails ? CrossNic::kRails : CrossNic::kAny;
  return {.max_channels = options.channels, .cross_nic = cross};
}

std::vector<double> sizes_asked(const PredictOptions& options) {
  const auto begin = static_cast<double>(size_of(options.begin, "--begin"));
  const auto end = static_cast<double>(size_of(options.end, "--end"));
  if (begin > end)
    throw UsageError(fmt::format("--begin {} --end {}: the first is larger than the last", options.begin, options.end));
  std::vector<double> sizes;
  for (double size = begin; size <= end; size = std::max(size * options.factor, size + 1)) sizes.push_back(size);
  return sizes;
}

std::uint64_t whole_bytes(comm::Collective kind, double size, int ranks) {
  const std::uint64_t blocks = counts_all_blocks(kind) ? static_cast<std::uint64_t>(ranks) : 1;
  return std::max<std::uint64_t>(static_cast<std::uint64_t>(size) / 4 / blocks, 1) * 4 * blocks;
}

bool simulates(const PredictOptions& options, const TopoSystem& machine) {
  const bool gpus = !machine.devices.empty() &&
                    machine.nodes[static_cast<std::size_t>(machine.devices.front())].kind == TopoKind::kGpu;
  return options.simulate || !options.html.empty() || !options.trace.empty() || !gpus;
}

comm::ModelInputs inputs_asked(const PredictOptions& options, const topo::FoldedCluster& cluster,
                               const ChannelPlan& plan) {
  comm::ModelInputs inputs =
      comm::model_inputs(cluster, plan, options.rails ? comm::NetReach::kSameNumber : comm::NetReach::kAll);
  if (!options.network.empty()) inputs.network = network_asked(options);
  if (options.net_latency_given) inputs.network.latency_us = options.net_latency_us;
  return inputs;
}

void print_simulation(const PredictOptions& options, const Cluster& cluster, const ChannelPlan& plan) {
  const comm::Collective kind = kind_asked(options);
  const std::vector<NamedAlgorithm> algorithms = algorithms_asked(options, kind, plan);
  const std::vector<double> sizes = sizes_asked(options);
  const auto nranks = static_cast<int>(cluster.ranks.size());
  if (nranks < 2) throw UsageError("--predict: there is one rank only; give more with --nodes");
  const bool named = !options.network.empty() && !options.net_latency_given;
  const double net_latency_us = named ? network_asked(options).latency_us : options.net_latency_us;
  fmt::print("\n{} of {} ranks, simulated: {} us a message within a machine, {} us to another\n",
             comm::collective_name(kind), nranks, options.latency_us, net_latency_us);
  print_head(false);
  const std::uint64_t blocks = counts_all_blocks(kind) ? static_cast<std::uint64_t>(nranks) : 1;
  // Communicators choose between direct and relay by the model. For rings and trees it does not know all channels.
  const bool modelled = kind == comm::Collective::kAllToAll;
  const comm::PredictedCosts costs{options.latency_us, net_latency_us, options.memory_gbps};
  const comm::TuningInputs tuning =
      comm::predicted_tuning(cluster, costs, options.rails ? comm::NetReach::kSameNumber : comm::NetReach::kAll);
  std::optional<TraceData> timeline;
  Json rows = Json::array();
  std::string title;
  for (const double size : sizes) {
    for (const NamedAlgorithm& algorithm : algorithms) {
      comm::PredictionRequest question;
      question.call = {.kind = kind, .type = DataType::kF32};
      question.call.elements = std::max<std::uint64_t>(static_cast<std::uint64_t>(size) / 4 / blocks, 1);
      question.algorithm = algorithm.algorithm;
      question.through_switch = algorithm.through_switch;
      question.rails = options.rails;
      question.costs = costs;
      const std::uint64_t bytes = question.call.block_bytes() * blocks;
      std::optional<Trace> trace;
      if (!options.html.empty() || !options.trace.empty()) trace.emplace();
      const comm::CallPrediction found = comm::predict(cluster, plan, question, {});
      if (trace) {
        trace->stop();
        timeline = trace->data();
        title = fmt::format("{} of {} bytes, {} ranks, {}", comm::collective_name(kind), bytes, nranks, algorithm.name);
      }
      const bool chosen =
          modelled && comm::choose(question.call, tuning, Algorithm::kAuto, false, false).schedule->algorithm ==
                          algorithm.algorithm;
      add_row(rows, kind, nranks, {bytes, algorithm.name, nullptr, found.channels, found.us, chosen});
    }
  }
  if (modelled) fmt::print("* the choice of the tuning model\n");
  write_json(options.json, rows);
  if (!options.html.empty()) write_html(*timeline, options.html, title);
  if (!options.trace.empty()) write_trace(*timeline, options.trace, {});
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
  const std::vector<PredictedRow> rows = rows_of(model, kind, options);
  print_head(true);
  Json data = Json::array();
  for (const PredictedRow& row : rows) add_row(data, kind, inputs.ranks, row);
  print_choices(model, kind, rows);
  write_json(options.json, data);
}

}  // namespace slip::cli
