// A cluster with its paths, and what routes put on its links.
#pragma once

#include <memory>
#include <vector>

#include "slip/topology.hpp"

namespace slip::topo {

class Fabric {
 public:
  // Throws kInvalidValue for a rank on a machine or device that is not there, kept as long as the cluster.
  Fabric(const Cluster& cluster, Here here);

  const TopoSystem& system(int node) const { return cluster_.nodes[static_cast<std::size_t>(node)]; }
  const TopoPaths& paths(int node) const { return *paths_[static_cast<std::size_t>(node)]; }
  const std::vector<int>& ranks_of(int node) const { return ranks_of_[static_cast<std::size_t>(node)]; }
  const std::vector<int>& used_nodes() const { return used_nodes_; }  // those with ranks
  int node_of(int rank) const { return cluster_.ranks[static_cast<std::size_t>(rank)].node; }
  int device_of(int rank) const;  // a node of the system's graph
  int ranks() const { return static_cast<int>(cluster_.ranks.size()); }
  int net(int node, int number) const { return system(node).nets[static_cast<std::size_t>(number)]; }

 private:
  const Cluster& cluster_;
  std::vector<std::shared_ptr<const TopoPaths>> paths_;  // one for all machines of a kind
  std::vector<std::vector<int>> ranks_of_;
  std::vector<int> used_nodes_;
};

// Adds up what each link carries; rates follow from the busiest.
class Loads {
 public:
  explicit Loads(const Fabric& fabric);
  // `nets`: by node, the port that leads to others.
  void send(int from, int to, const std::vector<int>& nets, double share);
  void send_out(int rank, int net, double share);  // up to a switch in the network
  void send_in(int rank, int net, double share);
  double gbps(double otherwise) const;  // for a share of 1; `otherwise` if nothing was sent over a link

 private:
  void add(int node, int from, int to, double share);
  const Fabric& fabric_;
  std::vector<std::vector<double>> load_;  // by node and link
};

}  // namespace slip::topo
