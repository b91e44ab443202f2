// Rings: as good as an exhaustive search on small machines, and valid on random ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "support/errors.hpp"
#include "support/share.hpp"
#include "topo/fold.hpp"
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

// All rings that one machine can have: closed, or through one of its nets, or from one to another.
std::vector<Load> all_rings(const TopoSystem& system, const TopoPaths& paths, bool through_net, CrossNic cross) {
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
      for (const int out : system.nets) {
        Load whole = load;
        add(paths, net, order.front(), 1, whole);
        add(paths, order.back(), out, 1, whole);
        if (out == net || cross == CrossNic::kAny) result.push_back(whole);
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
  return result;
}

double rate_of(const TopoSystem& system, const Load& load, double max) {
  for (std::size_t link = 0; link < load.size(); ++link) {
    if (load[link] > 0) max = std::min(max, system.links[link].gbps / load[link]);
  }
  return max;
}

// The best total rate of up to kFewChannels rings, by trying all sets of them.
double brute_force(const TopoSystem& system, bool through_net, CrossNic cross = CrossNic::kNever) {
  const TopoPaths paths(system);
  const std::vector<Load> rings = all_rings(system, paths, through_net, cross);
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

// Through any net, crossing gains or changes nothing. On rails a ring must enter the next machine through the net with
// the number of the one through which it leaves, all the way round.
TEST(TopoRings, CrossingIsAsGoodAsTheBestOfAllAndKeepsToRails) {
  int gained = 0;
  for (std::uint64_t seed = 1; seed <= kBruteSeeds / 4; ++seed) {
    std::string xml = random_xml(seed, {3, 2});  // with slow links between the CPUs, where crossing gains
    for (std::size_t at; (at = xml.find("AuthenticAMD")) != std::string::npos;) xml.replace(at, 12, "GenuineIntel");
    const TopoSystem system = parse_topology(xml, "seed");
    const auto gbps = [&](CrossNic cross, int machines) {
      const ChannelPlan plan =
          plan_channels(cluster_of(system, machines), {.max_channels = kFewChannels, .cross_nic = cross});
      for (const CommChannel& channel : plan.channels) {
        for (std::size_t m = 0; m < channel.nets.size() && cross == CrossNic::kRails; ++m)
          EXPECT_EQ(channel.nets_out[m], channel.nets[(m + 1) % channel.nets.size()]) << "seed " << seed;
      }
      return plan.ring_gbps;
    };
    const double one = gbps(CrossNic::kNever, 2), any = gbps(CrossNic::kAny, 2), rails = gbps(CrossNic::kRails, 2);
    const double best = brute_force(system, true, CrossNic::kAny);
    EXPECT_GE(any, best / 1.1 - 0.01) << "seed " << seed << "\n" << system.xml;
    EXPECT_LE(any, best + 0.01) << "seed " << seed << "\n" << system.xml;
    EXPECT_LE(one, rails);
    EXPECT_LE(rails, any + 0.01);
    EXPECT_EQ(gbps(CrossNic::kAny, 3), any);
    EXPECT_EQ(gbps(CrossNic::kRails, 3), one) << "an odd number of machines cannot close the rings";
    EXPECT_EQ(gbps(CrossNic::kRails, 4), rails);
    gained += rails > 1.01 * one ? 1 : 0;
  }
  EXPECT_GT(gained, 0);
}

// Four GPUs without NVLink, two below each CPU, and a NIC beside each pair. A ring through one net crosses between the
// CPUs there and back. From net to net it crosses once, so both directions of the link carry different rings.
TEST(TopoRings, CrossNicHalvesTheLoadBetweenTheCpus) {
  const Cluster cluster = cluster_of(data_system("pcie4_two_nics.xml"), 2);
  const ChannelPlan one = plan_channels(cluster), cross = plan_channels(cluster, {.cross_nic = CrossNic::kRails});
  EXPECT_DOUBLE_EQ(one.ring_gbps, 10);
  EXPECT_DOUBLE_EQ(cross.ring_gbps, 20);
  ASSERT_EQ(cross.channels.size() % 2, 0U);
  EXPECT_EQ(cross.channels[0].nets, (std::vector<int>{0, 1}));
  EXPECT_EQ(cross.channels[0].nets_out, (std::vector<int>{1, 0}));
  EXPECT_EQ(cross.channels[1].nets, (std::vector<int>{1, 0}));
  EXPECT_GE(cross.tree_gbps, one.tree_gbps);
}

// On rails, rings of an odd number of machines do not cross. Folding keeps that.
TEST(TopoRings, FoldedAndUnfoldedCrossAlike) {
  const std::vector<TopoSystem> machines = {data_system("pcie4_two_nics.xml")};
  for (const CrossNic cross : {CrossNic::kNever, CrossNic::kRails, CrossNic::kAny}) {
    for (const int copies : {7, 8, 9, 10, 13, 16}) {
      const ChannelPlan folded = plan_channels(topo::folded(machines, copies).cluster, {.cross_nic = cross}),
                        whole = plan_channels(topo::repeated(machines, copies), {.cross_nic = cross});
      EXPECT_DOUBLE_EQ(folded.ring_gbps, whole.ring_gbps) << copies;
      EXPECT_DOUBLE_EQ(folded.tree_gbps, whole.tree_gbps) << copies;
      EXPECT_DOUBLE_EQ(whole.ring_gbps,
                       cross == CrossNic::kAny || (cross == CrossNic::kRails && copies % 2 == 0) ? 20 : 10);
    }
  }
}

// Adds the load that a message from rank to rank, along the ring or a tree, puts on the links of both machines.
void send(const Cluster& cluster, const std::vector<TopoPaths>& paths, const CommChannel& channel, bool ring, int from,
          int to, std::vector<Load>& loads) {
  const RankPlace a = cluster.ranks[static_cast<std::size_t>(from)], b = cluster.ranks[static_cast<std::size_t>(to)];
  const auto na = static_cast<std::size_t>(a.node), nb = static_cast<std::size_t>(b.node);
  const int da = cluster.nodes[na].devices[static_cast<std::size_t>(a.device)];
  const int db = cluster.nodes[nb].devices[static_cast<std::size_t>(b.device)];
  if (na == nb) {
    add(paths[na], da, db, 1, loads[na]);
    return;
  }
  const int out = (ring ? channel.nets_out : channel.nets)[na];
  add(paths[na], da, cluster.nodes[na].nets[static_cast<std::size_t>(out)], 1, loads[na]);
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
  for (const CommChannel& channel : plan.channels) {
    const std::set<int> visited(channel.ring.begin(), channel.ring.end());
    ASSERT_EQ(channel.ring.size(), ranks) << "seed " << seed;
    ASSERT_EQ(visited.size(), ranks) << "not a permutation, seed " << seed;
    ASSERT_EQ(*visited.rbegin(), static_cast<int>(ranks) - 1);
    for (std::size_t i = 0; i < ranks && ranks > 1; ++i)
      send(cluster, paths, channel, true, channel.ring[i], channel.ring[(i + 1) % ranks], rings);
    ASSERT_EQ(channel.trees.size(), shares);
    for (const CommTree& tree : channel.trees) {
      expect_tree(tree, ranks, seed);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        if (tree.parent[rank] < 0) continue;
        send(cluster, paths, channel, false, static_cast<int>(rank), tree.parent[rank], trees);
        send(cluster, paths, channel, false, tree.parent[rank], static_cast<int>(rank), trees);
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
    const ChannelLimits limits{.cross_nic = static_cast<CrossNic>(seed % 3)};
    const ChannelPlan plan = plan_channels(cluster, limits);
    expect_sound(cluster, plan, seed);
    if (HasFailure()) FAIL() << "seed " << seed;
    const ChannelPlan again = plan_channels(cluster, limits);  // all ranks must agree
    ASSERT_EQ(plan.channels.size(), again.channels.size());
    for (std::size_t c = 0; c < plan.channels.size(); ++c) EXPECT_EQ(plan.channels[c].ring, again.channels[c].ring);
  }
}

TEST(TopoRings, NvSwitchFillsTheLinks) {
  const ChannelPlan plan = plan_channels(cluster_of(data_system("nvswitch8.xml"), 1));
  EXPECT_DOUBLE_EQ(plan.ring_gbps, 240);
  EXPECT_EQ(plan.within, TopoPathType::kNvl);
  EXPECT_EQ(plan.channels.size(), 6U);
}

TEST(TopoRings, MachinesUseEachNetOnItsRail) {
  const Cluster cluster = cluster_of(data_system("nvswitch8.xml"), 4);
  const ChannelPlan plan = plan_channels(cluster);
  EXPECT_DOUBLE_EQ(plan.ring_gbps, 96);  // four nets, each as fast as its slot
  EXPECT_DOUBLE_EQ(plan.switch_gbps, 96);
  EXPECT_EQ(plan.between, TopoPathType::kPix);
  ASSERT_EQ(plan.channels.size(), 4U);
  for (int c = 0; c < 4; ++c) {
    const CommChannel& channel = plan.channels[static_cast<std::size_t>(c)];
    EXPECT_EQ(channel.nets, std::vector<int>(4, c));
    // The first and the last rank of each machine are beside the net.
    for (std::size_t node = 0; node < 4; ++node) {
      EXPECT_EQ(channel.ring[8 * node] % 8 / 2, c);
      EXPECT_EQ(channel.ring[8 * node + 7] % 8 / 2, c);
    }
    // One rank of each machine has the switch as its parent.
    EXPECT_EQ(std::count(channel.switch_tree.parent.begin(), channel.switch_tree.parent.end(), kSwitchRank), 4);
  }
}

TEST(TopoRings, OneRankAndRanksThatShareADevice) {
  const TopoSystem system = data_system("nvswitch8.xml");
  const ChannelPlan alone = plan_channels({{system}, {{0, 3}}});
  ASSERT_EQ(alone.channels.size(), 1U);
  EXPECT_EQ(alone.channels[0].ring, std::vector<int>{0});
  const ChannelPlan shared = plan_channels({{system}, {{0, 3}, {0, 3}, {0, 3}}});
  EXPECT_EQ(shared.within, TopoPathType::kLoc);
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
  EXPECT_TRUE(test::fails([&] { plan_channels({{system}, {}}); }, ErrorCode::kInvalidValue, {"without ranks"}));
  EXPECT_TRUE(test::fails(
      [&] {
        plan_channels({{system}, {{1, 0}}});
      },
      ErrorCode::kInvalidValue, {"rank 0", "node 1"}));
  EXPECT_TRUE(test::fails(
      [&] {
        plan_channels({{system}, {{0, 8}}});
      },
      ErrorCode::kInvalidValue, {"device 8", "has 8"}));
  EXPECT_TRUE(test::fails([&] { plan_channels(cluster_of(system, 1), {.max_channels = 0}); }, ErrorCode::kInvalidValue,
                          {"0 channels"}));
  const TopoSystem bare = parse_topology("<system><cpu numaid=\"0\"/></system>", "bare.xml");
  EXPECT_TRUE(test::fails([&] { plan_channels(cluster_of(bare, 2)); }, ErrorCode::kInvalidValue,
                          {"bare.xml", "no net", "<net"}));
}

}  // namespace
}  // namespace slip::topo_test::test_rings
