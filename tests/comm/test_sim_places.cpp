// Ranks on sim devices whose places are in a topology file, and communicators made from others there.
#include <gtest/gtest.h>

#include <optional>

#include "support/errors.hpp"
#include "world_ranks.hpp"

namespace slip::test_sim_places {
namespace {

using test::Bytes;
using test::expect_no_errors;
using test::Met;
using test::with;
using test::WorldRanks;

std::string data_file(const std::string& name) { return SLIP_SOURCE_DIR "/tests/topo/data/" + name; }

// Four devices with links round a ring only.
std::string ring_world() {
  return "sim:{\"name\": \"rank\", \"memory\": \"80 GB\", \"queues\": 8,"
         " \"compute\": {\"flops\": \"100 TFLOP/s\", \"bandwidth\": \"100000 GB/s\"},"
         " \"copies\": {\"in\": \"25 GB/s\", \"out\": \"25 GB/s\", \"latency\": \"1 us\"},"
         " \"peers\": {\"form\": \"ring\", \"bandwidth\": \"20 GB/s\", \"latency\": \"1 us\"}}";
}

// What an all_reduce by a ring takes, with ranks 1 and 2 on each other's device.
double crossed_us(const std::string& topology) {
  std::vector<Device> devices = Device::open_all(ring_world(), 4);
  std::swap(devices[1], devices[2]);
  CommunicatorOptions options = with(Algorithm::kRing);
  options.topology = topology;
  WorldRanks ranks(std::move(devices), options);
  constexpr std::size_t kBytes = 4 << 20;
  std::vector<Buffer> data;
  for (std::size_t rank = 0; rank < 4; ++rank) data.push_back(ranks.upload(rank, Bytes(kBytes)));
  return ranks.us([&] {
    for (std::size_t rank = 0; rank < 4; ++rank)
      ranks.comms[rank].all_reduce(data[rank], data[rank], DataType::kF32, ReduceOp::kSum, ranks.streams[rank]);
  });
}

// The file says that 0, 2, 1, 3 are neighbours, as they are on these devices: no message passes two links.
TEST(SimPlaces, ATopologyGivesTheOrderInVirtualTime) {
  EXPECT_LT(crossed_us(data_file("crossed4.xml")), 0.8 * crossed_us(""));
}

// Ranks of two hosts by name, each with its options.
TEST(SimPlaces, RelaysOfATopologyGiveTheSameBytes) {
  for (const char* const file : {"host_memory.xml", "crossed4.xml"}) {
    const std::vector<Device> devices = Device::open_all(test::sim_world(), 8);
    const UniqueId id = test::local_id();
    std::vector<std::optional<Communicator>> comms(8);
    expect_no_errors(test::as_ranks(8, [&](int rank) {
      CommunicatorOptions options = with(Algorithm::kRelay);
      options.topology = data_file(file);
      options.host = rank < 4 ? "first" : "second";
      const auto index = static_cast<std::size_t>(rank);
      comms[index].emplace(Communicator::init(id, 8, rank, devices[index], options));
    }));
    constexpr std::size_t kBlock = 1000;
    std::vector<Buffer> from, to;
    std::vector<Stream> streams;
    for (std::size_t rank = 0; rank < 8; ++rank) {
      streams.push_back(devices[rank].stream(StreamFlags::kNonBlocking));
      from.push_back(devices[rank].alloc(8 * kBlock, MemoryKind::kPinned));
      to.push_back(devices[rank].alloc(8 * kBlock, MemoryKind::kPinned));
      std::byte* const given = from.back().host_write<std::byte>().begin();
      for (std::size_t i = 0; i < 8 * kBlock; ++i) given[i] = static_cast<std::byte>(rank * 16 + i / kBlock);
      comms[rank]->all_to_all(to[rank], from[rank], streams[rank]);
    }
    for (std::size_t rank = 0; rank < 8; ++rank) {
      streams[rank].sync();
      const HostView<const std::byte> got = to[rank].host_read<std::byte>();
      for (std::size_t i = 0; i < 8 * kBlock; ++i)
        ASSERT_EQ(got[i], static_cast<std::byte>(i / kBlock * 16 + rank))
            << file << ", rank " << rank << ", byte " << i;
    }
  }
}

// Sums ranks' numbers over communicators of some devices, all issued by this thread.
void expect_sum(std::vector<Communicator*> comms, const std::vector<Device>& devices) {
  std::vector<Buffer> data;
  std::vector<Stream> streams;
  for (std::size_t i = 0; i < comms.size(); ++i) {
    streams.push_back(devices[i].stream(StreamFlags::kNonBlocking));
    data.push_back(devices[i].alloc(4, MemoryKind::kPinned));
    *data.back().host_write<std::uint32_t>().begin() = 1U << comms[i]->rank();
    comms[i]->all_reduce(data[i], data[i], DataType::kU32, ReduceOp::kSum, streams[i]);
  }
  for (std::size_t i = 0; i < comms.size(); ++i) {
    streams[i].sync();
    EXPECT_EQ(data[i].host_read<std::uint32_t>()[0], (1U << comms.size()) - 1);
  }
}

// Those of `kept` call shrink, each in a thread.
std::vector<std::optional<Communicator>> shrunk(WorldRanks& ranks, const std::vector<std::size_t>& kept,
                                                const std::vector<int>& excluded) {
  std::vector<std::optional<Communicator>> less(kept.size());
  expect_no_errors(test::as_ranks(static_cast<int>(kept.size()), [&](int index) {
    const auto i = static_cast<std::size_t>(index);
    less[i].emplace(ranks.comms[kept[i]].shrink(excluded));
  }));
  return less;
}

void expect_goes_on(WorldRanks& ranks, const std::vector<std::size_t>& kept, const std::vector<int>& excluded) {
  std::vector<std::optional<Communicator>> less = shrunk(ranks, kept, excluded);
  std::vector<Communicator*> comms;
  std::vector<Device> devices;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    ASSERT_TRUE(less[i]);
    EXPECT_EQ(less[i]->nranks(), static_cast<int>(kept.size()));
    comms.push_back(&*less[i]);
    devices.push_back(ranks.devices[kept[i]]);
  }
  expect_sum(comms, devices);
}

TEST(SimShrink, WithAListOfExcludedRanks) {
  CommunicatorOptions options;
  options.topology = data_file("crossed4.xml");
  WorldRanks ranks(test::sim_world(), 4, options);
  expect_goes_on(ranks, {0, 2, 3}, {1});
  std::vector<Communicator*> all;
  for (Communicator& comm : ranks.comms) all.push_back(&comm);
  expect_sum(all, ranks.devices);  // as before
}

TEST(SimShrink, AfterOneAborted) {
  WorldRanks ranks(test::sim_world(), 3);
  ranks.comms[1].abort();
  expect_goes_on(ranks, {0, 2}, {});
}

// In the middle of a call, in which two wait for the third.
TEST(SimShrink, AfterACallThatFailed) {
  WorldRanks ranks(test::sim_world(), 3);
  std::vector<Buffer> data;
  for (const std::size_t rank : {0U, 1U}) {
    data.push_back(ranks.upload(rank, Bytes(64)));
    ranks.comms[rank].all_reduce(data.back(), data.back(), DataType::kU32, ReduceOp::kSum, ranks.streams[rank]);
  }
  ranks.comms[2].abort();
  for (const std::size_t rank : {0U, 1U})
    EXPECT_TRUE(test::fails([&] { ranks.streams[rank].sync(); }, ErrorCode::kAborted, {"rank 2"}));
  expect_goes_on(ranks, {0, 1}, {});
}

TEST(SimShrink, PartsOfASplitKeepTheirDevices) {
  CommunicatorOptions options = with(Algorithm::kRing);
  options.topology = data_file("crossed4.xml");
  WorldRanks ranks(test::sim_world(), 4, options);
  std::vector<std::optional<Communicator>> parts(4);
  expect_no_errors(test::as_ranks(4, [&](int rank) {
    const auto index = static_cast<std::size_t>(rank);
    parts[index] = ranks.comms[index].split(rank % 2);
  }));
  expect_sum({&*parts[1], &*parts[3]}, {ranks.devices[1], ranks.devices[3]});
  expect_sum({&*parts[0], &*parts[2]}, {ranks.devices[0], ranks.devices[2]});
}

}  // namespace
}  // namespace slip::test_sim_places
