// What the checker says of the programs of all ranks, as one plan.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "comm/sim/rehearsal.hpp"
#include "slip/verify.hpp"

namespace slip::test {

// "proven", or the verdict and why.
inline std::string proof_of(std::span<const Scene> scenes, Wires wires) {
  int channels = 1;
  for (const Scene& scene : scenes) channels = std::max(channels, scene.channels);
  const std::size_t ranks = scenes.front().programs.size() / static_cast<std::size_t>(scenes.front().channels);
  const Device device = Device::open("sim:h200", {.run_functions = false});
  Rehearsal rehearsal(std::vector<Device>(ranks * static_cast<std::size_t>(channels), device), wires, channels);
  for (const Scene& scene : scenes) rehearsal.add(scene);
  const Plan plan = rehearsal.plan();
  const Verification proof = verify(plan);
  return proof.proven() ? verdict_name(proof.verdict) : proof.text(plan).substr(0, 2000);
}

}  // namespace slip::test
