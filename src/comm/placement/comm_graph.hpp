// CommGraph: the neighbours of each rank in the rings and trees of a communicator, and the ranks that relay messages to
// other hosts. The algorithms (algorithm.hpp) use it. AllToAllLoads: the load of the busiest link of a cluster in an
// all_to_all, without relays and with relays. The tuning model compares the two.
//
// All functions here depend only on the placement of the ranks, so all ranks compute the same graphs and loads.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slip/topology.hpp"

namespace slip::comm {

// For each sender and receiver on different hosts: the rank of the sender's host that sends the message, and the rank
// of the receiver's host that receives it.
class Relays {
 public:
  Relays() = default;  // no rank relays
  // The relay for the j-th rank of a host is the j-th rank of the sender's host, modulo the number of ranks there. If
  // the j-th rank of each host uses the j-th net, each message stays on one rail (see NetReach). `hosts`: by rank, any
  // number that identifies its host.
  explicit Relays(const std::vector<int>& hosts);

  // The rank of its host that sends the messages of `from` for `to`; `from` if it sends them itself.
  int via(int from, int to) const {
    if (host_.empty() || host_of(from) == host_of(to) || alone_.contains({from, to})) return from;
    return by_[index(host_of(from), to)];
  }
  // The rank of its host that receives the messages for `to`; mostly `to` itself.
  int arrival(int to) const { return arrival_.empty() ? to : arrival_[static_cast<std::size_t>(to)]; }
  // Whether the messages for some rank are received by another rank of its host, which forwards them.
  bool forwards() const { return !arrival_.empty(); }
  // All ranks of its host, itself included. Only these may relay for it.
  std::span<const int> beside(int rank) const { return members_[host_of(rank)]; }
  bool same_host(int a, int b) const { return host_of(a) == host_of(b); }
  bool none() const { return host_.empty(); }

  // Messages from the host of `rank` to `to` go through `relay`.
  void set(int rank, int to, int relay) { by_[index(host_of(rank), to)] = relay; }
  void set_alone(int from, int to) { alone_.insert({from, to}); }  // `from` sends its messages for `to` itself
  void set_arrival(int to, int relay);

 private:
  std::size_t host_of(int rank) const { return host_[static_cast<std::size_t>(rank)]; }
  std::size_t index(std::size_t host, int to) const { return host * host_.size() + static_cast<std::size_t>(to); }

  std::vector<std::size_t> host_;          // by rank; hosts are numbered from 0 in the order of their first ranks
  std::vector<std::vector<int>> members_;  // by host: its ranks, ascending
  std::vector<int> by_;                    // the relay, by host and receiver
  std::set<std::pair<int, int>> alone_;    // sender and receiver
  std::vector<int> arrival_;               // by receiver; empty: each rank itself
};

// A tree whose nodes are positions on the ring, not ranks. The steps of the tree algorithm depend on the levels.
struct LeveledTree : CommTree {
  LeveledTree() = default;
  explicit LeveledTree(CommTree tree);
  std::vector<int> level;  // by position: the number of edges to the root
  int depth = 0;           // the maximum of all levels
};

// The neighbours of all ranks on one channel; the same on all ranks.
struct CommGraph {
  std::vector<int> order;          // ranks in the order of the ring; the ranks of a host are next to each other
  std::vector<int> position;       // of each rank in `order`
  std::vector<LeveledTree> trees;  // of positions; chunk i uses tree i modulo their number
  LeveledTree rooted;              // for collectives with a root: of positions relative to the root's position
  Relays relays;
  std::vector<int> nets;  // by node of the cluster: the net of this channel, see CommChannel; empty: not known
  static CommGraph of(std::vector<int> order);
};

// The ranks of each host, by its number in `hosts`.
std::map<int, std::vector<int>> members_of(const std::vector<int>& hosts);

// Graphs for ranks of which only the hosts are known. `hosts`: by rank, any number that identifies its host. The ring
// of each channel visits one host after the other. Each channel begins with another rank of a host, so that all ranks
// of the host take part in the traffic between hosts. On a single host every second ring runs backwards.
std::vector<CommGraph> comm_graphs(const std::vector<int>& hosts, int channels);

// The rings and trees of `plan`. If the plan has fewer channels than `channels`, several channels use the same.
std::vector<CommGraph> comm_graphs(const Cluster& cluster, const ChannelPlan& plan, int channels);

// The ring and the trees of one channel. CommChannel's trees are of ranks, those of CommGraph of positions.
CommGraph comm_graph(const CommChannel& channel);
// The same with the reducing switch of the network as one more rank: it is the root of the only tree.
CommGraph switch_comm_graph(const CommChannel& channel);

// The relays of the routes that rail_routes() finds.
Relays relays_of(const Cluster& cluster);

// Which nets of other machines a net reaches: all, or only those with its number (a rail). On rails, a message leaves
// its machine through the net that has the same number as the receiver's net.
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

  static AllToAllLoads of(const Cluster& cluster, const Relays& relays, NetReach reach = NetReach::kAll);
};

// A hash of all rings, nets, trees and relays. Ranks compare it to check that they agree.
std::uint64_t digest(const std::vector<CommGraph>& graphs);

// One line for each ring and each tree.
std::string rings_text(const std::vector<CommGraph>& graphs);

}  // namespace slip::comm
