// Which weights stay on the device, so that a step takes least: some good guesses, improved by exchanges, then branch
// and bound until it is proven that nothing is better or enough was tried.
#pragma once

#include <vector>

#include "flow/weights/recurrence.hpp"

namespace slip {

struct ResidentProblem {
  const Pace& pace;
  const std::vector<WeightGroup>& groups;
  const std::vector<WeightLoad>& loads;  // if all groups were streamed
  std::uint64_t capacity = 0;            // bytes for resident groups
  std::uint64_t ring = 0;                // bytes for the others
};

struct ResidentChoice {
  std::vector<char> resident;  // by group; empty: nothing fits
  double step = 0;             // picoseconds
  double bound = 0;            // no choice takes less
  std::uint64_t looked_at = 0;
  bool found() const { return !resident.empty(); }
};

// The best of the guesses alone; and with exchanges and branch and bound behind it, within an effort that is counted in
// ops looked at.
ResidentChoice guess_resident(const ResidentProblem& problem);
ResidentChoice search_resident(const ResidentProblem& problem, std::uint64_t effort);

// The loads that are left, laid out in the ring. Empty `loads` and false: they do not fit.
bool streamed_loads(const ResidentProblem& problem, const std::vector<char>& resident, std::vector<WeightLoad>& loads);

}  // namespace slip
