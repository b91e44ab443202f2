// Simulates a step of gradients: kernels with given times in streams, and the same events between them that Gradients
// uses. predict_step() uses it for predictions, and `slip lab gradients` to compare policies. Also computes the cost of
// reducing gradients on a cluster, from a topology description.
#pragma once

#include <vector>

#include "slip/device.hpp"
#include "slip/gradient_plan.hpp"
#include "slip/topology.hpp"

namespace slip::flow {

enum class OverlapPolicy : std::uint8_t {
  kInCompute,  // calls run in the compute stream: nothing overlaps
  kAtTheEnd,   // calls run in a stream of their own; the end of the backward pass waits for all of them
  kByNeed,     // calls run in a stream of their own; each use of a gradient waits for its call only
};

// Runs the step on a sim device and returns its times by the device's clock, without a trace. The kernels of compute
// take half of the device's width, so that calls can run beside them.
Prediction simulate_step(const Device& device, const GradientProfile& profile, const ReduceCost& cost,
                         const BucketPlan& plan, OverlapPolicy policy, Here here = Here::at());

struct ClusterCost {
  ReduceCost cost;
  int ranks = 0;
  const char* how = "";  // how the cost was computed, as text for a report
};

// The cost of all_reduce on copies of these machines, for several sizes. For machines with GPUs it is computed by the
// cost model, for any number. For copies of one other machine it is the time of rings or of trees, whichever is faster.
// A few machines are simulated message by message. More machines are extrapolated from two simulated numbers: the time
// of a ring grows linearly with the machines, and the time of a tree with their logarithm.
ClusterCost cluster_cost(const std::vector<TopoSystem>& kinds, int copies, Here here = Here::at());

// The time of one all_reduce by a ring or a tree, in microseconds. Up to `max_simulated` machines are simulated.
double all_reduce_us(const TopoSystem& machine, int machines, std::uint64_t bytes, bool by_tree, int max_simulated,
                     Here here);

}  // namespace slip::flow
