// Topology documents in NCCL's XML format: functions that probe a machine, separate the hosts of a document, and change
// a machine. parse_topology() builds the graph of a machine from its document. Predictions for a changed machine show
// the effect of the change.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "slip/topology.hpp"
#include "topo/xml.hpp"

namespace slip::topo {

struct ProbeSource {
  std::string synthetic;  // a synthetic machine in hwloc's notation, "pack:2 numa:1 core:4 pu:1"; empty: this machine
  // Reads a small file of /sys, such as /sys/class/net/eth0/speed; none if the file does not exist.
  std::function<std::optional<std::string>(const std::string& path)> text_of;
};

// Describes a machine as a document: NUMA nodes, shared caches, cores, and the PCI tree with GPUs and NICs (probe.cpp).
std::string probe_xml(const ProbeSource& source, Here here);

// Returns one document for each host: the CPUs with the same host_hash. This attribute is removed, so that equal hosts
// have equal documents. A document of one host is returned unchanged.
std::vector<XmlElement> hosts_of(const XmlElement& root);

// A large PCI switch of Broadcom appears as several nested switches. The links between them are no bottleneck, so this
// function moves their devices to the outermost switch, as NCCL does.
XmlElement flattened(const XmlElement& root);

// Returns one machine for each host that the document describes, in the order of the document.
std::vector<TopoSystem> parse_topologies(std::string_view xml, const std::string& name, Here here = Here::at());

// Connects each GPU that has no NVLink to an NVSwitch, with `links` NVLinks. Where the document leaves out the element
// <gpu> or its compute capability, adds the element or `sm`. Returns the number of GPUs that were changed.
int add_nvswitch(XmlElement& root, int links, int sm);

// The machine after add_nvswitch(). Throws kInvalidValue if no GPU is changed.
TopoSystem with_nvswitch(const TopoSystem& system, int links, int sm, Here here = Here::at());

// Changes of a machine: one of its parts is broken or slow.
//
// A part is "nic:2" (a NIC by the number that `slip topo` shows), "net:3" (a port by its device number), or a link:
// "link:PCI0" is the link from PCI switch 0 towards its CPU, "link:GPU0-NVS" the link between GPU 0 and the NVSwitch.

// The machine without the part. Throws kInvalidValue if it has no such part; the error lists the parts that it has.
TopoSystem without_part(TopoSystem system, std::string_view part, Here here = Here::at());
// The machine with the part at this share of its rate: more than 0 and less than 1.
TopoSystem with_slow_part(TopoSystem system, std::string_view part, double share, Here here = Here::at());

// Facts of a topology document that the graph of the machine does not have: about its GPUs, its NICs, and the elements
// that the reader ignored.

struct MachineFacts {
  std::vector<std::string> gpu_archs;  // of AMD's GPUs: "gfx942"
  std::vector<int> nic_vendors;        // PCI vendor ids of the NICs whose vendor the document gives
  double net_latency_us = 0;           // the maximum latency of all <net>; 0: no <net> gives one
};
MachineFacts facts_of(const TopoSystem& system, Here here = Here::at());

// Warnings about what the reader ignores or assumes: in a document, with line numbers, and in a machine.
std::vector<std::string> document_warnings(std::string_view xml, const std::string& name, Here here = Here::at());
std::vector<std::string> machine_warnings(const TopoSystem& system);

}  // namespace slip::topo
