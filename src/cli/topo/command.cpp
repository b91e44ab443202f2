// `slip topo`: prints the machine as a graph, and the rings and trees that collectives use on it.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/fail.hpp"
#include "cli/commands.hpp"
#include "cli/inputs.hpp"
#include "cli/text.hpp"
#include "cli/topo/topo.hpp"
#include "slip/topology.hpp"
#include "transport/net/net_choice.hpp"

namespace slip::cli {
namespace {

constexpr const char* kKinds[] = {"cpu", "pci", "gpu", "core", "cache", "nic", "net", "nvswitch"};
constexpr const char* kLinks[] = {"nvlink", "pci", "memory", "sys", "net"};

constexpr std::size_t kMaxPaths = 1 << 16;  // each takes about 1 KB of memory as JSON

Json json_of(const TopoSystem& system) {
  Json nodes = Json::array(), links = Json::array(), paths = Json::array();
  for (const TopoNode& node : system.nodes) {
    Json item = {{"kind", kKinds[static_cast<std::size_t>(node.kind)]}, {"index", node.index}, {"name", node.name}};
    if (node.parent >= 0) item["parent"] = node.parent;
    if (!node.bus_id.empty()) item["bus_id"] = node.bus_id;
    if (node.sm > 0) item["sm"] = node.sm;
    nodes.push_back(std::move(item));
  }
  for (const TopoLink& link : system.links)
    links.push_back({{"from", link.from},
                     {"to", link.to},
                     {"kind", kLinks[static_cast<std::size_t>(link.kind)]},
                     {"gbps", link.gbps}});
  std::vector<int> ends = system.devices;
  ends.insert(ends.end(), system.nets.begin(), system.nets.end());
  const std::size_t pairs = system.devices.size() * ends.size();
  const bool shown = pairs <= kMaxPaths;
  const TopoPaths all(system);
  for (const int from : shown ? system.devices : std::vector<int>()) {
    for (const int to : ends)
      paths.push_back(
          {{"from", from}, {"to", to}, {"type", path_name(all.type(from, to))}, {"gbps", all.gbps(from, to)}});
  }
  return {{"name", system.name},
          {"nodes", nodes},
          {"links", links},
          {"paths", paths},
          {"paths_left_out", shown ? 0 : pairs},
          {"devices", system.devices},
          {"nets", system.nets}};
}

// The network that ranks of this machine use to reach other hosts.
struct NetworkLine {
  std::string name, why;
};
NetworkLine find_network() {
  try {
    const transport::NetChoice& choice = transport::net_choice();
    return {choice.name, choice.why};
  } catch (const Error& error) {  // the rest of the drawing is right all the same
    return {"none", base::bare_text(error)};
  }
}

Json topo_json(const Cluster& cluster, const ChannelPlan& plan) {
  Json systems = Json::array(), ranks = Json::array(), channels = Json::array();
  std::vector<const TopoSystem*> seen;
  for (const TopoSystem& system : cluster.nodes) {
    std::size_t number = 0;
    while (number < seen.size() && seen[number]->xml != system.xml) ++number;
    if (number == seen.size()) {
      seen.push_back(&system);
      systems.push_back(json_of(system));
    }
  }
  for (const RankPlace& place : cluster.ranks) ranks.push_back({{"node", place.node}, {"device", place.device}});
  for (const Channel& channel : plan.channels) {
    Json trees = Json::array();
    for (const CommTree& tree : channel.trees) trees.push_back(tree.parent);
    Json item = {{"ring", channel.ring}, {"trees", trees}};
    if (!channel.nets.empty()) {
      item["nets"] = channel.nets;
      item["switch_tree"] = channel.switch_tree.parent;
    }
    channels.push_back(std::move(item));
  }
  return {{"machines", systems},
          {"nodes", cluster.nodes.size()},
          {"ranks", ranks},
          {"ring_gbps", plan.ring_gbps},
          {"tree_gbps", plan.tree_gbps},
          {"switch_gbps", plan.switch_gbps},
          {"within", path_name(plan.within)},
          {"between", path_name(plan.between)},
          {"channels", channels}};
}

constexpr int kMaxNodes = 512;
constexpr std::size_t kMaxRanks = 4096;  // trees and rings are stored and printed for all ranks

struct TopoOptions {
  std::vector<std::string> files;
  int nodes = 1, channels = ChannelLimits{}.max_channels;
  std::string svg, xml;
  PredictOptions predict;
};

Cluster cluster_asked(const TopoOptions& options) {
  if (options.nodes < 1 || options.nodes > kMaxNodes)
    throw UsageError(fmt::format("--nodes {}: must be 1 to {}", options.nodes, kMaxNodes));
  if (options.channels < 1 || options.channels > 64)
    throw UsageError(fmt::format("--channels {}: must be 1 to 64", options.channels));
  std::vector<TopoSystem> systems;
  for (const std::string& file : options.files) systems.push_back(read_topology(file, {}));
  if (systems.empty()) systems.push_back(this_topology({}));
  Cluster cluster;
  for (int copy = 0; copy < options.nodes; ++copy) {
    for (const TopoSystem& system : systems) {
      const auto node = static_cast<int>(cluster.nodes.size());
      for (std::size_t device = 0; device < system.devices.size(); ++device)
        cluster.ranks.push_back({node, static_cast<int>(device)});
      cluster.nodes.push_back(system);
    }
  }
  if (cluster.ranks.size() > kMaxRanks)
    throw UsageError(
        fmt::format("{} ranks: at most {} can be shown; give a smaller --nodes", cluster.ranks.size(), kMaxRanks));
  return cluster;
}

int run_topo(const TopoOptions& options) {
  const Cluster cluster = cluster_asked(options);
  const bool predicts = !options.predict.kind.empty();
  if (predicts && (!options.svg.empty() || !options.xml.empty()))
    throw UsageError("--svg and --xml show the machines, and --predict takes the place of that: give one of them");
  if (!predicts && (!options.predict.html.empty() || !options.predict.trace.empty()))
    throw UsageError("--html and --trace show a prediction: say what is predicted, as in --predict all_reduce");
  if (!options.xml.empty() && options.files.size() > 1) throw UsageError("--xml writes one machine: give one --file");
  const ChannelPlan plan = plan_channels(cluster, {.max_channels = options.channels}, {});
  if (predicts) return print_prediction(options.predict, cluster, plan), kSuccess;
  const std::size_t kinds = std::max<std::size_t>(options.files.size(), 1);
  for (std::size_t i = 0; i < kinds; ++i) {
    const TopoSystem& system = cluster.nodes[i];
    fmt::print("{}: {}, {}\n\n{}\n{}\n", system.name, counted(system.devices.size(), device_word(system)),
               counted(system.nets.size(), "net"), draw_tree(system), draw_paths(system));
  }
  fmt::print("{}", draw_plan(cluster, plan));
  const NetworkLine network = options.files.empty() ? find_network() : NetworkLine{};
  if (!network.name.empty()) fmt::print("network to other hosts: {} ({})\n", network.name, network.why);
  const auto written = [](const char* what, const std::string& path, const std::string& text) {
    if (path.empty()) return;
    write_file(path, text);
    fmt::print("{}: {}\n", what, path);
  };
  if (!options.svg.empty()) written("picture", options.svg, draw_svg(cluster, plan));
  written("topology", options.xml, cluster.nodes.front().xml);
  if (!options.predict.json.empty()) {
    Json data = topo_json(cluster, plan);
    if (!network.name.empty()) data["network"] = {{"name", network.name}, {"why", network.why}};
    written("data", options.predict.json, data.dump(2) + "\n");
  }
  return kSuccess;
}

}  // namespace

std::function<int()> add_topo(CLI::App& app) {
  auto options = std::make_shared<TopoOptions>();
  CLI::App* topo = app.add_subcommand("topo", "Draw the machine and the rings and trees that collectives use on it");
  topo->footer(
      "\nWithout --file it shows this machine as hwloc sees it, or the file that SLIP_TOPO_FILE names. Files\n"
      "are NCCL's topology XML, as NCCL_TOPO_DUMP_FILE writes it and cloud providers publish it; what they\n"
      "leave out (NVLinks, often) is not guessed.\n"
      "\n"
      "Paths, nearest first: LOC the same device, NVL NVLink, PIX one PCI switch, PXB several, PXN NVLink to\n"
      "the GPU beside the NIC, PHB through the CPU, SYS from CPU to CPU, NET another machine.\n"
      "\n"
      "  slip topo                                  this machine\n"
      "  slip topo --file p4d.xml --nodes 4         four of the described machines\n"
      "  slip topo --file p4d.xml --svg p4d.svg     a picture\n"
      "  slip topo --xml here.xml                   this machine as a file, to edit and give to --file\n"
      "  slip topo --file p4d.xml --nodes 2 --predict all_reduce --end 64M\n"
      "  slip topo --file p4d.xml --nodes 2 --predict all_to_all --rails      with and without relays\n"
      "\n"
      "--predict simulates the programs of all ranks, message by message, on the links of the machines; a link's\n"
      "bandwidth is shared fairly. It prints time, algbw (size / time) and busbw as `slip bench` does, in GB/s.");
  topo->add_option("--file", options->files, "Topology XML; several times: one machine of each");
  topo->add_option("--nodes", options->nodes, "Number of copies of the machine (1 to 512)");
  topo->add_option("--channels", options->channels, "Maximum number of channels (1 to 64)");
  add_output(*topo, "--svg", options->svg, "Write a picture");
  add_output(*topo, "--xml", options->xml, "Write the topology as NCCL's XML");
  add_output(*topo, "--json", options->predict.json,
             "Write nodes, links, paths, rings and trees, or the prediction, as JSON");
  PredictOptions& predict = options->predict;
  topo->option_defaults()->always_capture_default();
  topo->add_option("--predict", predict.kind, "Print the predicted times of this collective instead of the drawings");
  topo->add_option("--begin", predict.begin, "--predict: smallest size");
  topo->add_option("--end", predict.end, "--predict: largest size");
  topo->add_option("--factor", predict.factor, "--predict: factor from one size to the next")
      ->check(number_between(1.0001, 1e9));
  topo->add_option("--algorithm", predict.algorithms,
                   "--predict: ring, tree, switch (one that reduces), doubling, direct, relay or all");
  topo->add_flag("--rails", predict.rails,
                 "--predict: between machines only nets of the same number reach each other (direct, relay, doubling)");
  topo->add_option("--latency", predict.latency_us, "--predict: latency of a message within a machine, in us")
      ->check(number_between(0.0, 1e5));
  topo->add_option("--net-latency", predict.net_latency_us, "--predict: latency of a message to another machine, in us")
      ->check(number_between(0.0, 1e5));
  topo->add_option("--memory", predict.memory_gbps,
                   "--predict: memory bandwidth of a device in GB/s; 0: 2000 for a GPU, 20 for a core")
      ->check(number_between(0.0, 1e6));
  add_output(*topo, "--html", predict.html, "--predict: write the timeline of the last row as an HTML page");
  add_output(*topo, "--trace", predict.trace, "--predict: write the timeline of the last row as a trace");
  return [options] { return run_topo(*options); };
}

}  // namespace slip::cli
