// The topology of this machine: from hwloc, and from small files in /sys, which take 0.1 ms to read.
#pragma once

#include <string>
#include <vector>

#include "base/thread.hpp"
#include "slip/topology.hpp"

namespace slip::store {

// This machine as hwloc sees it, without SLIP_TOPO_FILE. Probed once per process, because probing takes some
// milliseconds.
const TopoSystem& probed_topology(Here here);

// The number of the NUMA node that has all these cores; -1: they are in several nodes, or the machine has only one.
int numa_node_of(const base::CoreSet& cores, const std::string& root = "/sys/devices/system/node");

// Parses a set of cores as the kernel writes it, "0-3,8,10-11"; empty if the text is malformed.
base::CoreSet read_core_list(const std::string& text);

// Topology files that may describe several hosts. read_topology() reads those of one host.

struct TopologyFile {
  std::vector<TopoSystem> machines;   // one for each host, in the order of the file
  std::vector<std::string> warnings;  // what the reader ignores, with its lines
};
TopologyFile read_topology_file(const std::string& path, Here here);

inline std::vector<TopoSystem> read_topologies(const std::string& path, Here here) {
  return read_topology_file(path, here).machines;
}

}  // namespace slip::store
