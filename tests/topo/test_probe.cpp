// Probing: synthetic machines of hwloc, and this machine.
#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "topo/document.hpp"
#include "topo/made_system.hpp"
#include "topo/xml.hpp"

namespace slip::topo_test::test_probe {
namespace {

TopoSystem made_up(const std::string& synthetic) {
  return parse_topology(topo::probe_xml({synthetic, {}}, {}), synthetic);
}

TEST(TopoProbe, ThisMachineHasDevicesAndANet) {
  const TopoSystem system = parse_topology(topo::probe_xml({"", {}}, {}), "this machine");
  EXPECT_FALSE(system.devices.empty());
  EXPECT_FALSE(system.nets.empty());
  EXPECT_EQ(parse_topology(system.xml, "again").xml, system.xml);
  EXPECT_GT(plan_channels(cluster_of(system, 3)).ring_gbps, 0);
}

TEST(TopoProbe, CoresNumaNodesAndCaches) {
  const TopoSystem probe = made_up("pack:2 [numa] l3:2 core:3 pu:2");
  if (probe.devices.size() == 1) GTEST_SKIP() << "built without hwloc";
  ASSERT_EQ(probe.devices.size(), 12U);
  const TopoPaths paths(probe);
  const auto& cores = probe.devices;
  EXPECT_EQ(probe.nodes[static_cast<std::size_t>(cores[0])].kind, TopoKind::kCore);
  EXPECT_EQ(paths.type(cores[0], cores[2]), TopoPathType::kPix);   // one cache
  EXPECT_EQ(paths.type(cores[0], cores[3]), TopoPathType::kPhb);   // one NUMA node
  EXPECT_EQ(paths.type(cores[0], cores[11]), TopoPathType::kSys);  // two
  const topo::XmlElement root = topo::parse_xml(probe.xml, "x", {});
  ASSERT_EQ(root.children.size(), 2U);
  EXPECT_EQ(*root.children[0].find("affinity"), "00000fff");
  EXPECT_EQ(*root.children[1].find("affinity"), "00fff000");
  const ChannelPlan plan = plan_channels(cluster_of(probe, 1));
  EXPECT_GT(plan.ring_gbps, 0);
}

TEST(TopoProbe, ManyCoresAreSearchedAllTheSame) {
  const TopoSystem probe = made_up("pack:2 [numa] l3:8 core:16 pu:2");
  if (probe.devices.size() == 1) GTEST_SKIP() << "built without hwloc";
  ASSERT_EQ(probe.devices.size(), 256U);
  const ChannelPlan plan = plan_channels(cluster_of(probe, 2));
  EXPECT_EQ(plan.channels.front().ring.size(), 512U);
}

TEST(TopoProbe, AMachineThatHwlocCannotMakeIsRefused) {
  if (made_up("core:2 pu:1").devices.size() == 1) GTEST_SKIP() << "built without hwloc";
  EXPECT_TRUE(test::fails([] { made_up("banana:7"); }, ErrorCode::kInvalidValue, {"banana:7"}));
}

}  // namespace
}  // namespace slip::topo_test::test_probe
