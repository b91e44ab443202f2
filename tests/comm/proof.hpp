// What the checker says of the programs of all ranks, as one plan.
#pragma once

#include <span>
#include <string>

#include "comm/rehearsal.hpp"
#include "slip/verify.hpp"

namespace slip::test {

// "proven", or the verdict and why.
inline std::string proof_of(std::span<const Scene> scenes, Wires wires) {
  const std::size_t nranks = scenes.front().programs.size();
  Rehearsal rehearsal(std::vector<Device>(nranks, Device::open("sim:h200", {.run_functions = false})), wires);
  for (const Scene& scene : scenes) rehearsal.add(scene);
  const Plan plan = rehearsal.plan();
  const Verification proof = verify(plan);
  return proof.proven() ? verdict_name(proof.verdict) : proof.text(plan).substr(0, 2000);
}

}  // namespace slip::test
