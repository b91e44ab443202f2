// What a topology document says beyond the graph of the machine: of its GPUs, NICs and elements that were ignored.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "slip/topology.hpp"

namespace slip::topo {

struct MachineFacts {
  std::vector<std::string> gpu_archs;  // of AMD's GPUs: "gfx942"
  std::vector<int> nic_vendors;        // PCI vendors; without those that the document leaves out
  double net_latency_us = 0;           // the largest that a <net> states; 0: none does
};
MachineFacts facts_of(const TopoSystem& system, Here here = Here::at());

// Sentences on what the reader ignores or assumes: of a document, with its lines, and of a machine.
std::vector<std::string> document_warnings(std::string_view xml, const std::string& name, Here here = Here::at());
std::vector<std::string> machine_warnings(const TopoSystem& system);

}  // namespace slip::topo
