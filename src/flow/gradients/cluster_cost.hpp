// The cost of reducing gradients on a cluster, computed from a topology description without the hardware. `slip lab
// gradients` uses it.
#pragma once

#include "slip/gradient_plan.hpp"
#include "slip/topology.hpp"

namespace slip::flow {

struct ClusterCost {
  ReduceCost cost;
  int ranks = 0;
  bool extended = false;  // extrapolated from fewer machines
};

// The cost of all_reduce on `machines` of these machines, by rings or trees, whichever is faster, for a few sizes. A
// few machines are simulated message by message. More machines are extrapolated from two simulated numbers: a ring's
// time grows linearly with the machines, and a tree's with their logarithm.
ClusterCost cluster_cost(const TopoSystem& machine, int machines, Here here = Here::at());

// The time of one all_reduce by a ring or a tree, in microseconds. Up to `max_simulated` machines are simulated.
double all_reduce_us(const TopoSystem& machine, int machines, std::uint64_t bytes, bool by_tree, int max_simulated,
                     Here here);

}  // namespace slip::flow
