// The topology and its channels as JSON.
#include "cli/topo/draw.hpp"

namespace slip::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kKinds[] = {"cpu", "pci", "gpu", "core", "cache", "nic", "net", "nvswitch"};
constexpr const char* kLinks[] = {"nvlink", "pci", "memory", "sys", "net"};

constexpr std::size_t kMaxPaths = 1 << 16;  // each takes about a kilobyte while it is JSON

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

}  // namespace

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

}  // namespace slip::cli
