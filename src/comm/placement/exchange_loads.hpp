// AllToAllLoads: how much the busiest link of a cluster carries in an all_to_all, directly and through relays. The
// tuning model compares the two. A pure function of the placement of the ranks, so all ranks get the same numbers.
#pragma once

#include "comm/placement/comm_graph.hpp"
#include "slip/topology.hpp"

namespace slip::comm {

// Which nets of other machines a net reaches: all, or only those with its number (a rail). On rails, a message leaves
// its machine through the net with the number of the receiver's.
enum class NetReach { kAll, kSameNumber };

// Loads in blocks per GB/s: how many blocks cross a link, divided by the rate of the link, for the link with the
// largest quotient. A block of B bytes takes load * B / 1000 microseconds there. 0: no link is used, or no topology is
// known.
struct AllToAllLoads {
  double direct = 0;  // each rank sends its blocks itself, over its nearest net
  // Through relays. The three steps of the relay algorithm follow each other, so their times add up.
  double handed_over = 0;  // from the ranks of a host to their relays
  double between = 0;      // from the relays to the receiving ranks; also the blocks between ranks of one host
  double handed_on = 0;    // from ranks that receive for others of their host

  bool known() const { return direct > 0; }
  static AllToAllLoads of(const Cluster& cluster, const Relays& relays, NetReach reach = NetReach::kAll);
};

}  // namespace slip::comm
