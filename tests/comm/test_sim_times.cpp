// What calls of ranks on sim devices take: the times of the program simulation, the predicted times, and what the links
// leave.
#include <gtest/gtest.h>

#include <map>

#include "comm/plan/tuning.hpp"
#include "comm/sim/predict.hpp"
#include "slip/trace.hpp"
#include "support/share.hpp"
#include "world_ranks.hpp"

namespace slip::test_sim_times {
namespace {

using test::kSwitchGbps;
using test::kSwitchLatencyUs;
using test::sim_world;
using test::with;
using test::WorldRanks;

// The programs of the call on a world of the same description, as the checker and `slip topo --predict` see them.
double simulated_us(const std::string& world, const comm::Call& call, Algorithm algorithm, int count) {
  const comm::ScheduleChoice choice = comm::choose(call, {.nranks = count}, algorithm, false, false);
  std::vector<int> order;
  for (int rank = 0; rank < count; ++rank) order.push_back(rank);
  const std::vector<Device> devices = Device::open_all(world, count, {.queue_depth = 1 << 20, .run_functions = false});
  comm::ProgramSimulation simulation(devices, comm::WireKind::kPipelined);
  const comm::CallSpec spec{choice.schedule, call, true, choice.chunk_bytes};
  simulation.add(comm::rank_programs(spec, comm::CommGraph::of(order)));
  Plan plan = simulation.plan();
  const Stream stream = devices.front().stream(StreamFlags::kNonBlocking);
  const Picos begun = devices.front().now();
  stream.launch(plan);
  stream.sync();
  return static_cast<double>(devices.front().now() - begun) / 1e6;
}

// With a queue for each stream of a simulation, which has one for each wire.
std::string with_many_queues(std::string world) {
  const std::string few = "\"queues\": 8";
  return world.replace(world.find(few), few.size(), "\"queues\": 128");
}

comm::Call all_reduce_of(std::uint64_t bytes) {
  return {.kind = comm::Collective::kAllReduce, .type = DataType::kF32, .elements = bytes / 4};
}

// In place, from an instant at which all ranks are free.
double all_reduce_us(WorldRanks& ranks, std::uint64_t bytes) {
  std::vector<Buffer> data;
  for (const Device& device : ranks.devices) data.push_back(device.alloc(bytes));
  return ranks.us([&] {
    for (std::size_t i = 0; i < ranks.size(); ++i)
      ranks.comms[i].all_reduce(data[i], data[i], DataType::kF32, ReduceOp::kSum, ranks.streams[i]);
  });
}

class SimTimes : public testing::TestWithParam<Algorithm> {};
INSTANTIATE_TEST_SUITE_P(By, SimTimes,
                         testing::Values(Algorithm::kDirect, Algorithm::kRing, Algorithm::kTree, Algorithm::kDoubling),
                         [](const auto& one) { return std::string(algorithm_name(one.param)); });

TEST_P(SimTimes, AreThoseOfTheRehearsal) {
  for (const double memory_gbps : {1e6, 500.0}) {
    for (const int count : {2, 5}) {
      if (test::kShare > 1 && count > 2 && memory_gbps < 1e6) continue;
      WorldRanks ranks(sim_world(memory_gbps), count, with(GetParam()));
      for (const std::uint64_t bytes : {64U, 100'000U, 8U << 20}) {
        const double expected =
            simulated_us(with_many_queues(sim_world(memory_gbps)), all_reduce_of(bytes), GetParam(), count);
        EXPECT_NEAR(all_reduce_us(ranks, bytes), expected, 1e-3) << count << " ranks, " << bytes << " bytes";
      }
    }
  }
}

// And of topologies: a switch whose ports have what the file says. Predictions for GPUs use eager wires: a message does
// not wait for the receiver's program, as it does here, so it takes no longer.
TEST(SimTimesOf, ATopologyAreNearThosePredicted) {
  const Cluster cluster = cluster_of(read_topology(SLIP_SOURCE_DIR "/tests/topo/data/nvswitch8.xml"), 1);
  const TopoSystem& system = cluster.nodes.front();
  const double gbps = TopoPaths(system).gbps(system.devices[0], system.devices[1]);
  const std::string world = fmt::format(
      "sim:{{\"name\": \"gpu\", \"memory\": \"80 GB\","
      " \"compute\": {{\"flops\": \"100 TFLOP/s\", \"bandwidth\": \"2000 GB/s\"}},"
      " \"copies\": {{\"in\": \"25 GB/s\", \"out\": \"25 GB/s\"}},"
      " \"peers\": {{\"form\": \"switch\", \"bandwidth\": \"{:.0f} MB/s\", \"latency\": \"3 us\"}}}}",
      gbps * 1e3);
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect}) {
    comm::PredictionRequest asked{.call = all_reduce_of(16 << 20), .algorithm = algorithm};
    asked.costs.latency_us = 3;
    const double predicted = comm::predict(cluster, plan_channels(cluster, {.max_channels = 1}), asked).us;
    WorldRanks ranks(world, 8, with(algorithm));
    const double us = all_reduce_us(ranks, 16 << 20);
    EXPECT_LE(predicted, 1.01 * us) << algorithm_name(algorithm);
    EXPECT_GE(predicted, 0.7 * us) << algorithm_name(algorithm);
  }
}

TEST(SimTimesOf, MessagesAreThoseOfTheirWay) {
  WorldRanks ranks(sim_world(), 3);
  const std::size_t bytes = 10 << 20;
  const double alone = kSwitchLatencyUs + bytes / (kSwitchGbps * 1e3);
  std::vector<Buffer> data;
  for (const Device& device : ranks.devices) data.push_back(device.alloc(2 * bytes));
  EXPECT_NEAR(ranks.us([&] {
    ranks.comms[0].send(data[0].slice(0, bytes), 1, ranks.streams[0]);
    ranks.comms[1].recv(data[1].slice(0, bytes), 0, ranks.streams[1]);
  }),
              alone, 1e-3);
  EXPECT_NEAR(ranks.us([&] {  // two through one port
    Group group;
    ranks.comms[0].send(data[0].slice(0, bytes), 1, ranks.streams[0]);
    ranks.comms[0].send(data[0].slice(bytes, bytes), 2, ranks.streams[0]);
    ranks.comms[1].recv(data[1].slice(0, bytes), 0, ranks.streams[1]);
    ranks.comms[2].recv(data[2].slice(0, bytes), 0, ranks.streams[2]);
    group.end();
  }),
              2 * alone - kSwitchLatencyUs, 1e-3);
}

// What lies in the host's memory goes through the device's own connection.
TEST(SimTimesOf, PinnedBuffersAreThoseOfTheHostsLink) {
  WorldRanks ranks(sim_world(), 2);
  const std::size_t bytes = 10 << 20;
  const Buffer from = ranks.devices[0].alloc(bytes, MemoryKind::kPinned), to = ranks.devices[1].alloc(bytes);
  EXPECT_NEAR(ranks.us([&] {
    ranks.comms[0].send(from, 1, ranks.streams[0]);
    ranks.comms[1].recv(to, 0, ranks.streams[1]);
  }),
              1 + bytes / 25e3, 1e-3);
}

// Two calls at once share the links, and so does a copy of the program.
TEST(SimTimesOf, WhatRunsBesideSharesTheLinks) {
  WorldRanks ranks(sim_world(), 2, with(Algorithm::kRing));
  std::vector<Communicator> others = Communicator::init_all(ranks.devices, with(Algorithm::kRing));
  const std::uint64_t bytes = 32 << 20;
  const double alone = all_reduce_us(ranks, bytes);
  std::vector<Stream> sides;
  std::vector<Buffer> data, more;
  for (const Device& device : ranks.devices) {
    sides.push_back(device.stream(StreamFlags::kNonBlocking));
    data.push_back(device.alloc(bytes));
    more.push_back(device.alloc(bytes));
  }
  const auto call = [&](std::vector<Communicator>& comms, const std::vector<Stream>& streams,
                        const std::vector<Buffer>& on) {
    for (std::size_t i = 0; i < 2; ++i) comms[i].all_reduce(on[i], on[i], DataType::kF32, ReduceOp::kSum, streams[i]);
  };
  const auto both = [&] {
    call(ranks.comms, ranks.streams, data);
    call(others, sides, more);
    for (const Stream& side : sides) side.sync();
  };
  // Each has to move its bytes; what one leaves idle, while it waits for the first byte of a message, the other uses.
  const double by_links = static_cast<double>(bytes) / (kSwitchGbps * 1e3);
  const auto beside_a_copy = [&] {
    sides[0].copy(more[1], more[0]);
    call(ranks.comms, ranks.streams, data);
    sides[0].sync();
  };
  for (const double us : {ranks.us(both), ranks.us(beside_a_copy)}) {
    EXPECT_GE(us, 2 * by_links);
    EXPECT_LE(us, alone + by_links + 1e-3);
  }
}

// It begins when the last has come, takes what it takes, and kernels run beside it.
TEST(SimTimesOf, ACallBeginsWhenAllHaveCome) {
  WorldRanks ranks(sim_world(), 2, with(Algorithm::kRing));
  const std::uint64_t bytes = 8 << 20;
  const double alone = all_reduce_us(ranks, bytes);
  static const Kernel kWork{"work", [](const Args&) {}};
  std::vector<Buffer> data;
  for (const Device& device : ranks.devices) data.push_back(device.alloc(bytes));
  const Stream beside = ranks.devices[0].stream(StreamFlags::kNonBlocking);
  const double us = ranks.us([&] {
    ranks.streams[1].launch(kWork, {}, {.time = 500'000'000});
    for (std::size_t i = 0; i < 2; ++i)
      ranks.comms[i].all_reduce(data[i], data[i], DataType::kF32, ReduceOp::kSum, ranks.streams[i]);
    beside.launch(kWork, {}, {.time = 600'000'000});
  });
  EXPECT_NEAR(us, 500 + alone, 1e-3);
  beside.sync();
}

// A call that waits for other ranks holds its hardware queue; with another queue what is behind it goes on (N3).
TEST(SimTimesOf, ACallThatWaitsHoldsItsQueue) {
  for (const int queues : {1, 8}) {
    const std::vector<Device> devices = Device::open_all(sim_world(), 2, {.max_connections = queues});
    std::vector<Communicator> comms = Communicator::init_all(devices);
    const Stream first = devices[0].stream(StreamFlags::kNonBlocking), other = devices[1].stream(),
                 behind = devices[0].stream(StreamFlags::kNonBlocking);
    static const Kernel kWork{"work", [](const Args&) {}};
    comms[0].barrier(first);
    behind.launch(kWork, {}, {.time = 1'000'000});
    EXPECT_EQ(behind.sync_for(std::chrono::milliseconds(5)), queues == 8);
    comms[1].barrier(other);
    behind.sync();
    first.sync();
    other.sync();
  }
}

TEST(SimTimesOf, ATraceHasEachCallInItsStream) {
  WorldRanks ranks(sim_world(), 3, with(Algorithm::kRing));
  Trace trace;
  const double us = all_reduce_us(ranks, 1 << 20);
  trace.stop();
  std::map<std::uint32_t, double> seen;  // by device
  for (const TraceSpan& span : trace.data().spans()) {
    if (span.kind != OpKind::kExchange) continue;
    EXPECT_EQ(span.name, "all_reduce");
    EXPECT_EQ(span.reads.size(), 1U);
    EXPECT_EQ(span.writes.size(), 1U);
    ASSERT_TRUE(span.run);
    seen[span.device] = static_cast<double>(span.ended - span.started) / 1e6;
  }
  ASSERT_EQ(seen.size(), 3U);
  for (const auto& [device, took] : seen) EXPECT_NEAR(took, us, 0.01 * us) << device;
}

// Nothing is touched then, and the times are the same.
TEST(SimTimesOf, DevicesThatRunNoFunctionsAreTheSame) {
  WorldRanks ranks(sim_world(), 3);
  const double expected = all_reduce_us(ranks, 4 << 20);
  WorldRanks dry(Device::open_all(sim_world(), 3, {.run_functions = false}));
  EXPECT_DOUBLE_EQ(all_reduce_us(dry, 4 << 20), expected);
}

TEST(SimTimesOf, TheSameProgramAreTheSame) {
  std::vector<double> seen;
  for (int i = 0; i < 3; ++i) {
    WorldRanks ranks("sim:h200", 4);
    seen.push_back(all_reduce_us(ranks, 3 << 20));
    seen.back() += all_reduce_us(ranks, 5000);
  }
  EXPECT_DOUBLE_EQ(seen[0], seen[1]);
  EXPECT_DOUBLE_EQ(seen[0], seen[2]);
}

// By a model with the rates of these links; the best is found by trying all.
TEST(SimTimesOf, TheChosenAlgorithmAreNotFarFromTheBest) {
  const auto us = [](std::uint64_t bytes, Algorithm algorithm) {
    WorldRanks ranks(Device::open_all("sim:h200", 4, {.run_functions = false}), with(algorithm));
    return all_reduce_us(ranks, bytes);
  };
  for (const std::uint64_t bytes : {1024U, 64U << 20}) {
    double best = us(bytes, Algorithm::kDirect);
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTree, Algorithm::kDoubling})
      best = std::min(best, us(bytes, algorithm));
    EXPECT_LT(us(bytes, Algorithm::kAuto), 1.5 * best) << bytes;
  }
}

}  // namespace
}  // namespace slip::test_sim_times
