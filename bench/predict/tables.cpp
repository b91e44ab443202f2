// The errors of the cost model on published tables of all_reduce_perf, with the default constants and after a fit.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "bars.hpp"
#include "store/topology_file.hpp"

namespace slip::bench {
namespace {

// Errors of a table are the mean over its rows; those of all tables the mean over the tables.
struct Errors {
  double mean = 0, worst = 0;
};

Errors errors_over_tables(Context& context, const char* what, auto&& error_of) {
  Errors errors;
  const std::vector<PublishedTable> tables = published_tables();
  for (const PublishedTable& table : tables) {
    const double error = error_of(table);
    context.note(fmt::format("{}, {}: {:.1f} %", table.name, what, 100 * error));
    errors.mean += error / static_cast<double>(tables.size());
    errors.worst = std::max(errors.worst, error);
  }
  return errors;
}

double fitted_error(const PublishedTable& table) {
  return comm::fit_costs(table.inputs, comm::Collective::kAllReduce, table.rows).left_out.mean;
}

double default_error(const PublishedTable& table) {
  return comm::errors_of(comm::CollectiveModel(table.inputs), comm::Collective::kAllReduce, table.rows).mean;
}

// The description of a machine may name a network that its topology file cannot tell from InfiniBand: "8x 200G TCPXO".
std::string network_named_in(std::string machine) {
  std::ranges::transform(machine, machine.begin(), [](unsigned char c) { return std::tolower(c); });
  return machine.find("tcpx") != std::string::npos ? "tcpxo" : "";
}

}  // namespace

std::vector<PublishedTable> published_tables() {
  const char* const other = std::getenv("SLIP_PREDICT_TABLES");
  const std::string folder = other ? other : SLIP_SOURCE_DIR "/bench/predict";
  std::ifstream file(folder + "/tables.json");
  const nlohmann::json tables = nlohmann::json::parse(file);
  std::vector<PublishedTable> result;
  for (const nlohmann::json& table : tables) {
    const std::string name = table.at("file").get<std::string>();
    const std::string path = other ? folder + "/" + name : folder + "/machines/" + name;
    const topo::FoldedCluster cluster = topo::folded(store::read_topologies(path, {}), table.at("nodes").get<int>());
    PublishedTable& one = result.emplace_back(PublishedTable{
        table.at("name").get<std::string>(),
        comm::model_inputs(cluster, plan_channels(cluster.cluster, {.cross_nic = CrossNic::kAny})),
        comm::parse_measurements(table.dump(), path, ""),
    });
    const std::string named = table.value("network", network_named_in(table.value("machine", "")));
    if (named.empty()) continue;
    const comm::NetworkCosts* const network = comm::find_network(named);
    if (!network) throw std::runtime_error(one.name + ": unknown network");
    one.inputs.network = *network;
  }
  return result;
}

void add_table_bars(Harness& harness) {
  const auto add = [&](const char* name, const char* what, double limit, auto&& error_of, bool worst) {
    harness.add({.area = "predict",
                 .name = name,
                 .unit = Unit::kPercent,
                 .ours = [=](Context& context) -> std::optional<double> {
                   const Errors errors = errors_over_tables(context, what, error_of);
                   return 100 * (worst ? errors.worst : errors.mean);
                 },
                 .limit = limit,
                 .max_repeat = 1});
  };
  add("mean_error_default_constants", "default constants", 15, default_error, false);
  add("mean_error_fitted_on_the_other_half", "fitted, sizes left out", 8, fitted_error, false);
  add("worst_table_fitted_on_the_other_half", "fitted, sizes left out", 15, fitted_error, true);
}

}  // namespace slip::bench
