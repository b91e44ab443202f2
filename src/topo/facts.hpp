// Facts of a topology document that the graph of the machine does not have: about its GPUs, its NICs, and the elements
// that the reader ignored.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "slip/topology.hpp"

namespace slip::topo {

struct MachineFacts {
  std::vector<std::string> gpu_archs;  // of AMD's GPUs: "gfx942"
  std::vector<int> nic_vendors;        // PCI vendors; without those that the document leaves out
  double net_latency_us = 0;           // the maximum of those that a <net> states; 0: none states one
};
MachineFacts facts_of(const TopoSystem& system, Here here = Here::at());

// Warnings about parts that the reader ignores or assumes: in a document, with its lines, and in a machine.
std::vector<std::string> document_warnings(std::string_view xml, const std::string& name, Here here = Here::at());
std::vector<std::string> machine_warnings(const TopoSystem& system);

}  // namespace slip::topo
