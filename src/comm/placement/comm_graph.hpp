// CommGraph: the neighbours of each rank in the rings and trees of a communicator, and the ranks that relay messages to
// other hosts. All functions are pure functions of where the ranks run, so all ranks compute the same graph.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "slip/topology.hpp"

namespace slip {

// Which rank of its own host a rank sends through to reach a rank of another host, and which rank of the receiver's
// host takes the message there.
class Relays {
 public:
  Relays() = default;  // nobody relays
  // Along the rails: rank j of a host is reached through rank j of the sender's, counted round. `hosts`: by rank, any
  // numbers.
  explicit Relays(const std::vector<int>& hosts);

  // The rank that passes on what `from` has for `to`, or `from`.
  int via(int from, int to) const {
    if (host_.empty() || host_of(from) == host_of(to) || alone_.contains({from, to})) return from;
    return by_[index(host_of(from), to)];
  }
  // The rank of its host that takes what others have for it, and hands it on; mostly itself.
  int arrival(int to) const { return arrival_.empty() ? to : arrival_[static_cast<std::size_t>(to)]; }
  bool hands_on() const { return !arrival_.empty(); }  // somebody is not reached directly
  // The ranks of its host, which alone may relay for it.
  std::span<const int> beside(int rank) const { return members_[host_of(rank)]; }
  bool same_host(int a, int b) const { return host_of(a) == host_of(b); }
  bool none() const { return host_.empty(); }

  // From the host of `rank` to `to`: through this one.
  void set(int rank, int to, int relay) { by_[index(host_of(rank), to)] = relay; }
  void set_alone(int from, int to) { alone_.insert({from, to}); }  // which does not hand over
  void set_arrival(int to, int relay);

 private:
  std::size_t host_of(int rank) const { return host_[static_cast<std::size_t>(rank)]; }
  std::size_t index(std::size_t host, int to) const { return host * host_.size() + static_cast<std::size_t>(to); }

  std::vector<std::size_t> host_;          // by rank, counted from 0
  std::vector<std::vector<int>> members_;  // by host, in order
  std::vector<int> by_;                    // by host and receiver
  std::set<std::pair<int, int>> alone_;
  std::vector<int> arrival_;  // by receiver; empty: each itself
};

// Who is whose neighbour; the same on all ranks.
struct CommGraph {
  std::vector<int> order;       // the ring: ranks of one host are next to each other
  std::vector<int> position;    // of each rank in it
  std::vector<CommTree> trees;  // of positions; each carries half of the chunks
  CommTree rooted;              // of positions as counted from the root on
  Relays relays;
  static CommGraph of(std::vector<int> order);
};

// Where nothing but the hosts is known: a ring for each channel, host by host. In each the ranks of a host are counted
// from another one on, so that all of them lead to other hosts in turn; on one host every second goes the other way
// round. `hosts`: by rank, any numbers.
std::vector<CommGraph> comm_graphs(const std::vector<int>& hosts, int channels);

// As the search found them; where it found fewer channels they are used again.
std::vector<CommGraph> comm_graphs(const Cluster& cluster, const ChannelPlan& plan, int channels);

// A channel's ring, and its trees, which are of ranks there and of positions here.
CommGraph comm_graph(const Channel& channel);
// The same with the switch of its tree as one more rank, the root.
CommGraph switch_comm_graph(const Channel& channel);

// As the topology's routes along the rails say.
Relays relays_of(const Cluster& cluster);

// A number that differs if anything in them does.
std::uint64_t digest(const std::vector<CommGraph>& graphs);

// Rings and trees, a line each.
std::string rings_text(const std::vector<CommGraph>& graphs);

}  // namespace slip
