// Fabric: a cluster with the paths within each of its machines. LinkLoads: the load that messages put on each link.
// channels.cpp (the channel plan) and routes.cpp (the rail routes) use them.
//
// In both classes "node" is a machine of the cluster (Cluster::nodes). In the functions about a TopoSystem it is a node
// of the graph of one machine (TopoSystem::nodes).
#pragma once

#include <memory>
#include <vector>

#include "slip/topology.hpp"

namespace slip::topo {

// The nodes and links of the graph of one machine. Rates are in GB/s.
inline const TopoNode& node_at(const TopoSystem& system, int id) { return system.nodes[static_cast<std::size_t>(id)]; }
double link_gbps(const TopoSystem& system, int from, int to);          // 0: no link
TopoPathType type_of(const TopoSystem& system, const TopoLink& link);  // the nearest type of a path that uses the link
std::vector<std::vector<int>> links_from(const TopoSystem& system);    // the links that begin at each node
// The net with the nearest path type to a device, then with the highest rate: its index in TopoSystem::nets. `number`
// chooses among equal nets. REQUIRES: the machine has a net.
int nearest_net(const TopoSystem& system, const TopoPaths& paths, int device, int number);

// The indices below `count` that have the minimum distance form a list. Returns entry `number` of it, modulo its
// length. REQUIRES: count > 0.
template <class Distance>
std::size_t nearest(std::size_t count, int number, const Distance& distance) {
  std::vector<std::size_t> best;
  for (std::size_t i = 0; i < count; ++i) {
    if (!best.empty() && distance(i) < distance(best.front())) best.clear();
    if (best.empty() || !(distance(best.front()) < distance(i))) best.push_back(i);
  }
  return best[static_cast<std::size_t>(number) % best.size()];
}

class Fabric {
 public:
  // Throws kInvalidValue for a rank on a machine or device that does not exist. It must not outlive the cluster.
  // `relayed`: as for TopoPaths.
  Fabric(const Cluster& cluster, Here here, bool relayed = true);

  const TopoSystem& system(int node) const { return cluster_.nodes[static_cast<std::size_t>(node)]; }
  const TopoPaths& paths(int node) const { return *paths_[static_cast<std::size_t>(node)]; }
  const std::vector<int>& ranks_of(int node) const { return ranks_of_[static_cast<std::size_t>(node)]; }
  const std::vector<int>& used_nodes() const { return used_nodes_; }  // machines with ranks
  const RankPlace& place_of(int rank) const { return cluster_.ranks[static_cast<std::size_t>(rank)]; }
  int node_of(int rank) const { return place_of(rank).node; }
  int device_of(int rank) const;  // index into TopoSystem::nodes of its machine
  int ranks() const { return static_cast<int>(cluster_.ranks.size()); }
  // `number`: index into TopoSystem::nets. Returns an index into TopoSystem::nodes.
  int net(int node, int number) const { return system(node).nets[static_cast<std::size_t>(number)]; }

 private:
  const Cluster& cluster_;
  std::vector<std::shared_ptr<const TopoPaths>> paths_;  // equal machines share one
  std::vector<std::vector<int>> ranks_of_;
  std::vector<int> used_nodes_;
};

// Adds up the load of each link. The link with the smallest quotient of bandwidth and load limits the rate.
class LinkLoads {
 public:
  explicit LinkLoads(const Fabric& fabric);
  // Adds the load of a message from one rank to another. `nets`: by machine, the net through which messages leave and
  // enter it. `share`: the part of all data that the message carries.
  void send(int from, int to, const std::vector<int>& nets, double share);
  void send_out(int rank, int net, double share) {  // only the sender's machine: from the rank to the net
    const int node = fabric_.node_of(rank);
    add(node, fabric_.device_of(rank), fabric_.net(node, net), share);
  }
  void send_in(int rank, int net, double share) {  // only the receiver's machine: from the net to the rank
    const int node = fabric_.node_of(rank);
    add(node, fabric_.net(node, net), fabric_.device_of(rank), share);
  }
  double gbps(double max_gbps) const;  // the rate of all data, in GB/s; at most `max_gbps`

 private:
  void add(int node, int from, int to, double share) {
    for (const int link : fabric_.paths(node).between(from, to).links)
      load_[static_cast<std::size_t>(node)][static_cast<std::size_t>(link)] += share;
  }
  const Fabric& fabric_;
  std::vector<std::vector<double>> load_;  // by machine and link
};

}  // namespace slip::topo
