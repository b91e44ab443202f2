// Places: where the ranks of a communicator are, as all of them tell each other at init: on which host, with which
// cores, on which device of which machine. From that follow the rings, trees and relays (formations.hpp), the same on
// every rank.
//
// What always travels is a few words a rank. A machine's topology counts where a file is named for it, or where its
// ranks are bound to several NUMA nodes: then the first rank of the host reads or probes it, all hear of it before
// anything else travels, and each document that differs from the others is passed on once.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/cores.hpp"
#include "comm/api/options.hpp"
#include "comm/placement/formations.hpp"
#include "slip/topology.hpp"

namespace slip {

// What a rank says of itself.
struct Presence {
  CoreSet cores;
  std::uint64_t file = 0;    // a hash of the name of its host's topology file; 0: none is given
  std::int32_t device = -1;  // of that file; -1: by its number on the host
  std::int32_t numa = -1;    // the NUMA node that has all its cores; -1: several do, or there is one only
  char file_name[104] = {};  // its end, for errors

  // `stood_for`: the device in the communicator that this one is made from; -1: none.
  static Presence own(const CommunicatorOptions& options, int stood_for);
};

struct Places {
  std::vector<int> hosts;  // by rank: the first rank of its host
  std::vector<Presence> ranks;
  std::optional<Cluster> cluster;    // nodes are the hosts; nothing: only which host a rank is on counts
  std::vector<std::string> reasons;  // by host, in order: why its topology counts, or does not

  int device_of(int rank) const;  // in its host's file; -1: there is none
};

// The number of each rank's host: ranks of one can share memory.
std::vector<int> hosts_of(const std::vector<Placement>& placements, const std::vector<Wishes>& wishes);

// All ranks call it. Throws on all of them what is wrong with a file, or with who says what.
Places find_places(Bootstrap& bootstrap, std::vector<int> hosts, const Presence& own, const std::string& file,
                   Here here);

// All ranks call it, and get the rings, trees and relays that they agree on.
std::vector<Formation> agree_on_formations(Bootstrap& bootstrap, const Places& places, int channels, Here here);
// All ranks call it. Throws on all of them, with both results, if one has found something else than the others.
void require_agreement(Bootstrap& bootstrap, const std::vector<Formation>& own, Here here);

// Of a machine about which nothing is known: one CPU with a port.
TopoSystem plain_machine();
// The machine with its NUMA nodes as the devices.
TopoSystem by_numa_nodes(TopoSystem system);

// For SLIP_DEBUG=topo, lines: who is where, and why; and who passes on to whom between hosts. In places_text.cpp.
std::string places_text(const Places& places, const std::vector<Placement>& placements);
std::string relays_text(const Places& places, const Relays& relays);

}  // namespace slip
