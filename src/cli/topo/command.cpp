// `slip topo`: prints the machine as a graph, and the rings and trees that collectives use on it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/fail.hpp"
#include "cli/commands.hpp"
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
          {{"from", from}, {"to", to}, {"type", topo_path_name(all.type(from, to))}, {"gbps", all.gbps(from, to)}});
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
  for (const CommChannel& channel : plan.channels) {
    Json trees = Json::array();
    for (const CommTree& tree : channel.trees) trees.push_back(tree.parent);
    Json item = {{"ring", channel.ring}, {"trees", trees}};
    if (!channel.nets.empty()) {
      item["nets"] = channel.nets;
      item["nets_out"] = channel.nets_out;
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
          {"within", topo_path_name(plan.within)},
          {"between", topo_path_name(plan.between)},
          {"channels", channels}};
}

constexpr int kMaxNodes = 512, kMaxFoldedNodes = 1 << 17;

struct TopoOptions {
  MachineOptions machines;
  std::vector<std::string> compared;
  std::string counts = "1";  // of --nodes: "4", or "1,2,4" with --compare
  std::string svg, xml;
  PredictOptions predict;
};

std::vector<int> counts_asked(const std::string& text, int max_nodes) {
  std::vector<int> counts;
  std::string_view rest = text;
  for (bool more = true; more;) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const auto count = base::parse_number<int>(rest.substr(0, comma), 1, max_nodes);
    if (!count) throw UsageError(fmt::format("--nodes {}: must be 1 to {}", text, max_nodes));
    counts.push_back(*count);
    more = comma < rest.size();
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  std::ranges::sort(counts);
  return counts;
}

// `max_copies`: of the machines; more are folded.
topo::FoldedCluster cluster_for(const TopoOptions& options, const std::vector<TopoSystem>& machines, int max_nodes,
                                int max_copies) {
  const std::vector<int> counts = counts_asked(options.counts, max_nodes);
  if (counts.size() > 1)
    throw UsageError(fmt::format("--nodes {}: several numbers are compared by --compare only", options.counts));
  return cluster_asked(options.machines, machines, counts.front(), max_copies);
}

// The prediction needs only a few of the machines, unless it simulates all messages.
int predict(const TopoOptions& options, const std::vector<TopoSystem>& machines) {
  const bool simulated =
      std::ranges::any_of(machines, [&](const TopoSystem& one) { return simulates(options.predict, one); });
  if (simulated && !options.predict.fit.empty())
    throw UsageError("--fit adapts the model of GPU costs, and a simulation does not use it: give one of them");
  const topo::FoldedCluster cluster = simulated ? cluster_for(options, machines, kMaxNodes, kMaxNodes)
                                                : cluster_for(options, machines, kMaxFoldedNodes, topo::kMaxCopies);
  const ChannelPlan plan = plan_channels(cluster.cluster, limits_asked(options.predict), {});
  if (simulated) print_simulation(options.predict, cluster.cluster, plan);
  else print_model(options.predict, cluster, plan);
  return kSuccess;
}

int compare(const TopoOptions& options) {
  if (options.predict.kind.empty())
    throw UsageError("--compare compares predictions: say of what, as in --predict all_reduce");
  if (!options.machines.files.empty()) throw UsageError("--compare names the files itself: leave out --file");
  if (!options.xml.empty()) throw UsageError("--xml writes one machine, and --compare has several: give one of them");
  if (!options.predict.fit.empty() || options.predict.simulate || !options.predict.html.empty() ||
      !options.predict.trace.empty())
    throw UsageError("--compare prints the model's choices: --fit, --simulate, --html and --trace are for one machine");
  MachineOptions machines = options.machines;
  machines.files = options.compared;
  print_comparison(options.predict, machines, counts_asked(options.counts, kMaxFoldedNodes), options.svg);
  return kSuccess;
}

int run_topo(const TopoOptions& options) {
  if (options.predict.fit.empty() && !options.predict.table.empty())
    throw UsageError(fmt::format("--table {}: it names a table of the file that --fit reads", options.predict.table));
  if (!options.compared.empty()) return compare(options);
  const bool predicts = !options.predict.kind.empty();
  if (predicts && (!options.svg.empty() || !options.xml.empty()))
    throw UsageError("--svg and --xml show the machines, and --predict takes the place of that: give one of them");
  if (!predicts && (!options.predict.html.empty() || !options.predict.trace.empty()))
    throw UsageError("--html and --trace show a prediction: say what is predicted, as in --predict all_reduce");
  const std::vector<TopoSystem> machines = machines_asked(options.machines);
  if (predicts) return predict(options, machines);
  const topo::FoldedCluster folded = cluster_for(options, machines, kMaxNodes, kMaxNodes);
  const Cluster& cluster = folded.cluster;
  if (!options.xml.empty() && folded.period > 1) throw UsageError("--xml writes one machine: give one --file");
  if (!options.xml.empty() && !(options.machines.failed.empty() && options.machines.slow.empty()))
    throw UsageError(
        "--xml writes whole machines, because the format has no broken parts: leave out --fail and --slow");
  const ChannelPlan plan = plan_channels(cluster, limits_asked(options.predict), {});
  const auto kinds = static_cast<std::size_t>(folded.period);
  for (std::size_t i = 0; i < kinds; ++i) {
    const TopoSystem& system = cluster.nodes[i];
    fmt::print("{}: {}, {}\n\n{}\n{}\n", system.name, counted(system.devices.size(), device_word(system)),
               counted(system.nets.size(), "net"), draw_tree(system), draw_paths(system));
  }
  fmt::print("{}", draw_plan(cluster, plan));
  const NetworkLine network = options.machines.files.empty() ? find_network() : NetworkLine{};
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

constexpr const char* kTopoFooter =
    "\nWithout --file it shows this machine as hwloc sees it, or the file that SLIP_TOPO_FILE names. Files\n"
    "are NCCL's or RCCL's topology XML, as NCCL_TOPO_DUMP_FILE writes it and cloud providers publish it. If\n"
    "they leave out NVLinks, --nvlink adds an NVSwitch. A warning names everything that is ignored or assumed.\n"
    "\n"
    "Paths, nearest first: LOC the same device, NVL NVLink or xGMI, NVB NVLink through a GPU between them, PIX one\n"
    "PCI switch, PXB several, PXN NVLink to the GPU beside the NIC, PHB through the CPU or over C2C, SYS from CPU\n"
    "to CPU, NET another machine.\n"
    "\n"
    "  slip topo                                  this machine\n"
    "  slip topo --file p4d.xml --nodes 4         four of the described machines\n"
    "  slip topo --file p4d.xml --svg p4d.svg     a picture\n"
    "  slip topo --xml here.xml                   this machine as a file, to edit and give to --file\n"
    "  slip topo --file p4d.xml --nodes 2 --predict all_reduce --end 64M\n"
    "  slip topo --file p4d.xml --nodes 2 --predict all_to_all --rails      with and without relays\n"
    "\n"
    "  slip topo --file ndv5.xml --nvlink 18 --sm 90 --nodes 12500 --predict all_reduce --end 1G\n"
    "  slip topo --file p4d.xml --nodes 2 --predict all_reduce --fit all_reduce_perf.txt\n"
    "  slip topo --file p4d.xml --nodes 2 --predict all_reduce --fail nic:3          what a broken NIC costs\n"
    "  slip topo --compare p4d.xml p5.xml --predict all_reduce --nodes 1,2,4 --svg compared.svg\n"
    "\n"
    "--predict prints time, algbw (size / time) and busbw as `slip bench` does, in GB/s. On GPUs it is a model\n"
    "with the costs of the GPU generation and the network; the line 'would choose' says what a tuning model\n"
    "takes at each size. --fit adapts the model to times that all_reduce_perf measured. --simulate simulates the\n"
    "programs of all ranks instead, message by message, on the links of the machines, which share their\n"
    "bandwidth fairly; --html and --trace show that simulation.";

void add_machine_options(CLI::App& topo, TopoOptions& options) {
  MachineOptions& machines = options.machines;
  topo.add_option("--file", machines.files, "Topology XML; several times: one machine of each");
  topo.add_option("--nodes", options.counts,
                  "Number of copies of the machine (1 to 512; --predict: to 131072); --compare: several, as 1,2,4");
  topo.add_option("--compare", options.compared, "Compare the predictions for the machines of these files");
  topo.add_option("--nvlink", machines.nvlinks, "Add an NVSwitch with this number of NVLinks to each GPU without any")
      ->check(number_between(1, 64));
  topo.add_option("--sm", machines.sm, "--nvlink: compute capability of the GPUs, as 90 for 9.0 (without it 80)")
      ->check(number_between(10, 999));
  topo.add_option("--fail", machines.failed, "Leave out a part of the first machine: nic:3, net:3 or link:GPU0-NVS");
  topo.add_option("--slow", machines.slow, "Slow down a part of the first machine: link:PCI0=50% or nic:3=10%");
  topo.add_option("--channels", options.predict.channels, "Maximum number of channels (1 to 64)");
  add_output(topo, "--svg", options.svg, "Write a picture");
  add_output(topo, "--xml", options.xml, "Write the topology as NCCL's XML");
  add_output(topo, "--json", options.predict.json,
             "Write nodes, links, paths, rings and trees, or the prediction, as JSON");
}

void add_predict_options(CLI::App& topo, PredictOptions& predict) {
  topo.option_defaults()->always_capture_default();
  topo.add_option("--predict", predict.kind, "Print the predicted times of this collective instead of the drawings");
  topo.add_option("--begin", predict.begin, "--predict: smallest size");
  topo.add_option("--end", predict.end, "--predict: largest size");
  topo.add_option("--factor", predict.factor, "--predict: factor from one size to the next")
      ->check(number_between(1.0001, 1e9));
  topo.add_option("--algorithm", predict.algorithms,
                  "--predict: ring, tree, switch (one that reduces), nvls, nvls_tree, doubling, direct, relay, best "
                  "(the choice of the model) or all");
  topo.add_flag("--simulate", predict.simulate, "--predict: simulate all messages; cores are always simulated");
  topo.add_option("--network", predict.network,
                  "--predict: kind of network: ib (InfiniBand, RoCE), efa, efa2 (P5 and later) or tcpxo; without it by "
                  "the NICs' vendor");
  topo.add_option("--fit", predict.fit,
                  "--predict: fit the model to measured times: text of all_reduce_perf, or JSON with [bytes, us]");
  topo.add_option("--table", predict.table, "--fit: the name of the table, if the JSON file has several");
  topo.add_flag("--rails", predict.rails, "Between machines only nets of the same number reach each other");
  topo.add_flag("--one-nic", predict.one_nic,
                "Rings leave a machine through the net through which they enter it (NCCL_CROSS_NIC=0)");
  add_output(topo, "--html", predict.html, "--predict: write the timeline of the last row as an HTML page");
  add_output(topo, "--trace", predict.trace, "--predict: write the timeline of the last row as a trace");
}

}  // namespace

std::function<int()> add_topo(CLI::App& app) {
  auto options = std::make_shared<TopoOptions>();
  CLI::App* topo = app.add_subcommand("topo", "Draw the machine and the rings and trees that collectives use on it");
  topo->footer(kTopoFooter);
  add_machine_options(*topo, *options);
  add_predict_options(*topo, options->predict);
  PredictOptions& predict = options->predict;
  CLI::Option* const latency =
      topo->add_option("--latency", predict.latency_us, "--simulate: latency of a message within a machine, in us")
          ->check(number_between(0.0, 1e5));
  CLI::Option* const net_latency =
      topo->add_option("--net-latency", predict.net_latency_us,
                       "--predict: latency of a message to another machine, in us; without it by the network")
          ->check(number_between(0.0, 1e5));
  CLI::Option* const memory =
      topo->add_option("--memory", predict.memory_gbps,
                       "--simulate: memory bandwidth of a device in GB/s; 0: by GPU generation, 20 for a core")
          ->check(number_between(0.0, 1e6));
  return [=] {
    PredictOptions& asked = options->predict;
    asked.net_latency_given = net_latency->count() > 0;
    if (!asked.fit.empty() && asked.kind.empty()) asked.kind = "all_reduce";  // what tables are of
    // These are costs of the simulation only, so naming one asks for it.
    asked.simulate = asked.simulate || latency->count() > 0 || memory->count() > 0;
    return run_topo(*options);
  };
}

}  // namespace slip::cli
