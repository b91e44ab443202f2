// Max-min fair sharing: by hand, as a property of random networks, and between devices.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <random>

#include "backend/sim/links.hpp"
#include "sim/support.hpp"

namespace slip::test::test_links {
namespace {

TEST(SimLinks, FlowsOfOneLinkShareIt) {
  sim::FlowNetwork links;
  const sim::Path path = {links.add(1'000'000'000)};
  sim::Flow a, b;
  links.start(a, path, 1000, 0);
  links.settle(0);
  EXPECT_EQ(a.end, 1000 * kNano);
  links.start(b, path, 1000, 400 * kNano);
  links.settle(400 * kNano);
  EXPECT_EQ(a.end, 1600 * kNano);  // 600 left, at half the rate
  links.stop(a);
  links.settle(1600 * kNano);
  EXPECT_EQ(b.end, 2000 * kNano);  // 400 left, alone
}

TEST(SimLinks, WhatAFlowCannotUseGoesToTheOthers) {
  sim::FlowNetwork links;
  const std::uint32_t wide = links.add(9000), narrow = links.add(1000);
  const sim::Path both = {wide, narrow}, one = {wide};
  sim::Flow a, b, c;
  links.start(a, both, 1, 0);
  links.start(b, one, 1, 0);
  links.start(c, one, 1, 0);
  links.settle(0);
  EXPECT_EQ(a.rate, 1000u);
  EXPECT_EQ(b.rate, 4000u);
  EXPECT_EQ(c.rate, 4000u);
}

TEST(SimLinks, OnlyTheConnectedPartChanges) {
  sim::FlowNetwork links;
  const sim::Path here = {links.add(1000)}, there = {links.add(1000)};
  sim::Flow a, b, c;
  links.start(a, here, 100, 0);
  links.start(b, there, 100, 0);
  EXPECT_EQ(links.settle(0).size(), 2u);
  links.start(c, here, 100, 0);
  EXPECT_EQ(links.settle(0).size(), 2u);  // a and c
  EXPECT_EQ(b.rate, 1000u);
  EXPECT_TRUE(links.settled());
}

// Max-min: no link carries more than it can, and every flow crosses a full link on which no flow is faster.
TEST(SimLinks, RandomNetworksAreMaxMinFair) {
  constexpr unsigned kSeed = 20261;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  std::mt19937 random(kSeed);
  for (int round = 0; round < 200; ++round) {
    sim::FlowNetwork links;
    std::vector<std::uint64_t> capacity(1 + random() % 8);
    for (std::uint64_t& each : capacity) links.add(each = 1'000'000 + random() % 1'000'000'000);
    std::deque<sim::Path> paths;
    std::deque<sim::Flow> flows;
    std::vector<bool> alive;
    for (int step = 0; step < 30; ++step) {
      if (random() % 3 == 0 && !flows.empty()) {
        const std::size_t victim = random() % flows.size();
        if (alive[victim]) links.stop(flows[victim]);
        alive[victim] = false;
      } else {
        sim::Path path;
        for (std::uint32_t link = 0; link < capacity.size(); ++link) {
          if (random() % 3 == 0) path.push_back(link);
        }
        if (path.empty()) path.push_back(0);
        paths.push_back(path);
        links.start(flows.emplace_back(), paths.back(), 1'000'000, step);
        alive.push_back(true);
      }
      links.settle(step);
    }
    std::vector<std::uint64_t> carried(capacity.size()), fastest(capacity.size());
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (!alive[i]) continue;
      for (const std::uint32_t link : paths[i]) {
        carried[link] += flows[i].rate;
        fastest[link] = std::max(fastest[link], flows[i].rate);
      }
    }
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (!alive[i]) continue;
      const bool bound = std::any_of(paths[i].begin(), paths[i].end(), [&](std::uint32_t link) {
        return carried[link] + 30 >= capacity[link] && flows[i].rate + 1 >= fastest[link];  // less rounding
      });
      EXPECT_TRUE(bound) << "round " << round << " flow " << i;
    }
    for (std::size_t link = 0; link < capacity.size(); ++link) EXPECT_LE(carried[link], capacity[link]);
  }
}

struct Peers {
  Peers(int count, const std::string& form) : devices(open_exact_all(count, {.peers = form})) {
    for (const Device& device : devices) {
      streams.push_back(device.stream(StreamFlags::kNonBlocking));
      backwards.push_back(device.stream(StreamFlags::kNonBlocking));
      sources.push_back(device.alloc(1000));
      targets.push_back(device.alloc(1000));
      others.push_back(device.alloc(1000));
    }
  }
  void sync() {
    for (const Device& device : devices) device.sync();
  }
  std::vector<Device> devices;
  std::vector<Stream> streams, backwards;
  std::vector<Buffer> sources, targets, others;
};

TEST(SimPeers, SwitchSharesThePortsOfADevice) {
  Peers peers(4, R"({"form": "switch", "bandwidth": "1 GB/s", "latency": "5 ns"})");
  Recorder recorder;
  peers.streams[0].copy(peers.targets[3], peers.sources[0], "0 to 3");
  peers.streams[1].copy(peers.others[3], peers.sources[1], "1 to 3");
  peers.streams[2].copy(peers.targets[0], peers.sources[2], "2 to 0");
  peers.sync();
  EXPECT_EQ(span(recorder.run("0 to 3")), "[0, 2005]");
  EXPECT_EQ(span(recorder.run("1 to 3")), "[0, 2005]");
  EXPECT_EQ(span(recorder.run("2 to 0")), "[0, 1005]");
}

TEST(SimPeers, RingWithItsOwnLinkForEachDirection) {
  Peers peers(4, R"({"form": "ring", "bandwidth": "1 GB/s"})");
  Recorder recorder;
  for (std::size_t i = 0; i < 4; ++i) {
    peers.streams[i].copy(peers.targets[(i + 1) % 4], peers.sources[i], fmt::format("f{}", i));
    peers.backwards[i].copy(peers.others[(i + 3) % 4], peers.sources[i], fmt::format("b{}", i));
  }
  peers.sync();
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(span(recorder.run(fmt::format("f{}", i))), "[0, 1000]");
    EXPECT_EQ(span(recorder.run(fmt::format("b{}", i))), "[0, 1000]");
  }
}

TEST(SimPeers, SharedRingCarriesBothDirectionsOnOneLink) {
  Peers peers(4, R"({"form": "ring", "bandwidth": "1 GB/s", "shared": true})");
  Recorder recorder;
  for (std::size_t i = 0; i < 4; ++i) {
    peers.streams[i].copy(peers.targets[(i + 1) % 4], peers.sources[i], fmt::format("f{}", i));
    peers.backwards[i].copy(peers.others[(i + 3) % 4], peers.sources[i], fmt::format("b{}", i));
  }
  peers.sync();
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(span(recorder.run(fmt::format("f{}", i))), "[0, 2000]");
}

TEST(SimPeers, RingTakesTheShorterWayOverAllLinksBetween) {
  Peers peers(5, R"({"form": "ring", "bandwidth": "1 GB/s", "latency": "10 ns"})");
  Recorder recorder;
  peers.streams[0].copy(peers.targets[2], peers.sources[0], "two ahead");
  peers.streams[1].copy(peers.targets[4], peers.sources[1], "two back");
  peers.sync();
  EXPECT_EQ(span(recorder.run("two ahead")), "[0, 1020]");
  EXPECT_EQ(span(recorder.run("two back")), "[0, 1020]");
  peers.streams[0].copy(peers.targets[2], peers.sources[0], "a");
  peers.backwards[1].copy(peers.others[2], peers.sources[1], "b");  // shares the link from 1 to 2
  peers.sync();
  const OpRun a = recorder.run("a"), b = recorder.run("b");
  EXPECT_EQ(b.end - b.start, 10 + 1990);  // 10 ns alone, then half of the link
  EXPECT_EQ(a.end - a.start, 20 + 1990);  // half of it until b ends, then alone
}

TEST(SimPeers, ListedLinksAndTheHostPaths) {
  Peers peers(3, R"({"form": "links", "links": {"pcie": "1 GB/s", "bridge": "2 GB/s"}, "paths": [
    {"from": 0, "to": 1, "links": ["bridge"], "latency": "7 ns"},
    {"from": "host", "to": 0, "links": ["pcie"]}, {"from": "host", "to": 1, "links": ["pcie"]}]})");
  Buffer host = peers.devices[0].alloc(1000, MemoryKind::kPinned);
  Recorder recorder;
  peers.streams[0].copy(peers.targets[1], peers.sources[0], "bridge");
  peers.backwards[0].copy(peers.targets[0], host, "in 0");
  peers.backwards[1].copy(peers.others[1], host, "in 1");
  peers.backwards[2].copy(peers.targets[2], host, "in 2");
  peers.sync();
  EXPECT_EQ(span(recorder.run("bridge")), "[0, 507]");
  EXPECT_EQ(span(recorder.run("in 0")), "[0, 2000]");  // two devices behind one root port
  EXPECT_EQ(span(recorder.run("in 1")), "[0, 2000]");
  EXPECT_EQ(span(recorder.run("in 2")), "[0, 1000]");
}

}  // namespace
}  // namespace slip::test::test_links
