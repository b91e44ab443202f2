// The length of a step in the steady state, without a device: ops one after the other, loads one after the other, an op
// waits for its loads, a load for the op that used its place last, and each slows the other while both run. It is the
// recurrence L_k = max(L_k-1, C_k-S) + l_k, C_k = max(C_k-1, L_k) + c_k, with bytes in place of slots.
#pragma once

#include <span>
#include <vector>

#include "slip/weights.hpp"

namespace slip {

struct Pace {
  std::vector<double> ops;            // picoseconds, alone, by op
  std::vector<double> loads;          // by group
  double kernel_slowdown = 0;         // while a load runs: takes 1 + this as long
  double load_slowdown = 0;           // while an op runs
  std::vector<double> inputs;         // of a step: they take the way of the loads, one after the other
  std::uint32_t inputs_used = kNoOp;  // the last op that reads one: from then on the next step's may come
};
Pace pace_of(const Graph& graph, const Costs& costs, const std::vector<WeightGroup>& groups);

struct Period {
  double step = 0;     // picoseconds, in the steady state
  double exposed = 0;  // of it: loads ran and no op did
};
Period period_of(const Pace& pace, std::span<const WeightLoad> loads);

// No plan that computes so long and loads so long takes less.
double min_period(const Pace& pace, double compute, double loading);

}  // namespace slip
