// Topology files that may describe several hosts. read_topology() reads those of one host.
#pragma once

#include <string>
#include <vector>

#include "slip/topology.hpp"

namespace slip::store {

struct TopologyFile {
  std::vector<TopoSystem> machines;   // one for each host, in the order of the file
  std::vector<std::string> warnings;  // what the reader ignores, with its lines
};
TopologyFile read_topology_file(const std::string& path, Here here);

inline std::vector<TopoSystem> read_topologies(const std::string& path, Here here) {
  return read_topology_file(path, here).machines;
}

}  // namespace slip::store
