// Fabric: a cluster with the paths of its machines. LinkLoads: the load that messages put on each link.
// The channel plan and the rail routes use both.
#pragma once

#include <memory>
#include <vector>

#include "slip/topology.hpp"

namespace slip::topo {

class Fabric {
 public:
  // Throws kInvalidValue for a rank on a machine or device that does not exist. It must not outlive the cluster.
  Fabric(const Cluster& cluster, Here here);

  const TopoSystem& system(int node) const { return cluster_.nodes[static_cast<std::size_t>(node)]; }
  const TopoPaths& paths(int node) const { return *paths_[static_cast<std::size_t>(node)]; }
  const std::vector<int>& ranks_of(int node) const { return ranks_of_[static_cast<std::size_t>(node)]; }
  const std::vector<int>& used_nodes() const { return used_nodes_; }  // nodes with ranks
  int node_of(int rank) const { return cluster_.ranks[static_cast<std::size_t>(rank)].node; }
  int device_of(int rank) const;  // a node of the system's graph
  int ranks() const { return static_cast<int>(cluster_.ranks.size()); }
  int net(int node, int number) const { return system(node).nets[static_cast<std::size_t>(number)]; }

 private:
  const Cluster& cluster_;
  std::vector<std::shared_ptr<const TopoPaths>> paths_;  // equal machines share one
  std::vector<std::vector<int>> ranks_of_;
  std::vector<int> used_nodes_;
};

// Adds up the load of each link. The most loaded link determines the rate.
class LinkLoads {
 public:
  explicit LinkLoads(const Fabric& fabric);
  // `nets`: by node, the net that leads to other nodes.
  void send(int from, int to, const std::vector<int>& nets, double share);
  void send_out(int rank, int net, double share);  // to a switch in the network
  void send_in(int rank, int net, double share);
  double gbps(double otherwise) const;  // the rate of a share of 1; `otherwise` if no link is loaded

 private:
  void add(int node, int from, int to, double share);
  const Fabric& fabric_;
  std::vector<std::vector<double>> load_;  // by node and link
};

}  // namespace slip::topo
