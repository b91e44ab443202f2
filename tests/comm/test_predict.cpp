// Predictions against what can be calculated by hand.
#include <gtest/gtest.h>

#include "base/thread.hpp"
#include "comm/plan/tuning.hpp"
#include "comm/sim/predict.hpp"

namespace slip::test_predict {
namespace {

Cluster cluster_from(const std::string& file, int nodes) {
  return cluster_of(read_topology(SLIP_SOURCE_DIR "/tests/topo/data/" + file), nodes);
}

comm::PredictionRequest all_reduce_of(std::uint64_t bytes, Algorithm algorithm = Algorithm::kRing) {
  comm::PredictionRequest asked;
  asked.call = {.kind = comm::Collective::kAllReduce, .type = DataType::kF32, .elements = bytes / 4};
  asked.algorithm = algorithm;
  asked.costs = {.latency_us = 0, .net_latency_us = 0, .memory_gbps = 1e6};  // links only
  return asked;
}

// In a ring each rank sends 2 (n - 1) / n of the data; each step waits for the latency once.
TEST(Predict, ARingTakesWhatItsLinksTake) {
  const Cluster cluster = cluster_from("nvswitch8.xml", 1);
  const ChannelPlan plan = plan_channels(cluster, {.max_channels = 1});
  const TopoSystem& system = cluster.nodes.front();
  const double gbps = TopoPaths(system).gbps(system.devices[0], system.devices[1]);
  const double n = 8, bytes = 4 * n * 512 * 1024, steps = 4 * 2 * (n - 1);  // four times round
  const double by_links = 2 * (n - 1) / n * bytes / (gbps * 1e3);
  comm::PredictionRequest asked = all_reduce_of(static_cast<std::uint64_t>(bytes));
  const double quick = comm::predict(cluster, plan, asked).us;
  EXPECT_NEAR(quick, by_links, 0.03 * by_links);
  asked.costs.latency_us = 2;
  const double slow = comm::predict(cluster, plan, asked).us;
  EXPECT_NEAR(slow, by_links + 2 * steps, 0.04 * slow);
}

// 16 ranks on two machines: a slice of a ring crosses the network in 4 of its 30 steps, and waits for the network's
// latency in these only.
TEST(Predict, ARingPaysTheLatencyOfTheNetworkForFewSteps) {
  const Cluster cluster = cluster_from("nvswitch8.xml", 2);
  comm::PredictionRequest asked = all_reduce_of(64 << 10);
  asked.costs.net_latency_us = 6;
  const double us = comm::predict(cluster, plan_channels(cluster), asked).us;
  EXPECT_GT(us, 3 * 6);
  EXPECT_LT(us, 5 * 6 + 5);
}

// All channels at once share the links as the search for them said.
TEST(Predict, AllChannelsReachTheRateOfThePlan) {
  struct Machine {
    const char* file;
    int nodes;
  };
  for (const Machine& machine :
       {Machine{"nvswitch8.xml", 1}, Machine{"nvswitch8.xml", 2}, Machine{"azure_ndv4-topo.xml", 1},
        Machine{"azure_ndv4-topo.xml", 2}, Machine{"aws_p4d-24xl-topo.xml", 2}}) {
    const Cluster cluster = cluster_from(machine.file, machine.nodes);
    const ChannelPlan plan = plan_channels(cluster);
    const double n = static_cast<double>(cluster.ranks.size()), bytes = 64 << 20;
    const double us = comm::predict(cluster, plan, all_reduce_of(static_cast<std::uint64_t>(bytes))).us;
    const double gbps = 2 * (n - 1) / n * bytes / us / 1e3;
    EXPECT_NEAR(gbps, plan.ring_gbps, 0.05 * plan.ring_gbps) << machine.file << ", " << machine.nodes << " machines";
  }
}

// Each rank sends and receives 2 (n - 1) / n of the data through its own port of the switch.
TEST(Predict, DirectTakesWhatThePortsTake) {
  const Cluster cluster = cluster_from("nvswitch8.xml", 1);
  const TopoSystem& system = cluster.nodes.front();
  const double gbps = TopoPaths(system).gbps(system.devices[0], system.devices[1]);
  const double n = 8, bytes = 32 << 20, by_links = 2 * (n - 1) / n * bytes / (gbps * 1e3);
  const double us = comm::predict(cluster, plan_channels(cluster), all_reduce_of(32 << 20, Algorithm::kDirect)).us;
  EXPECT_NEAR(us, by_links, 0.03 * by_links);
}

// Data crosses a machine's port once each way, and not twice as in a tree.
TEST(Predict, ASwitchThatReducesIsFasterThanATree) {
  const Cluster cluster = cluster_from("nvswitch8.xml", 4);
  const ChannelPlan plan = plan_channels(cluster);
  comm::PredictionRequest asked = all_reduce_of(16 << 20, Algorithm::kTree);
  asked.chunk_bytes = 128 << 10;  // the usual, smaller chunks give the same order and take 30 times as long
  const double tree = comm::predict(cluster, plan, asked).us;
  asked.through_switch = true;
  const double through = comm::predict(cluster, plan, asked).us;
  EXPECT_LT(through, tree);
  EXPECT_GE(through, (16 << 20) / (plan.switch_gbps * 1e3));  // no faster than the ports
}

// On rails a GPU reaches the net of another rail through the processor, and all share that way; relays spare it.
TEST(Predict, RelaysSpareTheHostBridge) {
  const Cluster cluster = cluster_from("nvswitch8.xml", 2);
  const ChannelPlan plan = plan_channels(cluster);
  comm::PredictionRequest asked;
  asked.call = {.kind = comm::Collective::kAllToAll, .type = DataType::kF32, .elements = 256 << 10};
  asked.rails = true;
  asked.algorithm = Algorithm::kDirect;
  const double direct = comm::predict(cluster, plan, asked).us;
  asked.algorithm = Algorithm::kRelay;
  const double relayed = comm::predict(cluster, plan, asked).us;
  // Two ranks of each machine get a block of each of the eight others through one port.
  const TopoSystem& system = cluster.nodes.front();
  const double by_ports = 2 * 8 * (1 << 20) / (TopoPaths(system).gbps(system.nets[0], system.devices[0]) * 1e3);
  EXPECT_GE(relayed, by_ports);
  EXPECT_LT(relayed, direct);
}

// All goes through the CPU's memory: beside the NIC's own traffic its switch carries what the two GPUs below it send
// and get, half as much again, unless others do that for them.
TEST(Predict, RelaysSpareTheSwitchOfANic) {
  const Cluster cluster = cluster_from("host_memory.xml", 2);
  const ChannelPlan plan = plan_channels(cluster);
  comm::PredictionRequest asked;
  asked.call = {.kind = comm::Collective::kAllToAll, .type = DataType::kU8, .elements = 2 << 20};
  asked.costs = {.latency_us = 0, .net_latency_us = 0, .memory_gbps = 1e6};
  asked.algorithm = Algorithm::kDirect;
  const double direct = comm::predict(cluster, plan, asked).us;
  asked.algorithm = Algorithm::kRelay;
  const double relayed = comm::predict(cluster, plan, asked).us;
  const double crossing = 4.0 * 4 * (2 << 20) / 12e3;  // four ranks send a block to each of four, at 12 GB/s
  EXPECT_GE(direct, 1.5 * crossing);
  EXPECT_GE(relayed, crossing);
  EXPECT_LT(relayed, 0.8 * direct);
}

TEST(Predict, TheSameTwice) {
  const Cluster cluster = cluster_from("azure_ncv4-topo.xml", 2);
  const ChannelPlan plan = plan_channels(cluster);
  for (const comm::Schedule& schedule : comm::schedules()) {
    if (schedule.kind == comm::Collective::kBarrier) continue;
    comm::PredictionRequest asked;
    asked.call = {.kind = schedule.kind, .type = DataType::kF32, .root = 1, .elements = 100'000};
    asked.algorithm = schedule.algorithm;
    const double first = comm::predict(cluster, plan, asked).us;
    EXPECT_GT(first, 0);
    EXPECT_EQ(first, comm::predict(cluster, plan, asked).us) << comm::collective_name(schedule.kind);
  }
}

TEST(Predict, WhatCannotBeIsRefused) {
  const Cluster cluster = cluster_from("nvswitch8.xml", 1);
  const ChannelPlan plan = plan_channels(cluster);
  EXPECT_THROW(comm::predict(cluster, plan, all_reduce_of(0)), Error);
  comm::PredictionRequest asked = all_reduce_of(1 << 20, Algorithm::kTree);
  asked.through_switch = true;  // one machine has no network
  EXPECT_THROW(comm::predict(cluster, plan, asked), Error);
  asked = all_reduce_of(1 << 20);
  asked.chunk_bytes = 64;  // a million messages
  asked.call.elements = std::uint64_t{1} << 30;
  EXPECT_THROW(comm::predict(cluster, plan, asked), Error);
}

// Two ranks of one host by pipes, whose figures are constants: a ring sends every byte once, and nobody copies or adds
// more than four times over.
TEST(Forecast, LiesBetweenWhatLinksAndMemoryTake) {
  CommunicatorOptions options;
  options.algorithm = Algorithm::kRing;
  const std::vector<Device> devices(2, Device::open("cpu", {.compute_workers = 2}));
  const std::vector<Communicator> comms = Communicator::init_all(devices, options);
  const double memory = comm::kMemoryGbps * std::min(static_cast<double>(base::core_set().count()) / 2, 1.0) * 1e3;
  for (const std::uint64_t bytes : {1U << 20, 16U << 20}) {
    const comm::Call call{.kind = comm::Collective::kAllReduce, .type = DataType::kF32, .elements = bytes / 4};
    const double us = comm::CallPredictor(comms[0]).us(call, false, 1), links = static_cast<double>(bytes) / 10e3;
    EXPECT_GT(us, links);
    EXPECT_LT(us, links + 12 * static_cast<double>(bytes) / memory + 100);
    EXPECT_EQ(comm::CallPredictor(comms[1]).us(call, false, 1), us);
    EXPECT_LE(comm::CallPredictor(comms[0]).us(call, false, 3), us * 1.001) << "a call, of three one after the other";
  }
}

// What can be done where the buffers lie is not staged.
TEST(Forecast, SeesBuffersInReach) {
  std::vector<Communicator> alone = Communicator::init_all(std::vector{Device::open("cpu", {.compute_workers = 2})});
  const comm::Call call{.kind = comm::Collective::kAllReduce, .type = DataType::kF32, .elements = 1 << 20};
  EXPECT_THROW(static_cast<void>(comm::CallPredictor(alone[0]).us(call, false, 1)), Error);
  const std::vector<Device> devices(2, Device::open("cpu", {.compute_workers = 2}));
  const std::vector<Communicator> comms = Communicator::init_all(devices);
  const double us = comm::CallPredictor(comms[0]).us(call, false, 2);
  EXPECT_GT(us, 0);
  EXPECT_LT(us,
            comm::CallPredictor(comms[0]).us({.kind = comm::Collective::kAllReduce, .elements = 4 << 20}, false, 2));
}

}  // namespace
}  // namespace slip::test_predict
