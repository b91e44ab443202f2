// This machine as a topology document: NUMA nodes, shared caches, cores, the PCI tree with GPUs and NICs.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "slip/error.hpp"

namespace slip::topo {

struct ProbeSource {
  std::string synthetic;  // a machine as hwloc describes made-up ones, "pack:2 numa:1 core:4 pu:1"; empty: this one
  // The text of a small file of the kernel's, /sys/class/net/eth0/speed; nothing where there is none.
  std::function<std::optional<std::string>(const std::string& path)> text_of;
};

std::string probe_xml(const ProbeSource& source, Here here);

}  // namespace slip::topo
