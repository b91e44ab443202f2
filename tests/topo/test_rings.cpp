// Rings: as good as an exhaustive search on small machines, and valid on random ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "support/errors.hpp"
#include "support/share.hpp"
#include "topo/made_system.hpp"

namespace slip::topo_test::test_rings {
namespace {

constexpr std::uint64_t kSeeds = 60 / test::kShare + 1;
constexpr std::uint64_t kBruteSeeds = 1000 / test::kShare;
constexpr int kFewChannels = 3;

// The load of each link of one machine.
using Load = std::vector<int>;

void add(const TopoPaths& paths, int from, int to, int share, Load& load) {
  for (const int link : paths.between(from, to).links) load[static_cast<std::size_t>(link)] += share;
}

// All rings that one machine can have: closed, or through one of its nets.
std::vector<Load> all_rings(const TopoSystem& system, const TopoPaths& paths, bool through_net) {
  std::vector<Load> result;
  std::vector<int> order = system.devices;
  std::sort(order.begin(), order.end());
  do {
    if (!through_net && order.front() != *std::min_element(order.begin(), order.end())) break;
    Load load(system.links.size(), 0);
    for (std::size_t i = 0; i + 1 < order.size(); ++i) add(paths, order[i], order[i + 1], 1, load);
    if (!through_net) {
      add(paths, order.back(), order.front(), 1, load);
      result.push_back(load);
      continue;
    }
    for (const int net : system.nets) {
      Load whole = load;
      add(paths, net, order.front(), 1, whole);
      add(paths, order.back(), net, 1, whole);
      result.push_back(whole);
    }
  } while (std::next_permutation(order.begin(), order.end()));
  return result;
}

double rate_of(const TopoSystem& system, const Load& load, double most) {
  for (std::size_t link = 0; link < load.size(); ++link) {
    if (load[link] > 0) most = std::min(most, system.links[link].gbps / load[link]);
  }
  return most;
}

// The best total rate of up to kFewChannels rings, by trying all sets of them.
double brute_force(const TopoSystem& system, bool through_net) {
  const TopoPaths paths(system);
  const std::vector<Load> rings = all_rings(system, paths, through_net);
  double best = 0;
  std::function<void(std::size_t, int, const Load&)> choose = [&](std::size_t first, int count, const Load& load) {
    if (count > 0) best = std::max(best, count * rate_of(system, load, ChannelLimits{}.max_gbps));
    for (std::size_t i = first; i < rings.size() && count < kFewChannels; ++i) {
      Load more = load;
      for (std::size_t link = 0; link < more.size(); ++link) more[link] += rings[i][link];
      choose(i, count + 1, more);
    }
  };
  choose(0, 0, Load(system.links.size(), 0));
  return best;
}

TEST(TopoRings, AsGoodAsTheBestOfAllWithinAMachine) {
  for (std::uint64_t seed = 1; seed <= kBruteSeeds; ++seed) {
    const TopoSystem system = parse_topology(random_xml(seed, {5, 1}), "seed");
    if (system.devices.size() < 2) continue;
    const ChannelPlan plan = plan_channels(cluster_of(system, 1), {.max_channels = kFewChannels});
    EXPECT_NEAR(plan.ring_gbps, brute_force(system, false), 0.01) << "seed " << seed << "\n" << system.xml;
  }
}

TEST(TopoRings, AsGoodAsTheBestOfAllBetweenMachines) {
  for (std::uint64_t seed = 1; seed <= kBruteSeeds; ++seed) {
    const TopoSystem system = parse_topology(random_xml(seed, {3, 2}), "seed");
    const ChannelPlan plan = plan_channels(cluster_of(system, 2), {.max_channels = kFewChannels});
    EXPECT_NEAR(plan.ring_gbps, brute_force(system, true), 0.01) << "seed " << seed << "\n" << system.xml;
  }
}

// Adds the load that a message from rank to rank puts on the links of both machines.
void send(const Cluster& cluster, const std::vector<TopoPaths>& paths, const Channel& channel, int from, int to,
          std::vector<Load>& loads) {
  const RankPlace a = cluster.ranks[static_cast<std::size_t>(from)], b = cluster.ranks[static_cast<std::size_t>(to)];
  const auto na = static_cast<std::size_t>(a.node), nb = static_cast<std::size_t>(b.node);
  const int da = cluster.nodes[na].devices[static_cast<std::size_t>(a.device)];
  const int db = cluster.nodes[nb].devices[static_cast<std::size_t>(b.device)];
  if (na == nb) {
    add(paths[na], da, db, 1, loads[na]);
    return;
  }
  add(paths[na], da, cluster.nodes[na].nets[static_cast<std::size_t>(channel.nets[na])], 1, loads[na]);
  add(paths[nb], cluster.nodes[nb].nets[static_cast<std::size_t>(channel.nets[nb])], db, 1, loads[nb]);
}

void expect_fits(const Cluster& cluster, const std::vector<Load>& loads, double gbps, std::uint64_t seed) {
  for (std::size_t node = 0; node < loads.size(); ++node) {
    for (std::size_t link = 0; link < loads[node].size(); ++link)
      EXPECT_LE(loads[node][link] * gbps, cluster.nodes[node].links[link].gbps * 1.0001 + 0.002) << "seed " << seed;
  }
}

void expect_tree(const CommTree& tree, std::size_t ranks, std::uint64_t seed) {
  ASSERT_EQ(tree.parent.size(), ranks);
  std::size_t roots = 0, edges = 0;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    roots += tree.parent[rank] == kNoRank ? 1 : 0;
    std::size_t steps = 0;
    for (int up = tree.parent[rank]; up >= 0 && steps <= ranks; up = tree.parent[static_cast<std::size_t>(up)]) ++steps;
    EXPECT_LE(steps, ranks) << "a cycle, seed " << seed;
    edges += tree.children[rank].size();
    for (const int child : tree.children[rank])
      EXPECT_EQ(tree.parent[static_cast<std::size_t>(child)], static_cast<int>(rank));
  }
  EXPECT_EQ(roots, 1U) << "seed " << seed;
  EXPECT_EQ(edges, ranks - 1) << "seed " << seed;
}

void expect_sound(const Cluster& cluster, const ChannelPlan& plan, std::uint64_t seed) {
  std::vector<TopoPaths> paths;
  std::vector<Load> rings, trees;
  for (const TopoSystem& system : cluster.nodes) {
    paths.emplace_back(system);
    rings.emplace_back(system.links.size(), 0);
    trees.emplace_back(system.links.size(), 0);
  }
  ASSERT_FALSE(plan.channels.empty());
  const std::size_t ranks = cluster.ranks.size(), shares = plan.channels.front().trees.size();
  for (const Channel& channel : plan.channels) {
    const std::set<int> visited(channel.ring.begin(), channel.ring.end());
    ASSERT_EQ(channel.ring.size(), ranks) << "seed " << seed;
    ASSERT_EQ(visited.size(), ranks) << "not a permutation, seed " << seed;
    ASSERT_EQ(*visited.rbegin(), static_cast<int>(ranks) - 1);
    for (std::size_t i = 0; i < ranks && ranks > 1; ++i)
      send(cluster, paths, channel, channel.ring[i], channel.ring[(i + 1) % ranks], rings);
    ASSERT_EQ(channel.trees.size(), shares);
    for (const CommTree& tree : channel.trees) {
      expect_tree(tree, ranks, seed);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        if (tree.parent[rank] < 0) continue;
        send(cluster, paths, channel, static_cast<int>(rank), tree.parent[rank], trees);
        send(cluster, paths, channel, tree.parent[rank], static_cast<int>(rank), trees);
      }
    }
  }
  const auto channels = static_cast<double>(plan.channels.size());
  expect_fits(cluster, rings, plan.ring_gbps / channels, seed);
  expect_fits(cluster, trees, plan.tree_gbps / channels / static_cast<double>(shares), seed);
}

TEST(TopoRings, SoundOnRandomClusters) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const TopoSystem one = parse_topology(random_xml(seed, {8, 4}), "one");
    const TopoSystem other = parse_topology(random_xml(seed + 1'000'000, {8, 4}), "other");
    Cluster cluster = cluster_of(one, 1 + static_cast<int>(seed % 5));
    if (seed % 3 == 0) {  // different machines, with two ranks on a device
      const auto node = static_cast<int>(cluster.nodes.size());
      cluster.nodes.push_back(other);
      cluster.ranks.push_back({node, 0});
      cluster.ranks.push_back({node, 0});
      cluster.ranks.push_back({node, static_cast<int>(other.devices.size()) - 1});
    }
    const ChannelPlan plan = plan_channels(cluster);
    expect_sound(cluster, plan, seed);
    if (HasFailure()) FAIL() << "seed " << seed;
    const ChannelPlan again = plan_channels(cluster);  // all ranks must agree
    ASSERT_EQ(plan.channels.size(), again.channels.size());
    for (std::size_t c = 0; c < plan.channels.size(); ++c) EXPECT_EQ(plan.channels[c].ring, again.channels[c].ring);
  }
}

TEST(TopoRings, NvSwitchFillsTheLinks) {
  const ChannelPlan plan = plan_channels(cluster_of(data_system("nvswitch8.xml"), 1));
  EXPECT_DOUBLE_EQ(plan.ring_gbps, 240);
  EXPECT_EQ(plan.within, PathType::kNvl);
  EXPECT_EQ(plan.channels.size(), 6U);
}

TEST(TopoRings, MachinesUseEachNetOnItsRail) {
  const Cluster cluster = cluster_of(data_system("nvswitch8.xml"), 4);
  const ChannelPlan plan = plan_channels(cluster);
  EXPECT_DOUBLE_EQ(plan.ring_gbps, 96);  // four nets, each as fast as its slot
  EXPECT_DOUBLE_EQ(plan.switch_gbps, 96);
  EXPECT_EQ(plan.between, PathType::kPix);
  ASSERT_EQ(plan.channels.size(), 4U);
  for (int c = 0; c < 4; ++c) {
    const Channel& channel = plan.channels[static_cast<std::size_t>(c)];
    EXPECT_EQ(channel.nets, std::vector<int>(4, c));
    // The first and the last rank of each machine are beside the net.
    for (std::size_t node = 0; node < 4; ++node) {
      EXPECT_EQ(channel.ring[8 * node] % 8 / 2, c);
      EXPECT_EQ(channel.ring[8 * node + 7] % 8 / 2, c);
    }
    // One rank of each machine has the switch as its parent.
    EXPECT_EQ(std::count(channel.switch_tree.parent.begin(), channel.switch_tree.parent.end(), kSwitch), 4);
  }
}

TEST(TopoRings, OneRankAndRanksThatShareADevice) {
  const TopoSystem system = data_system("nvswitch8.xml");
  const ChannelPlan alone = plan_channels({{system}, {{0, 3}}});
  ASSERT_EQ(alone.channels.size(), 1U);
  EXPECT_EQ(alone.channels[0].ring, std::vector<int>{0});
  const ChannelPlan shared = plan_channels({{system}, {{0, 3}, {0, 3}, {0, 3}}});
  EXPECT_EQ(shared.within, PathType::kLoc);
  EXPECT_EQ(shared.channels.size(), 1U);
}

// Through the CPU's memory a ring uses the link down to the NIC's switch twice: once to the GPU below it and once to
// the NIC. So one channel has half the rate of the link.
TEST(TopoRings, OneChannelMayPassALinkTwice) {
  Cluster cluster = cluster_of(data_system("host_memory.xml"), 2);
  std::erase_if(cluster.ranks, [](const RankPlace& place) { return place.device % 2 == 0; });
  const ChannelPlan plan = plan_channels(cluster, {.max_channels = 1});
  ASSERT_EQ(plan.channels.size(), 1U);
  EXPECT_DOUBLE_EQ(plan.ring_gbps, 6);
}

TEST(TopoRings, WhatCannotBeIsRefused) {
  const TopoSystem system = data_system("nvswitch8.xml");
  EXPECT_TRUE(test::fails([&] { plan_channels({{system}, {}}); }, Code::kInvalidValue, {"without ranks"}));
  EXPECT_TRUE(test::fails([&] { plan_channels({{system}, {{1, 0}}}); }, Code::kInvalidValue, {"rank 0", "node 1"}));
  EXPECT_TRUE(test::fails([&] { plan_channels({{system}, {{0, 8}}}); }, Code::kInvalidValue, {"device 8", "has 8"}));
  EXPECT_TRUE(test::fails([&] { plan_channels(cluster_of(system, 1), {.max_channels = 0}); }, Code::kInvalidValue,
                          {"0 channels"}));
  const TopoSystem bare = parse_topology("<system><cpu numaid=\"0\"/></system>", "bare.xml");
  EXPECT_TRUE(
      test::fails([&] { plan_channels(cluster_of(bare, 2)); }, Code::kInvalidValue, {"bare.xml", "no net", "<net"}));
}

}  // namespace
}  // namespace slip::topo_test::test_rings
