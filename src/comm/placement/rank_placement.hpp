// RankPlacement: where the ranks of a communicator run: on which host and cores, and on which device of which machine.
// The ranks exchange it when the communicator is created. Every rank computes the same rings, trees and relays
// (CommGraph) from it.
//
// Each rank always sends a small RankLocation. The topology of a host is used only if a topology file is named for it
// or if its ranks are bound to several NUMA nodes. Then the first rank of the host reads the file or probes the
// machine. The ranks exchange errors first; then each distinct topology document is distributed once.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/thread.hpp"
#include "comm/api/options.hpp"
#include "comm/link/link_rails.hpp"
#include "comm/placement/comm_graph.hpp"
#include "slip/topology.hpp"

namespace slip::comm {

// Where one rank runs. Trivially copyable: ranks send it to each other as bytes.
struct RankLocation {
  base::CoreSet cores;
  std::uint64_t file = 0;    // a hash of the name of its host's topology file; 0: no file
  std::int32_t device = -1;  // its device in that file, if set or inherited; -1: its index among the ranks of the host
  std::int32_t numa = -1;    // the NUMA node of all its cores; -1: they are on several nodes, or the host has only one
  char file_name[104] = {};  // the end of the name, for errors

  // `inherited_device`: the rank's device in the communicator that this one was made from; -1: none.
  static RankLocation own(const CommunicatorOptions& options, int inherited_device);
};

struct RankPlacement {
  std::vector<int> hosts;  // by rank: the first rank of its host
  std::vector<RankLocation> ranks;
  std::optional<Cluster> cluster;    // its nodes are the hosts; none: no topology is used
  std::vector<std::string> reasons;  // by host, in order: why its topology is used or not

  int device_of(int rank) const;  // in its host's topology file; -1: there is no file
};

// The host of each rank, named by its first rank. Ranks of one host can share memory.
std::vector<int> hosts_of(const std::vector<transport::Placement>& placements,
                          const std::vector<RequestedOptions>& requested);

// Collective: all ranks call it. If a topology file is wrong or the ranks of a host name different files, it throws the
// same error on all ranks.
RankPlacement find_rank_placement(transport::Bootstrap& bootstrap, std::vector<int> hosts, const RankLocation& own,
                                  const std::string& file, Here here);

// Collective: all ranks call it and get the same rings, trees and relays, one graph for each channel.
std::vector<CommGraph> agree_on_comm_graphs(transport::Bootstrap& bootstrap, const RankPlacement& placement,
                                            int channels, Here here);
// Collective: if a rank has computed other graphs than rank 0, throws on all ranks. The error shows how both begin.
void require_agreement(transport::Bootstrap& bootstrap, const std::vector<CommGraph>& own, Here here);

// The NICs of a rank's host, and those that the channels use there. Empty: no topology of the host is used.
TopologyNics topology_nics(const RankPlacement& placement, const std::vector<CommGraph>& graphs, int rank);

// The assumed topology of a host that has none: one CPU with one network interface.
TopoSystem plain_machine();

// Lines for SLIP_DEBUG=topo: the ranks of each host with RankPlacement::reasons, and the relays between hosts.
std::string placement_text(const RankPlacement& placement, const std::vector<transport::Placement>& placements);
std::string relays_text(const RankPlacement& placement, const Relays& relays);

}  // namespace slip::comm
