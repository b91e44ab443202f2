// Proves the programs of all ranks with the race checker, as one plan.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "comm/sim/program_simulation.hpp"
#include "slip/verify.hpp"

namespace slip::test {

// Returns "proven", or the verdict and the reason.
inline std::string proof_of(std::span<const comm::RankPrograms> sequence, comm::WireKind wires) {
  int channels = 1;
  for (const comm::RankPrograms& programs : sequence) channels = std::max(channels, programs.channels);
  const std::size_t ranks = sequence.front().by_rank.size() / static_cast<std::size_t>(sequence.front().channels);
  const Device device = Device::open("sim:h200", {.run_functions = false});
  comm::ProgramSimulation simulation(std::vector<Device>(ranks * static_cast<std::size_t>(channels), device), wires,
                                     channels);
  for (const comm::RankPrograms& programs : sequence) simulation.add(programs);
  const Plan plan = simulation.plan();
  const Verification proof = verify(plan);
  return proof.proven() ? verdict_name(proof.verdict) : proof.text(plan).substr(0, 2000);
}

}  // namespace slip::test
