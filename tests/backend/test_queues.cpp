// Hardware queues of the cpu device (rules 92-94): what a stream that waits holds up, what it does not.
#include <array>
#include <random>
#include <vector>

#include "backend/support.hpp"

namespace slip::test_queues {
namespace {

using test::Bodies;
using test::Gate;

// Streams share queues in the order in which they are opened; the legacy stream, opened first, has queue 0.
std::vector<Stream> open_streams(const Device& device, std::size_t count) {
  std::vector<Stream> streams;
  for (std::size_t i = 0; i < count; ++i) streams.push_back(device.stream(StreamFlags::kNonBlocking));
  return streams;
}

TEST(Queues, AWaitAtTheFrontHoldsBackTheOthersOfItsQueue) {
  for (const int queues : {1, 2, 8}) {
    std::vector<std::atomic<int>> ran(16);
    Bodies bodies;
    const Device device = Device::open("cpu", {.max_connections = queues});
    EXPECT_EQ(device.info().queues, queues);
    Gate gate(device);
    const std::vector<Stream> streams = open_streams(device, 16);
    const std::size_t held = 3;
    gate.hold(streams[held]);
    for (std::size_t i = 0; i < streams.size(); ++i) bodies.launch(streams[i], [&ran, i] { ran[i].fetch_add(1); });
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (i % static_cast<std::size_t>(queues) == held % static_cast<std::size_t>(queues)) continue;
      EXPECT_TRUE(test::finishes(streams[i])) << "stream " << i << " has another of " << queues << " queues";
    }
    for (std::size_t i = 0; i < streams.size(); ++i) {
      const bool same = i % static_cast<std::size_t>(queues) == held % static_cast<std::size_t>(queues);
      EXPECT_EQ(ran[i].load(), same ? 0 : 1) << "stream " << i << ", " << queues << " queues";
      EXPECT_EQ(streams[i].query(), !same);
    }
    gate.open();
    device.sync();
    for (const auto& times : ran) EXPECT_EQ(times.load(), 1);
  }
}

TEST(Queues, WithoutALimitNobodyIsHeldBack) {
  Bodies bodies;
  std::atomic<int> ran{0};
  const Device device = Device::open("cpu");
  EXPECT_EQ(device.info().queues, 0);
  Gate gate(device);
  const std::vector<Stream> streams = open_streams(device, 40);
  gate.hold(streams[0]);
  for (const Stream& stream : streams) bodies.launch(stream, [&] { ran.fetch_add(1); });
  for (std::size_t i = 1; i < streams.size(); ++i) EXPECT_TRUE(test::finishes(streams[i]));
  EXPECT_EQ(ran.load(), 39);
}

TEST(Queues, ReadyKernelsOfOneQueueStillOverlap) {
  for (int round = 0; round < test::rounds(30); ++round) {
    std::atomic<int> arrived{0};
    Bodies bodies;
    const Device device = Device::open("cpu", {.compute_workers = 2, .max_connections = 1});
    const std::vector<Stream> streams = open_streams(device, 2);
    for (const Stream& stream : streams) {
      bodies.launch(stream, [&] {
        arrived.fetch_add(1);
        test::eventually([&] { return arrived.load() == 2; });
      });
    }
    ASSERT_TRUE(test::finishes(streams[1]));
    EXPECT_EQ(arrived.load(), 2);
    ASSERT_TRUE(test::finishes(streams[0]));
  }
}

// A thread that waits for the second stream must not run the kernel of the first one, which only that thread lets end.
TEST(Queues, SyncOfOneStreamDoesNotWaitForTheKernelBeforeItInTheQueue) {
  for (int round = 0; round < test::rounds(200); ++round) {
    std::atomic<bool> release{false};
    std::atomic<bool> in_time{true};
    Bodies bodies;
    const Device device = Device::open("cpu", {.compute_workers = 2, .max_connections = 1});
    const std::vector<Stream> streams = open_streams(device, 2);
    bodies.launch(streams[0], [&] { in_time.store(test::eventually([&] { return release.load(); })); });
    streams[1].launch(test::nothing());
    streams[1].sync();
    release.store(true);
    ASSERT_TRUE(test::finishes(streams[0]));
    ASSERT_TRUE(in_time.load()) << "round " << round;
  }
}

TEST(Queues, AnEventWaitInFrontOfAReadyStreamDelaysIt) {
  Bodies bodies;
  std::atomic<int> ran{0};
  const Device device = Device::open("cpu", {.max_connections = 2});
  Gate gate(device);
  const std::vector<Stream> streams = open_streams(device, 4);  // queues 1, 0, 1, 0
  gate.hold(streams[0]);
  streams[0].launch(test::nothing());
  const Event done = streams[0].record();
  streams[1].wait(done);  // in front of queue 0
  streams[1].launch(test::nothing());
  bodies.launch(streams[3], [&] { ran.fetch_add(1); });  // ready, but behind it
  EXPECT_FALSE(streams[3].sync_for(std::chrono::milliseconds(20)));
  EXPECT_EQ(ran.load(), 0);
  gate.open();
  EXPECT_TRUE(test::finishes(streams[3]));
  EXPECT_EQ(ran.load(), 1);
}

// Any program whose waits name earlier records ends, however few queues there are.
void run_random_program(const DeviceOptions& options, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const Device device = Device::open("cpu", options);
  constexpr std::size_t kStreams = 6;
  std::vector<Stream> streams;
  for (std::size_t i = 0; i < kStreams; ++i)
    streams.push_back(device.stream(random() % 2 == 0 ? StreamFlags::kBlocking : StreamFlags::kNonBlocking));
  Buffer memory = device.alloc(kStreams * sizeof(unsigned));
  Buffer result = device.alloc(kStreams * sizeof(unsigned), MemoryKind::kPinned);
  device.legacy_stream().fill(memory, 0);
  device.sync();
  std::vector<Event> events(4);
  std::array<unsigned, kStreams> expected{};
  for (int op = 0; op < 300; ++op) {
    const std::size_t at = random() % kStreams;
    const Stream& stream = streams[at];
    switch (random() % 8) {
      case 0: stream.record(events[random() % events.size()]); break;
      case 1:
      case 2: stream.wait(events[random() % events.size()]); break;
      case 3: device.legacy_stream().launch(test::nothing()); break;
      case 4: stream.host([] {}); break;
      default: {
        const auto value = static_cast<unsigned>(random() % 1'000);
        expected[at] = 3 * expected[at] + value;
        stream.launch(test::mix(), {.writes = {memory.slice(at * 4, 4)}, .scalars = {value}});
      }
    }
  }
  for (const Stream& stream : streams) ASSERT_TRUE(test::finishes(stream)) << "seed " << seed;
  device.copy(result, memory);
  for (std::size_t i = 0; i < kStreams; ++i) ASSERT_EQ(result.host_read<unsigned>()[i], expected[i]) << "seed " << seed;
}

TEST(Queues, RandomProgramsEndWithTheRightResult) {
  for (const CpuPolicy policy : {CpuPolicy::kConcurrent, CpuPolicy::kSingle, CpuPolicy::kRandom}) {
    for (const int queues : {1, 2, 8}) {
      for (int seed = 1; seed <= test::rounds(20); ++seed) {
        run_random_program({.policy = policy, .queue_depth = 32, .max_connections = queues},
                           static_cast<std::uint64_t>(seed));
        if (testing::Test::HasFatalFailure()) FAIL() << "policy " << int(policy) << ", queues " << queues;
      }
    }
  }
}

TEST(Queues, MoreThanThirtyTwoAreRefused) {
  EXPECT_EQ(test::code_of([] { Device::open("cpu", {.max_connections = 33}); }), ErrorCode::kInvalidValue);
  EXPECT_EQ(test::code_of([] { Device::open("cpu", {.max_connections = -1}); }), ErrorCode::kInvalidValue);
}

}  // namespace
}  // namespace slip::test_queues
