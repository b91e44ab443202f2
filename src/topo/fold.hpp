// FoldedCluster: represents many copies of a few machines by a small cluster that has the same rates. A ring uses each
// copy in the same way. In a tree of more than a few machines, a machine in the middle has a parent and two children,
// however many machines there are. So the plan for kMaxCopies copies has the rates of the plan for any larger number of
// copies. Memory and time depend on the number of different machines, not on the number of ranks. An odd number of
// copies stays odd: on rails it decides whether rings can cross (rings.hpp).
#pragma once

#include <algorithm>
#include <vector>

#include "slip/topology.hpp"

namespace slip::topo {

inline constexpr int kMaxCopies = 8;

struct FoldedCluster {
  Cluster cluster;   // with at most kMaxCopies copies
  int further = 0;   // copies that are left out
  int period = 1;    // machines of a copy: the last ones of `cluster` are one
  int machines = 1;  // of the whole cluster
  int ranks = 0;
};

// Copies of these machines with a rank on each device: the first copy of each, then the second of each.
inline Cluster repeated(const std::vector<TopoSystem>& machines, int copies) {
  Cluster cluster;
  for (int copy = 0; copy < copies; ++copy) {
    for (const TopoSystem& system : machines) {
      const auto node = static_cast<int>(cluster.nodes.size());
      for (std::size_t device = 0; device < system.devices.size(); ++device)
        cluster.ranks.push_back({node, static_cast<int>(device)});
      cluster.nodes.push_back(system);
    }
  }
  return cluster;
}

// Whether these are copies of one machine, such as the hosts of a dump.
inline bool all_equal(const std::vector<TopoSystem>& machines) {
  return std::ranges::all_of(machines, [&](const TopoSystem& one) { return one.xml == machines.front().xml; });
}

inline FoldedCluster folded(const std::vector<TopoSystem>& machines, int copies, int max_copies = kMaxCopies) {
  const int kept = copies <= max_copies ? copies : max_copies - (copies - max_copies) % 2;
  FoldedCluster result{.cluster = repeated(machines, kept), .further = copies - kept};
  result.period = static_cast<int>(machines.size());
  result.machines = copies * result.period;
  for (const TopoSystem& system : machines) result.ranks += copies * static_cast<int>(system.devices.size());
  return result;
}

// Without the last copy.
inline Cluster shortened(const FoldedCluster& folded) {
  Cluster cluster = folded.cluster;
  const auto nodes = static_cast<int>(cluster.nodes.size()) - folded.period;
  cluster.nodes.resize(static_cast<std::size_t>(nodes));
  std::erase_if(cluster.ranks, [&](const RankPlace& place) { return place.node >= nodes; });
  return cluster;
}

}  // namespace slip::topo
