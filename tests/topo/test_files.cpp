// Topology files: what the reader accepts, what survives writing, and the errors for broken files.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "support/errors.hpp"
#include "topo/document.hpp"
#include "topo/made_system.hpp"
#include "topo/rates.hpp"

namespace slip::topo_test::test_files {
namespace {

const TopoNode& device(const TopoSystem& system, std::size_t i) {
  return system.nodes[static_cast<std::size_t>(system.devices.at(i))];
}

double link_rate(const TopoSystem& system, int from, int to) {
  for (const TopoLink& link : system.links) {
    if (link.from == from && link.to == to) return link.gbps;
  }
  return 0;
}

TEST(TopoFiles, PublishedFilesAreRead) {
  struct Expected {
    const char* name;
    std::size_t gpus, nets;
    double pci;
  };
  for (const Expected& each : {Expected{"aws_p4d-24xl-topo.xml", 8, 4, 12}, Expected{"azure_ndv4-topo.xml", 8, 8, 24},
                               Expected{"azure_ncv4-topo.xml", 4, 1, 12}}) {
    const TopoSystem system = data_system(each.name);
    EXPECT_EQ(system.devices.size(), each.gpus) << each.name;
    EXPECT_EQ(system.nets.size(), each.nets) << each.name;
    for (const int gpu : system.devices) {
      const TopoNode& node = system.nodes[static_cast<std::size_t>(gpu)];
      EXPECT_EQ(node.kind, TopoKind::kGpu);
      EXPECT_DOUBLE_EQ(link_rate(system, gpu, node.parent), each.pci) << each.name;
    }
  }
  const TopoSystem system = data_system("azure_ncv4-topo.xml");
  EXPECT_EQ(device(system, 2).bus_id, "0003:00:00.0");
  EXPECT_EQ(device(system, 2).sm, 80);
  const TopoNode& net = system.nodes[static_cast<std::size_t>(system.nets[0])];
  EXPECT_DOUBLE_EQ(link_rate(system, net.parent, system.nets[0]), 12.5);
  EXPECT_FALSE(net.gdr);
}

TEST(TopoFiles, WritingAndReadingAgainGivesTheSame) {
  for (const char* name :
       {"aws_p4d-24xl-topo.xml", "azure_ndv4-topo.xml", "azure_ncv4-topo.xml", "nvswitch8.xml", "host_nic.xml"}) {
    const TopoSystem first = data_system(name);
    const TopoSystem again = parse_topology(first.xml, name);
    EXPECT_EQ(first.xml, again.xml);
    ASSERT_EQ(first.nodes.size(), again.nodes.size());
    for (std::size_t i = 0; i < first.nodes.size(); ++i) EXPECT_EQ(first.nodes[i].name, again.nodes[i].name);
    ASSERT_EQ(first.links.size(), again.links.size());
    for (std::size_t i = 0; i < first.links.size(); ++i) EXPECT_EQ(first.links[i].gbps, again.links[i].gbps);
  }
  // A file that this library has written is written again unchanged.
  std::ifstream file(data_path("nvswitch8.xml"));
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(data_system("nvswitch8.xml").xml, text.str());
}

TEST(TopoFiles, WhatNobodyKnowsSurvives) {
  const std::string xml =
      "<system version=\"1\" colour=\"&lt;&amp;&quot;&#9;\xC3\xA9\">\n"
      "  <cpu numaid=\"0\" mood=\"blue\">\n"
      "    <c2c bw=\"7\"/>\n"
      "    <pci busid=\"0000:01:00.0\" class=\"0x030200\" numa_node=\"0\">\n"
      "      <gpu dev=\"0\" sm=\"90\" rank=\"0\" gdr=\"1\" warp=\"9\"/>\n"
      "    </pci>\n"
      "  </cpu>\n"
      "</system>\n";
  EXPECT_EQ(parse_topology(xml, "x").xml, xml);
}

struct Hostile {
  const char* xml;
  std::initializer_list<std::string_view> words;
};

const Hostile kHostile[] = {
    {"", {"line 1", "end of the file"}},
    {"text", {"line 1", "'t'"}},
    {"<graph/>", {"line 1", "<graph>", "<system>"}},
    {"<system version=\"1\"/>", {"line 1", "no <cpu>"}},
    {"<system>\n<cpu numaid=\"0\">\n<pci", {"line 3", "<pci>", "does not end"}},
    {"<system>\n<cpu numaid=\"0\">\n", {"line 2", "<cpu>", "cut off"}},
    {"<system>\n<cpu numaid=\"0", {"line 2", "numaid", "does not end"}},
    {"<system><cpu numaid=\"0\">\n</system>", {"line 2", "</system>", "<cpu>"}},
    {"<system><cpu numaid=\"0\"/></system>x", {"'x'", "after the end"}},
    {"<system><cpu numaid=\"0\" numaid=\"1\"/></system>", {"numaid", "twice"}},
    {"<system><cpu numaid=\"0\"a=\"1\"/></system>", {"space is missing"}},
    {"<!DOCTYPE system [<!ENTITY a \"b\">]>\n<system/>", {"line 1", "DOCTYPE"}},
    {"<system>\n<cpu numaid=\"&lol;\"/></system>", {"line 2", "&amp;"}},
    {"<system>\n<cpu numaid=\"&#xD800;\"/></system>", {"line 2", "&#xD800;"}},
    {"<system>\n<cpu numaid=\"\xFF\"/></system>", {"line 2", "numaid", "UTF-8"}},
    {"<system>\n<cpu/></system>", {"line 2", "<cpu>", "'numaid'", "missing"}},
    {"<system>\n<cpu numaid=\"many\"/></system>", {"line 2", "numaid", "many", "whole number"}},
    {"<system>\n<cpu numaid=\"99999999999999999999\"/></system>", {"line 2", "numaid", "99999999999999999999"}},
    {"<system><cpu numaid=\"0\"/>\n<cpu numaid=\"0\"/></system>", {"line 2", "numaid", "line 1"}},
    {"<system><cpu numaid=\"0\" host_hash=\"1\"/>\n<cpu numaid=\"1\" host_hash=\"2\"/></system>",
     {"line 2", "host_hash"}},
    {"<system><cpu numaid=\"0\" host_hash=\"1\"/>\n<cpu numaid=\"0\" host_hash=\"2\"/></system>",
     {"line 2", "host_hash", "its own file"}},
    {"<system><cpu numaid=\"0\" affinity=\"0-3\"/></system>", {"line 1", "affinity", "0-3"}},
    {"<system><cpu numaid=\"0\">\n<net dev=\"0\"/></cpu></system>", {"line 2", "<net>", "<cpu>", "nic"}},
    {"<system><cpu numaid=\"0\">\n<pci class=\"0x060400\"/></cpu></system>", {"line 2", "busid", "missing"}},
    {"<system><cpu numaid=\"0\">\n<pci busid=\"zz\"/></cpu></system>", {"line 2", "busid", "zz"}},
    {"<system><cpu numaid=\"0\">\n<pci busid=\"0000:01:00.0\" link_width=\"-1\"/></cpu></system>",
     {"line 2", "link_width", "-1"}},
    {"<system><cpu numaid=\"0\">\n<pci busid=\"0000:01:00.0\" link_speed=\"warp\"/></cpu></system>",
     {"line 2", "link_speed", "warp"}},
    {"<system><cpu numaid=\"0\">\n<pci busid=\"0000:01:00.0\" link_speed=\"1e300 GT/s\"/></cpu></system>",
     {"line 2", "link_speed"}},
    {"<system><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\"><gpu dev=\"0\">\n<c2c "
     "count=\"1\"/></gpu></pci></cpu></system>",
     {"line 2", "<c2c>", "bw", "missing"}},
    {"<system><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\"><gpu dev=\"0\">\n<c2c count=\"0\" "
     "bw=\"1\"/></gpu></pci></cpu>"
     "</system>",
     {"line 2", "<c2c>", "count"}},
    {"<system><cpu numaid=\"0\">\n<xgmi target=\"0000:01:00.0\"/></cpu></system>", {"line 2", "<xgmi>", "gpu"}},
    {"<system><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\">\n<gpu sm=\"80\"/></pci></cpu></system>",
     {"line 2", "<gpu>", "dev", "missing"}},
    {"<system><cpu numaid=\"0\"><nic><net dev=\"0\" speed=\"1e9\"/></nic></cpu></system>", {"<net>", "speed", "1e9"}},
    {"<system><cpu numaid=\"0\"><nic><net dev=\"0\" latency=\"nan\"/></nic></cpu></system>",
     {"<net>", "latency", "nan"}},
    {"<system><cpu numaid=\"0\"><nic><net dev=\"0\"/>\n<net dev=\"0\"/></nic></cpu></system>",
     {"line 2", "dev", "line 1"}},
};

TEST(TopoFiles, HostileOnesAreRefusedWithLineAndAttribute) {
  for (const Hostile& each : kHostile)
    EXPECT_TRUE(test::fails([&] { parse_topology(each.xml, "bad.xml"); }, ErrorCode::kParse, each.words)) << each.xml;
}

std::string two_gpus(const std::string& first, const std::string& second) {
  return "<system><cpu numaid=\"0\">\n<pci busid=\"0000:01:00.0\"><gpu dev=\"0\" sm=\"80\">" + first +
         "</gpu></pci>\n<pci busid=\"0000:02:00.0\"><gpu dev=\"1\" sm=\"80\">" + second + "</gpu></pci></cpu></system>";
}

TEST(TopoFiles, NvLinksMustAgree) {
  const std::string there = R"(<nvlink target="0000:02:00.0" count="4" tclass="0x030200"/>)";
  const std::string back = R"(<nvlink target="0000:01:00.0" count="4" tclass="0x030200"/>)";
  const TopoSystem system = parse_topology(two_gpus(there, back), "x");
  EXPECT_DOUBLE_EQ(link_rate(system, system.devices[0], system.devices[1]), 80);
  const auto refused = [](const std::string& xml, std::initializer_list<std::string_view> words) {
    EXPECT_TRUE(test::fails([&] { parse_topology(xml, "x"); }, ErrorCode::kParse, words)) << xml;
  };
  refused(two_gpus(there, ""), {"line 2", "count", "0 links back"});
  refused(two_gpus("<nvlink target=\"0000:02:00.0\" count=\"0\"/>", back), {"line 2", "count"});
  refused(two_gpus("<nvlink target=\"0000:02:00.0\" count=\"1000000\"/>", back), {"line 2", "count", "1000000"});
  refused(two_gpus("<nvlink count=\"1\"/>", ""), {"line 2", "target", "missing"});
  refused(two_gpus("<nvlink target=\"0000:c0:00.0\" count=\"1\"/>", ""), {"line 2", "tclass", "missing"});
  // A link to the GPU itself (published files have them) or to a GPU that is not in the file adds no link.
  const std::string nowhere = R"(<nvlink target="0000:01:00.0" count="12" tclass="0x030200"/>)"
                              R"(<nvlink target="0000:77:00.0" count="1" tclass="0x030200"/>)";
  EXPECT_EQ(parse_topology(two_gpus(nowhere, ""), "x").links.size(), 4U);
}

bool contains(const std::vector<std::string>& texts, std::string_view words) {
  return std::ranges::any_of(texts, [&](const std::string& text) { return text.find(words) != std::string::npos; });
}

TEST(TopoFiles, WhatIsIgnoredIsNamed) {
  const std::string xml =
      "<system><cpu numaid=\"0\"><pcilink/>\n<pcilink/><pci busid=\"0000:01:00.0\" class=\"0x060400\"/></cpu></system>";
  EXPECT_TRUE(contains(topo::document_warnings(xml, "x"), "<pcilink> (line 1 and 1 more)"));
  EXPECT_TRUE(contains(topo::machine_warnings(data_system("azure_ndv4-topo.xml")), "no NVLinks between its 8 GPUs"));
  EXPECT_TRUE(topo::machine_warnings(data_system("nvswitch8.xml")).empty());
  EXPECT_TRUE(topo::document_warnings(data_system("nvswitch8.xml").xml, "x").empty());
}

TEST(TopoFiles, SpeedsMayHaveARemark) {
  EXPECT_DOUBLE_EQ(topo::pci_gbps("32 GT/s PCIe/s", 16).value(), 48);
  EXPECT_DOUBLE_EQ(topo::pci_gbps("16GT/s", 16).value(), 24);
  EXPECT_FALSE(topo::pci_gbps("16 GB/s", 8).has_value());
  EXPECT_DOUBLE_EQ(topo::pci_gbps("Unknown speed", 0).value(), 12) << "as Linux writes in virtual machines";
}

TEST(TopoFiles, SeveralHostsInOneFile) {
  const std::string two =
      "<system><cpu numaid=\"0\" host_hash=\"0x1\"><core dev=\"0\"/></cpu>\n"
      "<cpu numaid=\"0\" host_hash=\"0x2\"><core dev=\"0\"/><core dev=\"1\"/></cpu></system>";
  const std::vector<TopoSystem> hosts = topo::parse_topologies(two, "x");
  ASSERT_EQ(hosts.size(), 2U);
  EXPECT_EQ(hosts[0].devices.size(), 1U);
  EXPECT_EQ(hosts[1].devices.size(), 2U);
  EXPECT_NE(hosts[0].name, hosts[1].name);
  EXPECT_EQ(topo::parse_topologies("<system><cpu numaid=\"0\"/></system>", "x").size(), 1U);
  // Equal hosts have equal addresses.
  const auto host = [](int number) {
    return "<cpu numaid=\"0\" host_hash=\"" + std::to_string(number) + "\"><pci busid=\"0000:01:00.0\"/></cpu>";
  };
  const std::string equal = "<system>" + host(1) + host(2) + "</system>";
  EXPECT_TRUE(topo::document_warnings(equal, "x").empty());
  const std::vector<TopoSystem> both = topo::parse_topologies(equal, "x");
  ASSERT_EQ(both.size(), 2U);
  EXPECT_EQ(both[0].xml, both[1].xml) << "rings and paths are searched once for equal machines";
}

TEST(TopoFiles, ASlotMayHoldTwoGpusAndABusIdMayRepeat) {
  const TopoSystem slot = parse_topology(
      "<system><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" link_speed=\"16 GT/s\" link_width=\"16\"><gpu dev=\"0\" "
      "sm=\"80\"/>"
      "<gpu dev=\"1\" sm=\"80\"/></pci></cpu></system>",
      "x");
  ASSERT_EQ(slot.devices.size(), 2U);
  EXPECT_EQ(TopoPaths(slot).type(slot.devices[0], slot.devices[1]), TopoPathType::kPix);
  const std::string twice =
      "<system><cpu numaid=\"0\"><pci busid=\"0000:0A:00.0\"><gpu dev=\"0\"/></pci>\n"
      "<pci busid=\"0000:0a:00.0\"><gpu dev=\"1\"/></pci></cpu></system>";
  EXPECT_EQ(parse_topology(twice, "x").devices.size(), 2U);
  EXPECT_TRUE(contains(topo::document_warnings(twice, "x"), "line 2: busid 0000:0a:00.0 is repeated, line 1 has it"));
}

TEST(TopoFiles, XgmiAndC2cAreLinks) {
  const TopoSystem amd = read_topology(SLIP_SOURCE_DIR "/bench/predict/machines/mi300x8.xml");
  EXPECT_DOUBLE_EQ(link_rate(amd, amd.devices[0], amd.devices[7]), 48);
  const ChannelPlan plan = plan_channels(cluster_of(amd, 1));
  EXPECT_EQ(plan.within, TopoPathType::kNvl);
  EXPECT_NEAR(plan.ring_gbps, 7 * 48, 1) << "each GPU has seven links";
  const TopoSystem grace = parse_topology(
      "<system><cpu numaid=\"0\" arch=\"arm64\"><pci busid=\"0000:01:00.0\"><gpu dev=\"0\" sm=\"90\">"
      "<c2c bw=\"44712\" count=\"10\"/></gpu></pci></cpu></system>",
      "x");
  EXPECT_NEAR(TopoPaths(grace).gbps(grace.devices[0], 0), 447.12, 1e-9);
}

// POWER9 has NVLinks to its GPUs. Their class differs from that of an NVSwitch in the last digit only.
TEST(TopoFiles, NvLinksMayLeadToTheCpu) {
  const auto cpu = [](const std::string& number) {
    return "<cpu numaid=\"" + number + "\" arch=\"ppc64\"><pci busid=\"000" + number + ":01:00.0\"><gpu dev=\"" +
           number + "\" sm=\"70\"><nvlink target=\"0004:00:00.1\" count=\"3\" tclass=\"0x068001\"/></gpu></pci></cpu>";
  };
  const TopoSystem system = parse_topology("<system>" + cpu("0") + cpu("1") + "</system>", "x");
  const TopoPaths paths(system);
  EXPECT_EQ(paths.type(system.devices[0], system.devices[1]), TopoPathType::kSys);
  EXPECT_DOUBLE_EQ(paths.gbps(system.devices[0], system.devices[1]), 32) << "between the CPUs";
  EXPECT_DOUBLE_EQ(paths.gbps(system.devices[0], system.nodes[static_cast<std::size_t>(system.devices[0])].parent), 60);
}

TEST(TopoFiles, AnNvSwitchCanBeAdded) {
  const TopoSystem bare = data_system("azure_ndv4-topo.xml"), added = topo::with_nvswitch(bare, 18, 90);
  ASSERT_EQ(added.devices.size(), 8U);
  EXPECT_EQ(device(added, 3).sm, 90);
  EXPECT_EQ(TopoPaths(added).type(added.devices[0], added.devices[7]), TopoPathType::kNvl);
  EXPECT_TRUE(topo::machine_warnings(added).empty());
  const TopoSystem to_itself = topo::with_nvswitch(data_system("azure_ncv4-topo.xml"), 12, 80);
  EXPECT_EQ(TopoPaths(to_itself).type(to_itself.devices[0], to_itself.devices[3]), TopoPathType::kNvl);
  EXPECT_TRUE(test::fails([&] { topo::with_nvswitch(added, 18, 90); }, ErrorCode::kInvalidValue, {"has NVLinks"}));
}

// NCCL finds 16 channels on two of these machines.
TEST(TopoFiles, BroadcomSwitchesAreFlattened) {
  const TopoSystem system = read_topology(SLIP_SOURCE_DIR "/bench/predict/machines/a100x8_16x100g.xml");
  EXPECT_EQ(system.nets.size(), 16U);
  EXPECT_EQ(TopoPaths(system).type(system.devices[0], system.nets[0]), TopoPathType::kPix);
  const ChannelPlan plan = plan_channels(cluster_of(system, 2));
  EXPECT_EQ(plan.channels.size(), 16U);
}

// The slower machine limits the rings: eight NICs at the 24 GB/s of PCIe 4.
TEST(TopoFiles, MixedMachinesReachTheRateOfTheSlower) {
  Cluster cluster = cluster_of(read_topology(SLIP_SOURCE_DIR "/bench/predict/machines/h100x8_8x400g.xml"), 1);
  cluster.nodes.push_back(read_topology(SLIP_SOURCE_DIR "/bench/predict/machines/a100x8_8x200g.xml"));
  for (int device = 0; device < 8; ++device) cluster.ranks.push_back({1, device});
  EXPECT_NEAR(plan_channels(cluster).ring_gbps, 192, 0.1);
}

TEST(TopoFiles, PartsCanFailOrSlowDown) {
  const TopoSystem whole = read_topology(SLIP_SOURCE_DIR "/bench/predict/machines/h100x8_8x400g.xml");
  const double before = plan_channels(cluster_of(whole, 2)).ring_gbps;
  const TopoSystem broken = topo::without_part(whole, "nic:3");
  EXPECT_EQ(broken.nets.size(), 7U);
  EXPECT_LT(plan_channels(cluster_of(broken, 2)).ring_gbps, before);
  const TopoSystem slow = topo::with_slow_part(whole, "link:PCI0", 0.5);
  EXPECT_NE(slow.xml, whole.xml) << "machines with equal XML are taken for equal";
  EXPECT_DOUBLE_EQ(topo::with_slow_part(whole, "net:2", 0.5).nets.size(), 8U);
  EXPECT_EQ(topo::without_part(whole, "link:GPU0-NVS").links.size(), whole.links.size() - 2);
  for (const char* part : {"nic:99", "nic:", "link:GPU0-GPU1", "link:", "fan:1", "link:PCI99", ""}) {
    EXPECT_TRUE(test::fails([&] { topo::without_part(whole, part); }, ErrorCode::kInvalidValue, {"no such part"}))
        << part;
    EXPECT_TRUE(
        test::fails([&] { topo::with_slow_part(whole, part, 0.5); }, ErrorCode::kInvalidValue, {"no such part"}));
  }
  EXPECT_TRUE(
      test::fails([&] { topo::with_slow_part(whole, "nic:0", 1.5); }, ErrorCode::kInvalidValue, {"between 0 and 1"}));
}

TEST(TopoFiles, DepthAndSizeAreBounded) {
  std::string deep = "<system><cpu numaid=\"0\">";
  for (int i = 0; i < 100'000; ++i) deep += "<pci busid=\"0000:01:00.0\">";
  EXPECT_TRUE(test::fails([&] { parse_topology(deep, "x"); }, ErrorCode::kParse, {"line 1", "64 deep"}));
  std::string wide = "<system><cpu numaid=\"0\">\n";
  for (int i = 0; i < 2000; ++i) wide += "<core dev=\"" + std::to_string(i) + "\"/>\n";
  EXPECT_TRUE(test::fails([&] { parse_topology(wide + "</cpu></system>", "x"); }, ErrorCode::kParse, {"1024 nodes"}));
  std::string long_one = "<system";
  for (int i = 0; i < 100'000; ++i) long_one += " a" + std::to_string(i) + "=\"\"";
  EXPECT_TRUE(test::fails([&] { parse_topology(long_one + "/>", "x"); }, ErrorCode::kParse, {"64 attributes"}));
}

std::string with_cpus(int count) {
  std::string xml = "<system>\n";
  for (int i = 0; i < count; ++i) xml += "<cpu numaid=\"" + std::to_string(i) + "\"/>\n";
  return xml + "</system>";
}

// Every pair of CPUs has a link: the maximum number of CPUs is planned quickly, and more are refused.
TEST(TopoFiles, CpusAreBounded) {
  EXPECT_TRUE(test::fails([] { parse_topology(with_cpus(1000), "x"); }, ErrorCode::kParse, {"line 258", "256 <cpu>"}));
  const TopoSystem system = parse_topology(with_cpus(256), "x");
  ASSERT_EQ(system.devices.size(), 256U);
  const ChannelPlan plan = plan_channels(cluster_of(system, 1));
  EXPECT_EQ(plan.channels.at(0).ring.size(), 256U);
  EXPECT_EQ(plan.within, TopoPathType::kSys);
}

TEST(TopoFiles, ACpuOfAThousandCoresIsPlanned) {
  std::string xml = "<system><cpu numaid=\"0\">\n";
  for (int i = 0; i < 1000; ++i) xml += "<core dev=\"" + std::to_string(i) + "\"/>\n";
  const ChannelPlan plan = plan_channels(cluster_of(parse_topology(xml + "</cpu></system>", "x"), 1));
  EXPECT_EQ(plan.channels.at(0).ring.size(), 1000U);
}

// Each pair of GPUs is looked at, but not each third GPU for each pair: an NVSwitch joins all of them.
TEST(TopoFiles, HundredsOfGpusOnAnNvSwitchArePlanned) {
  std::string xml = "<system><cpu numaid=\"0\">\n";
  for (int i = 0; i < 400; ++i) {
    const std::string number = std::to_string(i);
    xml += "<pci busid=\"" + std::to_string(1000 + i) + ":01:00.0\"><gpu dev=\"" + number +
           "\" sm=\"90\"><nvlink target=\"ffff:ff:ff.0\" count=\"18\" tclass=\"0x068000\"/></gpu></pci>\n";
  }
  const ChannelPlan plan = plan_channels(cluster_of(parse_topology(xml + "</cpu></system>", "x"), 1));
  EXPECT_EQ(plan.channels.at(0).ring.size(), 400U);
  EXPECT_EQ(plan.within, TopoPathType::kNvl);
}

TEST(TopoFiles, RatesFollowGenerationLanesAndModel) {
  EXPECT_DOUBLE_EQ(topo::pci_gbps("8.0 GT/s PCIe", 16).value(), 12);
  EXPECT_DOUBLE_EQ(topo::pci_gbps("16 GT/s", 8).value(), 12);
  EXPECT_DOUBLE_EQ(topo::pci_gbps("2.5 GT/s", 1).value(), 0.234375);
  EXPECT_DOUBLE_EQ(topo::pci_gbps("", 0).value(), 12);
  EXPECT_FALSE(topo::pci_gbps("16", 8).has_value());
  EXPECT_FALSE(topo::pci_gbps("-8 GT/s", 8).has_value());
  EXPECT_GT(topo::nvlink_gbps(90), topo::nvlink_gbps(80));
  EXPECT_DOUBLE_EQ(topo::xgmi_gbps("910"), topo::xgmi_gbps("gfx90a")) << "as old versions of RCCL write it";
  EXPECT_DOUBLE_EQ(topo::xgmi_gbps("gfx908"), topo::xgmi_gbps("908"));
  EXPECT_GT(topo::nvlink_gbps(70), topo::nvlink_gbps(60));
  EXPECT_GT(topo::numa_gbps({"x86_64", "GenuineIntel", 6, 0x8F}), topo::numa_gbps({"x86_64", "GenuineIntel", 6, 0x55}));
}

TEST(TopoFiles, AFileThatIsNotThereIsNamed) {
  EXPECT_TRUE(test::fails([] { read_topology("/nowhere/x.xml"); }, ErrorCode::kIo, {"/nowhere/x.xml"}));
}

}  // namespace
}  // namespace slip::topo_test::test_files
