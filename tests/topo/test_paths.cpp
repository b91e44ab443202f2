// Paths, compared with an enumeration of all simple paths on small random machines.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>

#include "support/share.hpp"
#include "topo/made_system.hpp"

namespace slip::topo_test::test_paths {
namespace {

constexpr std::uint64_t kSeeds = 300 / test::kShare + 1;

TEST(TopoPaths, KnownMachine) {
  const TopoSystem system = data_system("nvswitch8.xml");
  const TopoPaths paths(system);
  const auto& g = system.devices;
  const auto& n = system.nets;
  EXPECT_EQ(paths.type(g[0], g[0]), TopoPathType::kLoc);
  EXPECT_EQ(paths.type(g[0], g[7]), TopoPathType::kNvl);
  EXPECT_DOUBLE_EQ(paths.gbps(g[0], g[7]), 240);
  EXPECT_EQ(paths.type(g[0], n[0]), TopoPathType::kPix);
  EXPECT_EQ(paths.type(g[0], n[3]), TopoPathType::kPxn);
  EXPECT_EQ(paths.type(n[3], g[0]), TopoPathType::kSys);  // PXN applies to sending only
  const TopoPath over = paths.between(g[0], n[3]);
  EXPECT_TRUE(over.proxy == g[6] || over.proxy == g[7]);
  EXPECT_DOUBLE_EQ(over.gbps, 24);
  EXPECT_EQ(system.links[static_cast<std::size_t>(over.links.front())].from, g[0]);
  EXPECT_EQ(system.links[static_cast<std::size_t>(over.links.back())].to, n[3]);
}

TEST(TopoPaths, PciTypes) {
  const TopoSystem system = parse_topology(
      "<system><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" class=\"0x060400\">"
      "<pci busid=\"0000:02:00.0\" class=\"0x030000\"/>"
      "<pci busid=\"0000:03:00.0\" class=\"0x060400\"><pci busid=\"0000:04:00.0\" class=\"0x030000\"/>"
      "<pci busid=\"0000:05:00.0\" class=\"0x020000\"/></pci></pci>"
      "<pci busid=\"0000:06:00.0\" class=\"0x030000\"/></cpu>"
      "<cpu numaid=\"1\"><pci busid=\"0000:07:00.0\" class=\"0x030000\"/></cpu></system>",
      "x");
  const TopoPaths paths(system);
  ASSERT_EQ(system.devices.size(), 4U);
  const auto& g = system.devices;
  EXPECT_EQ(paths.type(g[0], g[1]), TopoPathType::kPxb);
  EXPECT_EQ(paths.type(g[1], system.nets[0]), TopoPathType::kPix);
  EXPECT_EQ(paths.type(g[0], system.nets[0]), TopoPathType::kPxb);
  EXPECT_EQ(paths.type(g[0], g[2]), TopoPathType::kPhb);
  EXPECT_EQ(paths.type(g[0], g[3]), TopoPathType::kSys);
  EXPECT_DOUBLE_EQ(paths.gbps(g[0], g[3]), 6);
  EXPECT_STREQ(topo_path_name(paths.type(g[0], g[1])), "PXB");
}

// A NIC that cannot access GPU memory: the path leads up to the CPU and down again, though both are on one switch.
TEST(TopoPaths, WithoutGdrDataGoesThroughMemory) {
  const auto machine = [](const std::string& gdr) {
    return parse_topology(
        "<system><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\" class=\"0x060400\">"
        "<pci busid=\"0000:02:00.0\" class=\"0x030000\"/><pci busid=\"0000:03:00.0\" class=\"0x020000\">"
        "<nic><net dev=\"0\" speed=\"100000\" gdr=\"" +
            gdr + "\"/></nic></pci></pci></cpu></system>",
        "x");
  };
  for (const std::string gdr : {"0", "1"}) {
    const TopoSystem system = machine(gdr);
    const TopoPaths paths(system);
    const int gpu = system.devices[0], net = system.nets[0];
    EXPECT_EQ(paths.type(gpu, net), gdr == "1" ? TopoPathType::kPix : TopoPathType::kPhb);
    EXPECT_EQ(paths.between(gpu, net).links.size(), gdr == "1" ? 3U : 5U);
    EXPECT_EQ(paths.between(net, gpu).links.size(), gdr == "1" ? 3U : 5U);
    EXPECT_DOUBLE_EQ(paths.gbps(gpu, net), 12);
  }
}

bool is_end(TopoKind kind) { return kind == TopoKind::kGpu || kind == TopoKind::kCore || kind == TopoKind::kNet; }

struct Best {
  std::size_t hops = SIZE_MAX;
  double gbps = 0;
};

// All paths that visit no node twice.
Best walk(const TopoSystem& system, int from, int to) {
  Best best;
  std::vector<char> used(system.nodes.size(), 0);
  std::function<void(int, std::size_t, double)> step = [&](int here, std::size_t hops, double gbps) {
    if (here == to) {
      if (hops < best.hops || (hops == best.hops && gbps > best.gbps)) best = {hops, gbps};
      return;
    }
    if (here != from && is_end(system.nodes[static_cast<std::size_t>(here)].kind)) return;
    used[static_cast<std::size_t>(here)] = 1;
    for (const TopoLink& link : system.links) {
      if (link.from == here && !used[static_cast<std::size_t>(link.to)])
        step(link.to, hops + 1, std::min(gbps, link.gbps));
    }
    used[static_cast<std::size_t>(here)] = 0;
  };
  step(from, 0, 5000);
  return best;
}

void expect_sound(const TopoSystem& system, const TopoPath& path, int from, int to) {
  int here = from;
  double narrowest = 5000;
  for (const int number : path.links) {
    const TopoLink& link = system.links[static_cast<std::size_t>(number)];
    EXPECT_EQ(link.from, here);
    here = link.to;
    narrowest = std::min(narrowest, link.gbps);
  }
  EXPECT_EQ(here, to);
  EXPECT_DOUBLE_EQ(narrowest, path.gbps);
}

TEST(TopoPaths, WidestOfTheShortestOnRandomMachines) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const TopoSystem system = parse_topology(random_xml(seed, {6, 2}), "seed");
    const TopoPaths paths(system);
    for (std::size_t from = 0; from < system.nodes.size(); ++from) {
      for (std::size_t to = 0; to < system.nodes.size(); ++to) {
        const auto a = static_cast<int>(from), b = static_cast<int>(to);
        const TopoPath path = paths.between(a, b);
        if (path.type ==
            TopoPathType::kNone) {  // an NVSwitch and a CPU: only GPUs connect them, and paths do not pass through GPUs
          ASSERT_EQ(walk(system, a, b).hops, SIZE_MAX) << "seed " << seed;
          continue;
        }
        expect_sound(system, path, a, b);
        if (path.type == TopoPathType::kPxn) {
          EXPECT_EQ(paths.type(a, path.proxy), TopoPathType::kNvl);
          EXPECT_LE(paths.type(path.proxy, b), TopoPathType::kPxb);
          EXPECT_GE(path.gbps, walk(system, a, b).gbps) << "seed " << seed;
          continue;
        }
        if (path.type == TopoPathType::kNvl && path.proxy >= 0) {  // a GPU between them forwards (NVB)
          EXPECT_EQ(paths.type(a, path.proxy), TopoPathType::kNvl);
          EXPECT_EQ(paths.type(path.proxy, b), TopoPathType::kNvl);
          EXPECT_GT(path.gbps, walk(system, a, b).gbps) << "seed " << seed;
          continue;
        }
        const Best best = walk(system, a, b);
        ASSERT_EQ(path.links.size(), best.hops) << "seed " << seed << " from " << from << " to " << to;
        ASSERT_DOUBLE_EQ(path.gbps, best.gbps) << "seed " << seed << " from " << from << " to " << to;
      }
    }
  }
}

}  // namespace
}  // namespace slip::topo_test::test_paths
