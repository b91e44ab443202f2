#include "comm/placement/comm_graph.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "base/hash.hpp"
#include "topo/fabric.hpp"
#include "topo/trees.hpp"

namespace slip::comm {
namespace {

// The same tree, with positions on the ring in place of ranks.
CommTree in_positions(const CommTree& of_ranks, const std::vector<int>& position) {
  CommTree tree;
  tree.parent.resize(of_ranks.parent.size());
  tree.children.resize(of_ranks.parent.size());
  for (std::size_t rank = 0; rank < of_ranks.parent.size(); ++rank) {
    const auto own = static_cast<std::size_t>(position[rank]);
    const int parent = of_ranks.parent[rank];
    tree.parent[own] = parent < 0 ? kNoRank : position[static_cast<std::size_t>(parent)];
    for (const int child : of_ranks.children[rank])
      tree.children[own].push_back(position[static_cast<std::size_t>(child)]);
  }
  return tree;
}

// " 0>2 2>3 3 is the root": each rank and its parent.
std::string tree_text(const CommGraph& graph, const CommTree& tree) {
  std::string text;
  for (std::size_t own = 0; own < tree.parent.size(); ++own) {
    const int parent = tree.parent[own];
    text += parent == kNoRank ? fmt::format(" {} is the root", graph.order[own])
                              : fmt::format(" {}>{}", graph.order[own], graph.order[static_cast<std::size_t>(parent)]);
  }
  return text;
}

// --- The links in an all_to_all ---

using topo::Fabric;
using topo::LinkLoads;

// The nearest net of each rank, and the index of the rank among the ranks of its machine. The constructor looks them
// up, because an all_to_all needs them for each pair of ranks.
class RankNets {
 public:
  RankNets(const Fabric& fabric, NetReach reach) : fabric_(fabric), reach_(reach) {
    for (int rank = 0; rank < fabric.ranks(); ++rank) {
      const int node = fabric.node_of(rank);
      const std::vector<int>& ranks = fabric.ranks_of(node);
      number_.push_back(static_cast<std::size_t>(std::ranges::find(ranks, rank) - ranks.begin()));
      max_ranks_ = std::max(max_ranks_, ranks.size());
      max_nets_ = std::max(max_nets_, fabric.system(node).nets.size());
      net_.push_back(topo::nearest_net(fabric.system(node), fabric.paths(node), fabric.device_of(rank),
                                       fabric.place_of(rank).device));
    }
  }

  const Fabric& fabric() const { return fabric_; }
  std::size_t number(int rank) const { return number_[static_cast<std::size_t>(rank)]; }  // its index on its machine
  int in_net(int rank) const { return net_[static_cast<std::size_t>(rank)]; }
  int out_net(int from, int to) const {
    if (reach_ == NetReach::kAll) return in_net(from);
    return in_net(to) % static_cast<int>(fabric_.system(fabric_.node_of(from)).nets.size());
  }
  std::size_t max_ranks() const { return max_ranks_; }
  std::size_t max_nets() const { return max_nets_; }

 private:
  const Fabric& fabric_;
  const NetReach reach_;
  std::vector<std::size_t> number_;
  std::vector<int> net_;  // by rank: the nearest net, an index into TopoSystem::nets
  std::size_t max_ranks_ = 0, max_nets_ = 0;
};

// Counts the blocks that the ranks send in one step of an all_to_all.
class Step {
 public:
  explicit Step(const RankNets& nets)
      : nets_(nets),
        within_(ranks() * nets.max_ranks()),
        out_(ranks() * nets.max_nets()),
        in_(ranks() * nets.max_nets()) {}

  void add(int from, int to) {
    if (from == to) return;
    if (nets_.fabric().node_of(from) == nets_.fabric().node_of(to)) {
      ++within_[static_cast<std::size_t>(from) * nets_.max_ranks() + nets_.number(to)];
      return;
    }
    ++out_[by_net(from, nets_.out_net(from, to))];
    ++in_[by_net(to, nets_.in_net(to))];
  }

  // Returns the load of the busiest link, in the unit of AllToAllLoads. 0: the step uses no link.
  double load() const {
    const Fabric& fabric = nets_.fabric();
    LinkLoads loads(fabric);
    for (int rank = 0; rank < fabric.ranks(); ++rank) {
      const std::vector<int>& beside = fabric.ranks_of(fabric.node_of(rank));
      for (std::size_t i = 0; i < beside.size(); ++i) {
        const double blocks = within_[static_cast<std::size_t>(rank) * nets_.max_ranks() + i];
        if (blocks > 0) loads.send(rank, beside[i], {}, blocks);
      }
      const auto nets = static_cast<int>(fabric.system(fabric.node_of(rank)).nets.size());
      for (int net = 0; net < nets; ++net) {
        if (const double blocks = out_[by_net(rank, net)]; blocks > 0) loads.send_out(rank, net, blocks);
        if (const double blocks = in_[by_net(rank, net)]; blocks > 0) loads.send_in(rank, net, blocks);
      }
    }
    constexpr double kNoLimit = std::numeric_limits<double>::infinity();
    const double gbps = loads.gbps(kNoLimit);  // the minimum of bandwidth / blocks over all links
    return gbps == kNoLimit ? 0 : 1 / gbps;
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(nets_.fabric().ranks()); }
  std::size_t by_net(int rank, int net) const {
    return static_cast<std::size_t>(rank) * nets_.max_nets() + static_cast<std::size_t>(net);
  }

  const RankNets& nets_;
  // Numbers of blocks.
  std::vector<double> within_;    // on one machine: by sender, and by number() of the receiver
  std::vector<double> out_, in_;  // to and from other machines: by rank and net
};

}  // namespace

Relays::Relays(const std::vector<int>& hosts) {
  std::map<int, std::size_t> known;
  std::vector<std::size_t> number;  // by rank: its number among the ranks of its host
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto [host, fresh] = known.try_emplace(hosts[rank], known.size());
    if (fresh) members_.emplace_back();
    host_.push_back(host->second);
    number.push_back(members_[host->second].size());
    members_[host->second].push_back(static_cast<int>(rank));
  }
  for (const std::vector<int>& own : members_) {
    for (const std::size_t receiver : number) by_.push_back(own[receiver % own.size()]);
  }
}

void Relays::set_arrival(int to, int relay) {
  if (arrival(to) == relay) return;
  if (arrival_.empty()) {
    for (std::size_t rank = 0; rank < host_.size(); ++rank) arrival_.push_back(static_cast<int>(rank));
  }
  arrival_[static_cast<std::size_t>(to)] = relay;
}

LeveledTree::LeveledTree(CommTree tree) : CommTree(std::move(tree)) {
  for (std::size_t at = 0; at < parent.size(); ++at) {
    level.push_back(topo::depth_of(parent, at));
    depth = std::max(depth, level.back());
  }
}

CommGraph CommGraph::of(std::vector<int> order) {
  CommGraph result;
  const auto count = static_cast<int>(order.size());
  result.position.resize(order.size());
  for (int i = 0; i < count; ++i) result.position[static_cast<std::size_t>(order[static_cast<std::size_t>(i)])] = i;
  result.order = std::move(order);
  for (std::vector<int>& parents : topo::double_binary_parents(count))
    result.trees.emplace_back(topo::tree_of(std::move(parents)));
  result.rooted = LeveledTree(topo::tree_of(topo::heap_parents(count)));
  return result;
}

std::map<int, std::vector<int>> members_of(const std::vector<int>& hosts) {
  std::map<int, std::vector<int>> members;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) members[hosts[rank]].push_back(static_cast<int>(rank));
  return members;
}

std::vector<CommGraph> comm_graphs(const std::vector<int>& hosts, int channels) {
  const std::map<int, std::vector<int>> members = members_of(hosts);
  std::vector<CommGraph> result;
  for (int channel = 0; channel < channels; ++channel) {
    std::vector<int> order;
    for (const auto& [host, ranks] : members) {
      for (std::size_t i = 0; i < ranks.size(); ++i)
        order.push_back(ranks[(i + static_cast<std::size_t>(channel)) % ranks.size()]);
    }
    if (members.size() == 1 && channel % 2 == 1) std::reverse(order.begin(), order.end());
    result.push_back(CommGraph::of(std::move(order)));
  }
  result.front().relays = Relays(hosts);  // the relay algorithm uses only channel 0
  return result;
}

std::vector<CommGraph> comm_graphs(const Cluster& cluster, const ChannelPlan& plan, int channels) {
  std::vector<CommGraph> result;
  for (int channel = 0; channel < channels; ++channel)
    result.push_back(comm_graph(plan.channels[static_cast<std::size_t>(channel) % plan.channels.size()]));
  result.front().relays = relays_of(cluster);
  return result;
}

CommGraph comm_graph(const CommChannel& channel) {
  CommGraph graph = CommGraph::of(channel.ring);
  graph.nets = channel.nets;
  if (channel.trees.empty()) return graph;
  graph.trees.clear();
  for (const CommTree& tree : channel.trees) graph.trees.emplace_back(in_positions(tree, graph.position));
  return graph;
}

CommGraph switch_comm_graph(const CommChannel& channel) {
  std::vector<int> order = channel.ring;
  const auto root = static_cast<int>(order.size());
  order.push_back(root);
  CommGraph graph = CommGraph::of(order);
  CommTree tree = channel.switch_tree;
  tree.children.emplace_back();
  for (std::size_t rank = 0; rank < tree.parent.size(); ++rank) {
    if (tree.parent[rank] != kSwitchRank) continue;
    tree.parent[rank] = root;
    tree.children.back().push_back(static_cast<int>(rank));
  }
  tree.parent.push_back(kNoRank);
  graph.trees = {LeveledTree(in_positions(tree, graph.position))};
  return graph;
}

Relays relays_of(const Cluster& cluster) {
  std::vector<int> hosts;
  for (const RankPlace& place : cluster.ranks) hosts.push_back(place.node);
  const std::set<int> distinct_hosts(hosts.begin(), hosts.end());
  Relays relays(hosts);
  if (distinct_hosts.size() < 2) return relays;
  for (const int node : distinct_hosts) {
    for (const RailRoute& route : rail_routes(cluster, node)) {
      if (route.senders == std::vector{route.relay}) relays.set_alone(route.relay, route.to);
      else relays.set(route.relay, route.to, route.relay);
      relays.set_arrival(route.to, route.arrival);
    }
  }
  return relays;
}

AllToAllLoads AllToAllLoads::of(const Cluster& cluster, const Relays& relays, NetReach reach) {
  const Fabric fabric(cluster, {}, reach == NetReach::kAll);
  const RankNets nets(fabric, reach);
  Step direct(nets), handed_over(nets), between(nets), handed_on(nets);
  for (int from = 0; from < fabric.ranks(); ++from) {
    for (int to = 0; to < fabric.ranks(); ++to) {
      direct.add(from, to);
      if (fabric.node_of(from) == fabric.node_of(to)) {
        between.add(from, to);
        continue;
      }
      const int relay = relays.via(from, to), arrival = relays.arrival(to);
      handed_over.add(from, relay);
      between.add(relay, arrival);
      handed_on.add(arrival, to);
    }
  }
  return {direct.load(), handed_over.load(), between.load(), handed_on.load()};
}

std::uint64_t digest(const std::vector<CommGraph>& graphs) {
  base::Hash hash;
  for (const CommGraph& one : graphs) {
    for (const int rank : one.order) hash.add(rank);
    for (const int net : one.nets) hash.add(net);
    for (const CommTree& tree : one.trees) {
      for (const int parent : tree.parent) hash.add(parent);
    }
    const auto nranks = static_cast<int>(one.order.size());
    for (int from = 0; from < nranks && !one.relays.none(); ++from) {
      hash.add(one.relays.arrival(from));
      for (int to = 0; to < nranks; ++to) hash.add(one.relays.via(from, to));
    }
  }
  return hash.value();
}

std::string rings_text(const std::vector<CommGraph>& graphs) {
  std::string text;
  for (std::size_t channel = 0; channel < graphs.size(); ++channel) {
    const CommGraph& one = graphs[channel];
    text += fmt::format("  channel {}: ring {}\n", channel, fmt::join(one.order, " "));
    for (const CommTree& tree : one.trees) text += fmt::format("    tree{}\n", tree_text(one, tree));
  }
  return text;
}

}  // namespace slip::comm
