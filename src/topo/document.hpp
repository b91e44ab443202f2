// Changes of a topology document before parse_topology() builds its graph.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "slip/topology.hpp"
#include "topo/xml.hpp"

namespace slip::topo {

// One document for each host: the CPUs with the same host_hash. They lose it, so that equal hosts have equal documents.
// A document of one host is returned as it is.
std::vector<XmlElement> hosts_of(const XmlElement& root);

// A large PCI switch of Broadcom reports several switches inside itself. The links between these are no bottleneck, so
// this function moves their devices to the outermost switch, as NCCL does.
XmlElement flattened(const XmlElement& root);

// A document may describe several hosts: one machine for each, in the order of the document.
std::vector<TopoSystem> parse_topologies(std::string_view xml, const std::string& name, Here here = Here::at());

// Adds this number of NVLinks to an NVSwitch to each GPU that has no NVLink. Also adds the compute capability, and the
// element <gpu> itself, where the document leaves them out. Returns the number of GPUs that were changed.
int add_nvswitch(XmlElement& root, int links, int sm);

// The machine after add_nvswitch(). Throws kInvalidValue if no GPU is changed.
TopoSystem with_nvswitch(const TopoSystem& system, int links, int sm, Here here = Here::at());

// Facts of a topology document that the graph of the machine does not have: about its GPUs, its NICs, and the elements
// that the reader ignored.

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
