// plan_channels(): the rings and trees of each channel. The ring search finds the rings. The trees use the order of the
// rings, and their rate is computed from the load that they put on each link.
#include <algorithm>

#include "base/fail.hpp"
#include "slip/topology.hpp"
#include "topo/fabric.hpp"
#include "topo/fold.hpp"
#include "topo/rings.hpp"
#include "topo/trees.hpp"

namespace slip {
namespace {

using topo::Fabric;
using topo::LinkLoads;

// A binary tree has fewer hops than a chain. It is chosen if it reaches at least this share of the chain's rate.
constexpr double kMinBinaryShare = 0.9;

topo::RingSet search(const Fabric& fabric, const ChannelLimits& limits, Here here) {
  const bool several = fabric.used_nodes().size() > 1;
  std::vector<topo::RingMembers> machines;
  for (const int node : fabric.used_nodes()) {
    topo::RingMembers members{&fabric.system(node), &fabric.paths(node), {}, several};
    for (const int rank : fabric.ranks_of(node)) members.nodes.push_back(fabric.device_of(rank));
    if (several && members.system->nets.empty())
      base::fail(ErrorCode::kInvalidValue, here,
                 "node {} ('{}') has no net, and {} nodes must reach each other: add <nic><net .../></nic> "
                 "to its <cpu>",
                 node, members.system->name, fabric.used_nodes().size());
    machines.push_back(std::move(members));
  }
  topo::RingSet rings = topo::search_rings(machines, limits);
  if (rings.segments.empty())
    base::fail(ErrorCode::kInvalidValue, here,
               "no ring connects the {} ranks: some of their devices have no path to each other", fabric.ranks());
  // Ranks that all share one device use no link, so more channels are not faster.
  const bool local = rings.within == TopoPathType::kLoc && !several;
  if (local) rings.segments.front().resize(1);
  return rings;
}

// By machine (Fabric::used_nodes): its ranks, in the order of the channel's ring.
using Orders = std::vector<std::vector<int>>;

Orders orders_of(const Fabric& fabric, const topo::RingSet& rings, std::size_t channel) {
  Orders orders;
  for (std::size_t m = 0; m < rings.segments.size(); ++m) {
    std::vector<int>& order = orders.emplace_back();
    const std::vector<int>& ranks = fabric.ranks_of(fabric.used_nodes()[m]);
    for (const int member : rings.segments[m][channel].order) order.push_back(ranks[static_cast<std::size_t>(member)]);
  }
  return orders;
}

// `places`: for each position in `order`, the position of the parent. `parent`: by rank.
void set_parents(const std::vector<int>& order, const std::vector<int>& places, std::vector<int>& parent) {
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (places[i] != kNoRank) parent[static_cast<std::size_t>(order[i])] = order[static_cast<std::size_t>(places[i])];
  }
}

// The parent of each rank within its machine. The first rank of a machine's order is its root: the ring enters the
// machine there, so this rank is near the net.
std::vector<int> parents_within(const Fabric& fabric, const Orders& orders, TreeShape shape) {
  std::vector<int> parent(static_cast<std::size_t>(fabric.ranks()), kNoRank);
  for (const std::vector<int>& order : orders) {
    const auto count = static_cast<int>(order.size());
    set_parents(order, topo::heap_parents(count, shape == TreeShape::kChain ? 1 : 2), parent);
  }
  return parent;
}

// One machine: a chain, or a double binary tree. Several machines: a double binary tree of the machines, whose nodes
// are the trees within the machines.
std::vector<CommTree> trees_of(const Fabric& fabric, const Orders& orders, TreeShape shape) {
  const std::vector<int> within = parents_within(fabric, orders, shape);
  if (orders.size() == 1 && shape == TreeShape::kChain) return {topo::tree_of(within)};
  std::vector<CommTree> trees;
  if (orders.size() == 1) {
    for (const std::vector<int>& places : topo::double_binary_parents(static_cast<int>(orders[0].size()))) {
      std::vector<int> parent(within.size(), kNoRank);
      set_parents(orders[0], places, parent);
      trees.push_back(topo::tree_of(std::move(parent)));
    }
    return trees;
  }
  for (const std::vector<int>& places : topo::double_binary_parents(static_cast<int>(orders.size()))) {
    std::vector<int> parent = within;
    std::vector<std::size_t> taken(orders.size(), 0);
    for (std::size_t m = 0; m < orders.size(); ++m) {
      if (places[m] == kNoRank) continue;
      // The second child machine is attached to the second rank, so that two devices share the traffic of the net.
      const auto up = static_cast<std::size_t>(places[m]);
      const std::size_t at = std::min(taken[up]++, orders[up].size() - 1);
      parent[static_cast<std::size_t>(orders[m].front())] = orders[up][at];
    }
    trees.push_back(topo::tree_of(std::move(parent)));
  }
  return trees;
}

double tree_rate(const Fabric& fabric, const std::vector<CommChannel>& channels, double max_gbps) {
  LinkLoads loads(fabric);
  for (const CommChannel& channel : channels) {
    const double share = 1.0 / static_cast<double>(channels.size() * channel.trees.size());
    for (const CommTree& tree : channel.trees) {
      for (std::size_t rank = 0; rank < tree.parent.size(); ++rank) {
        if (tree.parent[rank] < 0) continue;
        loads.send(static_cast<int>(rank), tree.parent[rank], channel.nets, share);  // reduces
        loads.send(tree.parent[rank], static_cast<int>(rank), channel.nets, share);  // broadcasts
      }
    }
  }
  return loads.gbps(max_gbps);
}

double switch_rate(const Fabric& fabric, const std::vector<CommChannel>& channels, double max_gbps) {
  LinkLoads loads(fabric);
  const double share = 1.0 / static_cast<double>(channels.size());
  for (const CommChannel& channel : channels) {
    for (int rank = 0; rank < fabric.ranks(); ++rank) {
      const int up = channel.switch_tree.parent[static_cast<std::size_t>(rank)];
      if (up == kSwitchRank) {
        const int net = channel.nets[static_cast<std::size_t>(fabric.node_of(rank))];
        loads.send_out(rank, net, share);
        loads.send_in(rank, net, share);
      } else {
        loads.send(rank, up, channel.nets, share);
        loads.send(up, rank, channel.nets, share);
      }
    }
  }
  return loads.gbps(max_gbps);
}

// Builds the trees of all channels in this shape and returns their rate in GB/s.
double build_trees(const Fabric& fabric, const std::vector<Orders>& orders, TreeShape shape, double max_gbps,
                   std::vector<CommChannel>& channels) {
  for (std::size_t c = 0; c < channels.size(); ++c) channels[c].trees = trees_of(fabric, orders[c], shape);
  return tree_rate(fabric, channels, max_gbps);
}

CommChannel channel_of(const Fabric& fabric, const topo::RingSet& rings, const Orders& orders, std::size_t number) {
  CommChannel channel;
  for (const std::vector<int>& order : orders) channel.ring.insert(channel.ring.end(), order.begin(), order.end());
  if (orders.size() == 1) return channel;
  channel.nets.assign(static_cast<std::size_t>(fabric.used_nodes().back()) + 1, -1);
  channel.nets_out = channel.nets;
  for (std::size_t m = 0; m < orders.size(); ++m) {
    const auto node = static_cast<std::size_t>(fabric.used_nodes()[m]);
    channel.nets[node] = rings.segments[m][number].net;
    channel.nets_out[node] = rings.segments[m][number].out;
  }
  std::vector<int> parent = parents_within(fabric, orders, TreeShape::kChain);
  for (const std::vector<int>& order : orders) parent[static_cast<std::size_t>(order.front())] = kSwitchRank;
  channel.switch_tree = topo::tree_of(std::move(parent));
  return channel;
}

}  // namespace

ChannelPlan plan_channels(const Cluster& cluster, const ChannelLimits& limits, Here here) {
  if (limits.max_channels < 1 || limits.max_channels > 64 || !(limits.max_gbps > 0))
    base::fail(ErrorCode::kInvalidValue, here,
               "{} channels of at most {} GB/s each: 1 to 64 channels are possible, and the rate must be more than 0",
               limits.max_channels, limits.max_gbps);
  const Fabric fabric(cluster, here);
  const topo::RingSet rings = search(fabric, limits, here);
  ChannelPlan plan;
  plan.within = rings.within;
  plan.between = rings.between;
  std::vector<Orders> orders;
  for (std::size_t c = 0; c < rings.segments.front().size(); ++c) {
    orders.push_back(orders_of(fabric, rings, c));
    plan.channels.push_back(channel_of(fabric, rings, orders.back(), c));
  }
  const auto channels = static_cast<double>(plan.channels.size());
  const double max_gbps = channels * limits.max_gbps;
  plan.ring_gbps = channels * static_cast<double>(rings.rate) / topo::kRatesInGbps;
  const double chain = build_trees(fabric, orders, TreeShape::kChain, max_gbps, plan.channels);
  std::vector<CommChannel> other = plan.channels;
  const double binary = build_trees(fabric, orders, TreeShape::kBinary, max_gbps, other);
  plan.tree_gbps = chain;
  if (binary >= kMinBinaryShare * chain) {
    plan.channels = std::move(other);
    plan.shape = TreeShape::kBinary;
    plan.tree_gbps = binary;
  }
  if (fabric.used_nodes().size() > 1) plan.switch_gbps = switch_rate(fabric, plan.channels, max_gbps);
  return plan;
}

Cluster cluster_of(const TopoSystem& system, int nodes) { return topo::repeated({system}, nodes); }

}  // namespace slip
