// What reducing gradients costs on machines that are described and need not be there.
#pragma once

#include "slip/gradient_plan.hpp"
#include "slip/topology.hpp"

namespace slip {

struct ClusterCost {
  ReduceCost cost;
  int ranks = 0;
  bool extended = false;  // figures go on from those of fewer machines
};

// all_reduce between so many of these machines, by rings or trees, whichever take less, for some sizes. A few machines
// are simulated message by message. A ring has as many steps as ranks, and a tree as many levels as there are halvings,
// so for more of them the line through two simulated numbers of machines goes on: in their number for rings, in its
// logarithm for trees.
ClusterCost cluster_cost(const TopoSystem& machine, int machines, Here here = Here::at());

// One figure: what a ring or tree takes, simulated where `most` machines or fewer are asked for.
double all_reduce_us(const TopoSystem& machine, int machines, std::uint64_t bytes, bool by_tree, int most, Here here);

}  // namespace slip
