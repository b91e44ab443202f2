// RankPlacement: the host, the cores and the topology device of each rank of a communicator. The ranks exchange their
// locations when the communicator is created. From the placement, every rank computes the same rings, trees and relays
// (CommGraph).
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
  std::int32_t device = -1;  // the rank's device in that file; -1: its index among the ranks of the host
  std::int32_t numa = -1;    // the NUMA node of all its cores; -1: they are on several nodes, or the host has only one
  char file_name[104] = {};  // the name or its end, for errors

  // `inherited_device`: the rank's device in the communicator that this one was made from; -1: none.
  static RankLocation own(const CommunicatorOptions& options, int inherited_device);
};

struct RankPlacement {
  std::vector<int> hosts;  // by rank: the first rank of its host
  std::vector<RankLocation> ranks;
  std::optional<Cluster> cluster;    // its nodes are the hosts, ordered by first rank; none: no topology is used
  std::vector<std::string> reasons;  // in the same order: why the topology of the host is used or not

  int device_of(int rank) const;  // the rank's device in its host's topology file; -1: there is no file
};

// Returns the host of each rank, identified by the first rank there. Ranks of one host can share memory.
std::vector<int> hosts_of(const std::vector<transport::Placement>& placements,
                          const std::vector<RequestedOptions>& requested);

// Collective: all ranks call it. If a topology file is wrong or the ranks of a host name different files, it throws the
// same error on all ranks.
RankPlacement find_rank_placement(transport::Bootstrap& bootstrap, std::vector<int> hosts, const RankLocation& own,
                                  const std::string& file, Here here);

// Collective: all ranks call it and get the same rings, trees and relays, one graph for each channel.
std::vector<CommGraph> agree_on_comm_graphs(transport::Bootstrap& bootstrap, const RankPlacement& placement,
                                            int channels, Here here);
// Collective: if a rank has computed other graphs than rank 0, throws on all ranks. The error shows the beginning of
// both graphs.
void require_agreement(transport::Bootstrap& bootstrap, const std::vector<CommGraph>& own, Here here);

// The NICs of a rank's host, and those that the channels use there. Empty: no topology of the host is used.
TopologyNics topology_nics(const RankPlacement& placement, const std::vector<CommGraph>& graphs, int rank);

// The assumed topology of a host that has none: one CPU with one network interface.
TopoSystem plain_machine();

// Lines for SLIP_DEBUG=topo: the ranks of each host with RankPlacement::reasons, and the relays between hosts.
std::string placement_text(const RankPlacement& placement, const std::vector<transport::Placement>& placements);
std::string relays_text(const RankPlacement& placement, const Relays& relays);

}  // namespace slip::comm
