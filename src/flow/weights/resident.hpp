// The choice of the weights that stay resident, so that a step is as short as possible. The search starts from
// heuristic guesses and improves them by exchanges. Then it runs branch and bound until the choice is proven optimal or
// the effort is used up. plan_weights uses it.
#pragma once

#include <span>
#include <vector>

#include "flow/weights/recurrence.hpp"

namespace slip::flow {

struct ResidentProblem {
  const StepCosts& step_costs;
  const std::vector<WeightGroup>& groups;
  const std::vector<WeightLoad>& loads;  // of one step with all groups streamed
  std::uint64_t capacity = 0;            // bytes for resident groups
  std::uint64_t ring = 0;                // bytes for the loads of the other groups
  std::span<const char> packed = {};     // by group: it stays compressed, and is decoded into the ring; empty: none
};

struct ResidentChoice {
  std::vector<char> resident;  // by group; empty if no choice fits
  double step = 0;             // picoseconds
  double bound = 0;            // lower bound for every choice
  bool found() const { return !resident.empty(); }
};

// guess_resident returns the best guess; search_resident also runs exchanges and branch and bound. `effort` limits the
// number of ops evaluated. Unlike a time limit, it gives the same result on every machine.
ResidentChoice guess_resident(const ResidentProblem& problem);
ResidentChoice search_resident(const ResidentProblem& problem, std::uint64_t effort);

// Sets `loads` to the loads of the groups that are not resident, placed in the ring. Returns false if they do not fit.
bool streamed_loads(const ResidentProblem& problem, const std::vector<char>& resident, std::vector<WeightLoad>& loads);

}  // namespace slip::flow
