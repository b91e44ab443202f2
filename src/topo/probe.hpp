// Describes this machine as a topology document: NUMA nodes, shared caches, cores, and the PCI tree with GPUs and NICs.
// parse_topology() reads the document.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "slip/error.hpp"

namespace slip::topo {

struct ProbeSource {
  std::string synthetic;  // a synthetic machine in hwloc's notation, "pack:2 numa:1 core:4 pu:1"; empty: this machine
  // Reads a small file of /sys, such as /sys/class/net/eth0/speed; none if the file does not exist.
  std::function<std::optional<std::string>(const std::string& path)> text_of;
};

std::string probe_xml(const ProbeSource& source, Here here);

}  // namespace slip::topo
