// Trees between machines, routes along rails, and the relief of a NIC's switch.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/errors.hpp"
#include "topo/made_system.hpp"
#include "topo/trees.hpp"

namespace slip::topo_test::test_trees {
namespace {

int log2_below(int count) {
  int result = 0;
  while ((2 << result) <= count) ++result;
  return result;
}

TEST(TopoTrees, TwoTreesSpanAndEachPlaceIsALeafInOne) {
  for (int count = 1; count <= 520; ++count) {
    const auto both = topo::double_binary_parents(count);
    std::vector<int> leaf_in(static_cast<std::size_t>(count), 0);
    for (const std::vector<int>& parent : both) {
      const CommTree tree = topo::tree_of(parent);
      ASSERT_EQ(std::count(parent.begin(), parent.end(), kNoRank), 1) << count;
      EXPECT_LE(topo::depth_of(tree), log2_below(count)) << count;
      std::size_t reached = 0;
      std::vector<int> open{static_cast<int>(std::find(parent.begin(), parent.end(), kNoRank) - parent.begin())};
      while (!open.empty()) {
        const int here = open.back();
        open.pop_back();
        ++reached;
        const std::vector<int>& children = tree.children[static_cast<std::size_t>(here)];
        ASSERT_LE(children.size(), 2U) << count;
        open.insert(open.end(), children.begin(), children.end());
        leaf_in[static_cast<std::size_t>(here)] += children.empty() ? 1 : 0;
      }
      ASSERT_EQ(reached, static_cast<std::size_t>(count));
    }
    EXPECT_GE(*std::min_element(leaf_in.begin(), leaf_in.end()), 1) << count;
  }
}

TEST(TopoTrees, HeapsAndChainsAreWhatTheyAreCalled) {
  EXPECT_EQ(topo::heap_parents(4, 1), (std::vector<int>{kNoRank, 0, 1, 2}));
  EXPECT_EQ(topo::heap_parents(6), (std::vector<int>{kNoRank, 0, 0, 1, 1, 2}));
  EXPECT_EQ(topo::depth_of(topo::tree_of(topo::heap_parents(9, 1))), 8);
  EXPECT_EQ(topo::depth_of(topo::tree_of(topo::heap_parents(9))), 3);
}

TEST(TopoTrees, DepthBetweenMachinesGrowsWithTheLogarithm) {
  const TopoSystem system = data_system("nvswitch8.xml");
  const int within = topo::depth_of(plan_channels(cluster_of(system, 2)).channels[0].trees[0]);
  const int many = topo::depth_of(plan_channels(cluster_of(system, 64)).channels[0].trees[0]);
  EXPECT_LE(many,
            within + 2 * 6);  // each of six levels adds one hop between machines, and for a second child one within
}

// The second child machine is attached to the second rank of its parent.
TEST(TopoTrees, ChildrenAreSpreadOverTwoDevices) {
  const ChannelPlan plan = plan_channels(cluster_of(data_system("nvswitch8.xml"), 4));
  for (const CommTree& tree : plan.channels[0].trees) {
    for (std::size_t rank = 0; rank < tree.children.size(); ++rank) {
      int from_elsewhere = 0;
      for (const int child : tree.children[rank]) from_elsewhere += child / 8 != static_cast<int>(rank) / 8 ? 1 : 0;
      EXPECT_LE(from_elsewhere, 1);
    }
  }
}

TEST(TopoRoutes, AllSendersUseTheReceiversRail) {
  const Cluster cluster = cluster_of(data_system("nvswitch8.xml"), 2);
  const std::vector<RailRoute> routes = rail_routes(cluster, 0);
  ASSERT_EQ(routes.size(), 8U);  // one for each receiver: the parts for it travel together
  for (const RailRoute& route : routes) {
    EXPECT_EQ(route.in_net, route.to % 8 / 2);
    EXPECT_EQ(route.out_net, route.in_net);
    EXPECT_EQ(route.relay / 2, route.out_net) << "the relay stands beside the net";
    EXPECT_EQ(route.senders.size(), 8U);
    EXPECT_EQ(route.gather, TopoPathType::kNvl);
    EXPECT_DOUBLE_EQ(route.gbps, 24);
  }
  EXPECT_NE(routes[0].relay, routes[1].relay) << "both GPUs beside a net take their turn";
}

TEST(TopoRoutes, WithoutNvLinkEverySenderGoesAlone) {
  const Cluster cluster = cluster_of(data_system("aws_p4d-24xl-topo.xml"), 2);
  for (const RailRoute& route : rail_routes(cluster, 1)) {
    EXPECT_EQ(route.senders, std::vector<int>{route.relay});
    EXPECT_EQ(route.in_net, route.to / 2);
  }
  EXPECT_EQ(rail_routes(cluster, 1).size(), 64U);
  EXPECT_TRUE(test::fails([&] { rail_routes(cluster, 2); }, ErrorCode::kInvalidValue, {"node 2"}));
}

TEST(TopoRoutes, GpusBesideTheNicHandOverToTheOthers) {
  const std::vector<NicRelief> reliefs = relieve_nics(data_system("host_nic.xml"));
  ASSERT_EQ(reliefs.size(), 1U);
  const NicRelief& relief = reliefs[0];
  EXPECT_DOUBLE_EQ(relief.gbps_before, 8);  // NIC and half of the GPUs share 12 GB/s: 12 / 1.5
  EXPECT_DOUBLE_EQ(relief.gbps_after, 12);
  ASSERT_EQ(relief.moves.size(), 2U);
  for (const NicRelief::Move& move : relief.moves) {
    EXPECT_LT(move.from, 2);
    EXPECT_GE(move.to, 2);
  }
  EXPECT_NE(relief.moves[0].to, relief.moves[1].to);
  EXPECT_TRUE(relieve_nics(data_system("nvswitch8.xml")).empty()) << "every switch has a NIC";
  EXPECT_TRUE(relieve_nics(data_system("azure_ndv4-topo.xml")).empty()) << "no NVLink";
}

}  // namespace
}  // namespace slip::topo_test::test_trees
