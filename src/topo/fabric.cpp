#include "topo/fabric.hpp"

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include "base/fail.hpp"

namespace slip::topo {

int nearest_net(const TopoSystem& system, const TopoPaths& paths, int device, int number) {
  return static_cast<int>(nearest(system.nets.size(), number, [&](std::size_t net) {
    return std::tuple(paths.type(system.nets[net], device), -paths.gbps(system.nets[net], device));
  }));
}

Fabric::Fabric(const Cluster& cluster, Here here, bool relayed) : cluster_(cluster) {
  if (cluster.ranks.empty()) throw Error(ErrorCode::kInvalidValue, "a cluster without ranks: name at least one", here);
  std::map<std::string_view, std::shared_ptr<const TopoPaths>> known;
  for (const TopoSystem& system : cluster.nodes) {
    std::shared_ptr<const TopoPaths>& paths = known[system.xml];
    if (!paths) paths = std::make_shared<const TopoPaths>(system, relayed);
    paths_.push_back(paths);
  }
  ranks_of_.resize(cluster.nodes.size());
  for (std::size_t rank = 0; rank < cluster.ranks.size(); ++rank) {
    const RankPlace& place = cluster.ranks[rank];
    if (place.node < 0 || static_cast<std::size_t>(place.node) >= cluster.nodes.size())
      base::fail(ErrorCode::kInvalidValue, here, "rank {} is on node {}, but there are {} nodes", rank, place.node,
                 cluster.nodes.size());
    const std::size_t devices = system(place.node).devices.size();
    if (place.device < 0 || static_cast<std::size_t>(place.device) >= devices)
      base::fail(ErrorCode::kInvalidValue, here, "rank {} is on device {} of node {}, which has {} devices", rank,
                 place.device, place.node, devices);
    ranks_of_[static_cast<std::size_t>(place.node)].push_back(static_cast<int>(rank));
  }
  for (std::size_t node = 0; node < ranks_of_.size(); ++node) {
    if (!ranks_of_[node].empty()) used_nodes_.push_back(static_cast<int>(node));
  }
}

int Fabric::device_of(int rank) const {
  const RankPlace& place = place_of(rank);
  return system(place.node).devices[static_cast<std::size_t>(place.device)];
}

LinkLoads::LinkLoads(const Fabric& fabric) : fabric_(fabric) {
  for (const int node : fabric.used_nodes()) {
    if (load_.size() <= static_cast<std::size_t>(node)) load_.resize(static_cast<std::size_t>(node) + 1);
    load_[static_cast<std::size_t>(node)].assign(fabric.system(node).links.size(), 0);
  }
}

void LinkLoads::send(int from, int to, const std::vector<int>& nets, double share) {
  const int here = fabric_.node_of(from), there = fabric_.node_of(to);
  if (here == there) {
    add(here, fabric_.device_of(from), fabric_.device_of(to), share);
    return;
  }
  send_out(from, nets[static_cast<std::size_t>(here)], share);
  send_in(to, nets[static_cast<std::size_t>(there)], share);
}

double LinkLoads::gbps(double max_gbps) const {
  double result = max_gbps;
  for (std::size_t node = 0; node < load_.size(); ++node) {
    for (std::size_t link = 0; link < load_[node].size(); ++link) {
      if (load_[node][link] > 0)
        result = std::min(result, fabric_.system(static_cast<int>(node)).links[link].gbps / load_[node][link]);
    }
  }
  return result;
}

}  // namespace slip::topo
