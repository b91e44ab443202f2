#include "comm/sim/predict.hpp"

#include <nlohmann/json.hpp>
#include <optional>

#include "cli/collectives/measure.hpp"
#include "cli/commands.hpp"
#include "cli/text.hpp"
#include "cli/topo/topo.hpp"
#include "slip/trace.hpp"

namespace slip::cli {
namespace {

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
  fmt::print("{:>12}  {:<9} {:>8} {:>12} {:>9} {:>9}\n", "size (B)", "algorithm", "channels", "time (us)", "algbw",
             "busbw");
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
      const double gbps = static_cast<double>(bytes) / found.us / 1e3;
      const bool chosen =
          modelled && comm::choose(question.call, tuning, Algorithm::kAuto, false, false).schedule->algorithm ==
                          algorithm.algorithm;
      fmt::print("{:>12}  {:<9} {:>8} {:>12.1f} {:>9.2f} {:>9.2f}{}\n", bytes, algorithm.name, found.channels, found.us,
                 gbps, gbps * bus_share(kind, nranks), chosen ? " *" : "");
      rows.push_back({{"collective", comm::collective_name(kind)},
                      {"ranks", nranks},
                      {"bytes", bytes},
                      {"algorithm", algorithm.name},
                      {"channels", found.channels},
                      {"time_us", found.us},
                      {"algbw_gb_s", gbps},
                      {"busbw_gb_s", gbps * bus_share(kind, nranks)}});
    }
  }
  if (modelled) fmt::print("* the choice of the tuning model\n");
  write_json(options.json, rows);
  if (!options.html.empty()) write_html(*timeline, options.html, title);
  if (!options.trace.empty()) write_trace(*timeline, options.trace, {});
}

}  // namespace slip::cli
