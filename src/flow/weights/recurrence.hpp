// The length of a step in the steady state, computed without a device. Ops run one after the other, and so do loads. A
// compressed group is copied to a slot and then decoded into the ring; a device decodes when it runs no op. An
// op waits for its loads. A load waits for the last op that used its place in the ring. Ops and loads slow each other
// while both run. With a ring of S slots in place of bytes this is the recurrence L_k = max(L_k-1, C_k-S) + l_k, C_k =
// max(C_k-1, L_k) + c_k. Here load k takes l_k and ends at L_k, and op k takes c_k and ends at C_k.
#pragma once

#include <limits>
#include <span>
#include <vector>

#include "slip/weights.hpp"

namespace slip::flow {

inline constexpr double kInfinite = std::numeric_limits<double>::infinity();

// The times of a step's parts.
struct StepCosts {
  std::vector<double> ops;            // picoseconds, alone, by op
  std::vector<double> loads;          // picoseconds, alone, by weight group: over the link
  std::vector<double> decodes;        // picoseconds, alone, by weight group: 0 if it is not compressed
  double kernel_slowdown = 0;         // while a load runs, an op takes 1 + kernel_slowdown times as long
  double load_slowdown = 0;           // while an op runs, a load takes 1 + load_slowdown times as long
  std::vector<double> inputs;         // copies of a step's inputs; they share the copy engine with the loads
  std::uint32_t inputs_used = kNoOp;  // the last op that reads an input: after it the next step's inputs may be copied
};
StepCosts step_costs_of(const Graph& graph, const Costs& costs, const std::vector<WeightGroup>& groups);

struct SteadyStep {
  double step = 0;     // picoseconds, in the steady state
  double exposed = 0;  // part of it in which loads ran and no op did
};
// `resident` by weight group, or empty: the loads of resident groups only decode.
SteadyStep steady_step_of(const StepCosts& step_costs, std::span<const WeightLoad> loads,
                          std::span<const char> resident = {});

// Sets the plan's estimated times and its streamed bytes, from its loads.
void set_times(WeightsPlan& plan, const StepCosts& step_costs);

// The sum of costs may exceed the range of Picos.
Picos rounded(double time);

// Lower bound for a step whose ops take `compute` and whose loads take `loading`.
double min_steady_step(const StepCosts& step_costs, double compute, double loading);

}  // namespace slip::flow
