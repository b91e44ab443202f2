// Machines for the tests: the files in data/, and random ones from a seed.
#pragma once

#include <cstdint>
#include <string>

#include "slip/topology.hpp"

namespace slip::topo_test {

std::string data_path(const std::string& name);
TopoSystem data_system(const std::string& name);

struct RandomShape {
  int max_gpus = 5;
  int max_nets = 2;  // there is at least one if it is not 0
};
// NCCL's XML: one or two CPUs, switches, GPUs with NVLinks between some or to a switch, NICs anywhere.
std::string random_xml(std::uint64_t seed, const RandomShape& shape);

}  // namespace slip::topo_test
