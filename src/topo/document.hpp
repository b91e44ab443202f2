// Changes of a topology document before parse_topology() builds its graph.
#pragma once

#include <vector>

#include "slip/topology.hpp"
#include "topo/xml.hpp"

namespace slip::topo {

// One document for each host: the CPUs with the same host_hash. A document of one host is returned as it is.
std::vector<XmlElement> hosts_of(const XmlElement& root);

// Broadcom's large PCI switches report several switches inside of them, whose links to each other are no limit. Moves
// their devices to the outermost one, as NCCL does.
XmlElement flattened(const XmlElement& root);

// A document may describe several hosts: one machine for each, in the order of the document.
std::vector<TopoSystem> parse_topologies(std::string_view xml, const std::string& name, Here here = Here::at());

// Gives each GPU that has no NVLink this number of NVLinks to an NVSwitch, and the compute capability, if the document
// does not state it. Adds <gpu> where the document leaves it out. Returns the number of GPUs that were changed.
int add_nvswitch(XmlElement& root, int links, int sm);

// The machine after add_nvswitch(). Throws kInvalidValue if no GPU is changed.
TopoSystem with_nvswitch(const TopoSystem& system, int links, int sm, Here here = Here::at());

}  // namespace slip::topo
