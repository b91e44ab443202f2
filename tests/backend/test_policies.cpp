// Policies single and random: one op at a time, in issue order or by choice of a seed.
#include <algorithm>
#include <thread>
#include <vector>

#include "backend/support.hpp"

namespace slip::test_policies {
namespace {

using test::Bodies;
using test::Gate;

constexpr CpuPolicy kSerial[] = {CpuPolicy::kSingle, CpuPolicy::kRandom};
constexpr CpuPolicy kAll[] = {CpuPolicy::kConcurrent, CpuPolicy::kSingle, CpuPolicy::kRandom};

// The order in which independent kernels of several streams run.
std::vector<int> order_of(CpuPolicy policy, std::uint64_t seed) {
  std::vector<int> order;
  Bodies bodies;
  const Device device = Device::open("cpu", {.policy = policy, .seed = seed});
  Gate gate(device);
  std::vector<Stream> streams;
  for (int i = 0; i < 5; ++i) streams.push_back(device.stream(StreamFlags::kNonBlocking));
  for (const Stream& stream : streams) gate.hold(stream);
  for (int i = 0; i < 40; ++i)
    bodies.launch(streams[static_cast<std::size_t>(i) % streams.size()], [&order, i] { order.push_back(i); });
  gate.open();
  device.sync();
  return order;
}

TEST(Policies, SingleRunsInIssueOrder) {
  const std::vector<int> order = order_of(CpuPolicy::kSingle, 1);
  ASSERT_EQ(order.size(), 40U);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(Policies, RandomRepeatsItsOrderForASeed) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed)
    EXPECT_EQ(order_of(CpuPolicy::kRandom, seed), order_of(CpuPolicy::kRandom, seed));
}

TEST(Policies, RandomTriesOtherOrdersForOtherSeeds) {
  std::vector<std::vector<int>> orders;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) orders.push_back(order_of(CpuPolicy::kRandom, seed));
  std::sort(orders.begin(), orders.end());
  EXPECT_GE(std::unique(orders.begin(), orders.end()) - orders.begin(), 7);
}

TEST(Policies, RandomKeepsTheOrderWithinAStream) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    const std::vector<int> order = order_of(CpuPolicy::kRandom, seed);
    std::vector<int> last(5, -1);
    for (const int op : order) {
      EXPECT_LT(last[static_cast<std::size_t>(op % 5)], op);
      last[static_cast<std::size_t>(op % 5)] = op;
    }
  }
}

// Result of a producer and a consumer in two streams, with or without the event between them.
int consumed(std::uint64_t seed, bool edge) {
  const Device device = Device::open("cpu", {.policy = CpuPolicy::kRandom, .seed = seed});
  Buffer memory = device.alloc(sizeof(int));
  Buffer result = device.alloc(sizeof(int), MemoryKind::kPinned);
  device.fill(memory, 0);
  const Stream producer = device.stream();
  const Stream consumer = device.stream();
  for (int i = 0; i < 3; ++i) producer.launch(test::nothing());
  producer.launch(test::put(), {.writes = {memory}, .scalars = {42}});
  if (edge) consumer.wait(producer.record());
  consumer.copy(result, memory);
  consumer.sync();
  return result.host_read<int>()[0];
}

TEST(Policies, RandomFindsAMissingEdgeWithinAFewSeeds) {
  int wrong = 0;
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    EXPECT_EQ(consumed(seed, true), 42) << "seed " << seed;
    wrong += consumed(seed, false) != 42;
  }
  EXPECT_GE(wrong, 1);
}

TEST(Policies, OneKernelAtATime) {
  for (const CpuPolicy policy : kSerial) {
    test::ConcurrencyCounter counter;
    Bodies bodies;
    const Device device = Device::open("cpu", {.policy = policy, .compute_workers = 4});
    std::vector<Stream> streams;
    for (int i = 0; i < 4; ++i) streams.push_back(device.stream());
    for (int i = 0; i < 80; ++i) {
      bodies.launch(streams[static_cast<std::size_t>(i % 4)], [&] {
        counter.enter();
        sched_yield();
        counter.leave();
      });
    }
    std::vector<std::thread> hosts;
    for (const Stream& stream : streams) hosts.emplace_back([&] { stream.sync(); });
    for (std::thread& host : hosts) host.join();
    EXPECT_EQ(counter.max(), 1);
  }
}

TEST(Policies, AGateHoldsItsStreamOnly) {
  for (const CpuPolicy policy : kAll) {
    std::atomic<int> ran{0};
    Bodies bodies;
    const Device device = Device::open("cpu", {.policy = policy});
    Gate gate(device);
    const Stream held = device.stream();
    const Stream open = device.stream();
    gate.hold(held, 2);
    bodies.launch(held, [&] { ran.fetch_add(100); });
    bodies.launch(open, [&] { ran.fetch_add(1); });
    EXPECT_TRUE(test::finishes(open)) << "policy " << int(policy);
    EXPECT_EQ(ran.load(), 1);
    gate.set(1);  // not enough
    EXPECT_FALSE(held.sync_for(std::chrono::milliseconds(5)));
    gate.set(2);
    EXPECT_TRUE(test::finishes(held));
    EXPECT_EQ(ran.load(), 101);
  }
}

TEST(Policies, AStreamOpensTheGateOfAnother) {
  for (const CpuPolicy policy : kAll) {
    std::atomic<int> order{0};
    int first = 0;
    int second = 0;
    Bodies bodies;
    const Device device = Device::open("cpu", {.policy = policy});
    Gate gate(device);
    const Stream waits = device.stream();
    const Stream writes = device.stream();
    gate.hold(waits, 7);
    bodies.launch(waits, [&] { second = ++order; });
    bodies.launch(writes, [&] { first = ++order; });
    writes.write_value(gate.range(), 7);
    EXPECT_TRUE(test::finishes(waits)) << "policy " << int(policy);
    EXPECT_EQ(first, 1);
    EXPECT_EQ(second, 2);
    EXPECT_EQ(gate.value(), 7U);
  }
}

// A host that polls memory instead of querying the device: a thread must still run the work, every time.
TEST(Policies, WorkRunsThoughNobodyAsks) {
  for (const CpuPolicy policy : kAll) {
    std::atomic<int> ran{0};
    Bodies bodies;
    const Device device = Device::open("cpu", {.policy = policy});
    const Stream stream = device.stream();
    for (int round = 1; round <= 4; ++round) {
      bodies.launch(stream, [&] { ran.fetch_add(1); });
      ASSERT_TRUE(test::eventually([&] { return ran.load() == round; }))
          << "policy " << int(policy) << ", round " << round;
    }
  }
}

TEST(Policies, QueryingBringsWorkForward) {
  for (const CpuPolicy policy : kAll) {
    const Device device = Device::open("cpu", {.policy = policy});
    const Stream stream = device.stream();
    for (int i = 0; i < 20; ++i) stream.launch(test::nothing());
    EXPECT_TRUE(test::eventually([&] { return stream.query(); }));
  }
}

TEST(Policies, SyncForComesBackWhileAKernelRuns) {
  for (const CpuPolicy policy : kAll) {
    for (int round = 0; round < test::rounds(policy == CpuPolicy::kConcurrent ? 100 : 10); ++round) {
      std::atomic<bool> release{false};
      std::atomic<bool> in_time{true};
      Bodies bodies;
      const Device device = Device::open("cpu", {.policy = policy});
      const Stream stream = device.stream();
      bodies.launch(stream, [&] { in_time.store(test::eventually([&] { return release.load(); })); });
      ASSERT_FALSE(stream.sync_for(std::chrono::milliseconds(1)));
      release.store(true);
      ASSERT_TRUE(test::finishes(stream));
      ASSERT_TRUE(in_time.load()) << "policy " << int(policy) << ": sync_for ran the kernel to its end";
    }
  }
}

TEST(Policies, SyncForTakesAnyLimit) {
  for (const CpuPolicy policy : kAll) {
    const Device device = Device::open("cpu", {.policy = policy});
    Gate gate(device);
    const Stream stream = device.stream();
    EXPECT_TRUE(stream.sync_for(std::chrono::nanoseconds(0))) << "nothing to wait for";
    gate.hold(stream);
    stream.launch(test::nothing());
    EXPECT_FALSE(stream.sync_for(std::chrono::nanoseconds(0)));
    EXPECT_FALSE(stream.sync_for(std::chrono::nanoseconds(-5)));
    EXPECT_FALSE(stream.sync_for(std::chrono::nanoseconds::min()));
    EXPECT_FALSE(stream.sync_for(std::chrono::microseconds(300)));
    std::thread opener([&] { gate.open(); });
    EXPECT_TRUE(stream.sync_for(std::chrono::nanoseconds::max()));
    opener.join();
  }
}

TEST(Policies, LegacyBarriersHoldUnderEach) {
  for (const CpuPolicy policy : kAll) {
    const Device device = Device::open("cpu", {.policy = policy});
    Buffer memory = device.alloc(sizeof(unsigned));
    Buffer result = device.alloc(sizeof(unsigned), MemoryKind::kPinned);
    device.fill(memory, 0);
    device.sync();
    const Stream a = device.stream();
    const Stream b = device.stream();
    unsigned expected = 0;
    for (unsigned i = 1; i <= 30; ++i) {
      for (const StreamRef stream : {StreamRef(a), device.legacy_stream(), StreamRef(b)}) {
        stream.launch(test::mix(), {.writes = {memory}, .scalars = {i}});
        expected = 3 * expected + i;
        if (stream == b) device.legacy_stream().launch(test::nothing());
      }
    }
    device.copy(result, memory);
    EXPECT_EQ(result.host_read<unsigned>()[0], expected) << "policy " << int(policy);
  }
}

// A wait in the legacy stream is an action there: later work of blocking streams comes after it (rule 9).
TEST(Policies, AWaitInTheLegacyStreamHoldsBlockingStreams) {
  for (const CpuPolicy policy : kAll) {
    std::atomic<int> ran{0};
    Bodies bodies;
    const Device device = Device::open("cpu", {.policy = policy});
    Gate gate(device);
    const Stream source = device.stream(StreamFlags::kNonBlocking);
    const Stream blocking = device.stream();
    const Stream free = device.stream(StreamFlags::kNonBlocking);
    gate.hold(source);
    device.legacy_stream().wait(source.record());
    bodies.launch(blocking, [&] { ran.fetch_add(10); });
    bodies.launch(free, [&] { ran.fetch_add(1); });
    EXPECT_TRUE(test::finishes(free));
    EXPECT_FALSE(blocking.sync_for(std::chrono::milliseconds(5))) << "policy " << int(policy);
    EXPECT_EQ(ran.load(), 1);
    gate.open();
    EXPECT_TRUE(test::finishes(blocking));
    EXPECT_EQ(ran.load(), 11);
  }
}

}  // namespace
}  // namespace slip::test_policies
