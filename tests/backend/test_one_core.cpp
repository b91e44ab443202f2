// The whole device on one core: nothing may spin while the only core is needed elsewhere.
#include <sched.h>

#include <thread>
#include <vector>

#include "backend/child.hpp"

namespace slip::test_one_core {
namespace {

using test::Bodies;
using test::Gate;

// Runs the body in a child that may use one core only.
template <class Body>
int on_one_core(const Body& body) {
  return test::child_exit([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    cpu_set_t all;
    sched_getaffinity(0, sizeof(all), &all);
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (!CPU_ISSET(core, &all)) continue;
      CPU_SET(core, &one);
      break;
    }
    if (sched_setaffinity(0, sizeof(one), &one) != 0) return 90;
    return body();
  });
}

struct OneCore : testing::Test {
  void SetUp() override {
    if (!test::kThreadsAfterFork) GTEST_SKIP() << "this sanitizer allows no threads in a child";
  }
};

TEST_F(OneCore, ChainsCopiesAndEvents) {
  for (const CpuPolicy policy : {CpuPolicy::kConcurrent, CpuPolicy::kSingle, CpuPolicy::kRandom}) {
    EXPECT_EQ(0, on_one_core([&] {
                const Device device = Device::open("cpu", {.policy = policy});
                Buffer memory = device.alloc(1 << 16);
                Buffer up = device.alloc(1 << 16, MemoryKind::kPinned);
                Buffer down = device.alloc(1 << 16, MemoryKind::kPinned);
                for (int& value : up.host_write<int>()) value = 1;
                const Stream a = device.stream();
                const Stream b = device.stream(StreamFlags::kNonBlocking);
                unsigned expected = 1;
                a.copy(memory, up);
                for (unsigned i = 0; i < 1'000; ++i) {
                  const Stream& stream = i % 2 == 0 ? a : b;
                  const Stream& next = i % 2 == 0 ? b : a;
                  stream.launch(test::mix(), {.writes = {memory.slice(0, 64)}, .scalars = {i}});
                  expected = 3 * expected + i;
                  next.wait(stream.record());
                }
                a.copy(down, memory);
                if (!a.sync_for(test::kPatience)) return 1;
                device.legacy_stream().launch(test::nothing());
                device.sync();
                return down.host_read<unsigned>()[0] == expected ? 0 : 2;
              }))
        << "policy " << int(policy);
  }
}

TEST_F(OneCore, GatesOpenedByTheHost) {
  EXPECT_EQ(0, on_one_core([] {
              std::atomic<int> ran{0};
              Bodies bodies;
              const Device device = Device::open("cpu");
              Gate gate(device);
              std::vector<Stream> streams;
              for (int i = 0; i < 10; ++i) streams.push_back(device.stream());
              for (std::uint32_t round = 1; round <= 20; ++round) {
                for (const Stream& stream : streams) {
                  gate.hold(stream, round);
                  bodies.launch(stream, [&] { ran.fetch_add(1); });
                }
                if (streams[0].query()) return 1;
                gate.set(round);
                for (const Stream& stream : streams) {
                  if (!test::finishes(stream)) return 2;
                }
              }
              return ran.load() == 200 ? 0 : 3;
            }));
}

TEST_F(OneCore, KernelsThatMeet) {
  EXPECT_EQ(0, on_one_core([] {
              std::atomic<int> arrived{0};
              Bodies bodies;
              const Device device = Device::open("cpu");
              if (device.info().compute_workers < 2) return 1;
              const Stream a = device.stream();
              const Stream b = device.stream();
              for (int round = 1; round <= 20; ++round) {
                for (const Stream* stream : {&a, &b}) {
                  bodies.launch(*stream, [&, round] {
                    arrived.fetch_add(1);
                    test::eventually([&] { return arrived.load() >= 2 * round; });
                  });
                }
              }
              return test::finishes(a) && test::finishes(b) && arrived.load() == 40 ? 0 : 2;
            }));
}

TEST_F(OneCore, AFullQueueAndManyThreads) {
  EXPECT_EQ(0, on_one_core([] {
              std::atomic<int> ran{0};
              Bodies bodies;
              const Device device = Device::open("cpu", {.queue_depth = 16});
              std::vector<std::thread> threads;
              std::atomic<int> slow{0};
              static const Kernel kAdd{"add", [](const Args& args) { args.scalar<std::atomic<int>*>(0)->fetch_add(1); },
                                       nullptr};
              for (int t = 0; t < 4; ++t) {
                threads.emplace_back([&] {
                  const Stream stream = device.stream();
                  for (int i = 0; i < 500; ++i) stream.launch(kAdd, {.scalars = {&ran}});
                  if (!test::finishes(stream)) slow.fetch_add(1);
                });
              }
              for (std::thread& thread : threads) thread.join();
              return slow.load() == 0 && ran.load() == 2'000 ? 0 : 1;
            }));
}

TEST_F(OneCore, WorkRunsThoughNobodyAsks) {
  for (const CpuPolicy policy : {CpuPolicy::kConcurrent, CpuPolicy::kSingle, CpuPolicy::kRandom}) {
    EXPECT_EQ(0, on_one_core([&] {
                std::atomic<int> ran{0};
                Bodies bodies;
                const Device device = Device::open("cpu", {.policy = policy});
                const Stream stream = device.stream();
                for (int round = 1; round <= 5; ++round) {
                  bodies.launch(stream, [&] { ran.fetch_add(1); });
                  if (!test::eventually([&] { return ran.load() == round; })) return round;
                }
                return 0;
              }))
        << "policy " << int(policy);
  }
}

// A lane whose host waits each time is left to that host, but not for good.
TEST_F(OneCore, WorkRunsThoughItsHostNoLongerWaits) {
  EXPECT_EQ(0, on_one_core([] {
              std::atomic<int> ran{0};
              Bodies bodies;
              const Device device = Device::open("cpu");
              const Stream stream = device.stream(), other = device.stream(StreamFlags::kNonBlocking);
              int expected = 0;
              for (int round = 0; round < 50; ++round) {
                for (int i = 0; i < 20; ++i, ++expected) {
                  bodies.launch(stream, [&] { ran.fetch_add(1); });
                  stream.sync();
                }
                bodies.launch(stream, [&] { ran.fetch_add(1); });
                ++expected;
                switch (round % 3) {
                  case 0:
                    if (!test::eventually([&] { return ran.load() == expected; })) return 1;
                    break;
                  case 1:
                    if (!test::eventually([&] { return stream.query(); })) return 2;
                    break;
                  default:
                    if (!test::finishes(stream)) return 3;  // waits with a deadline, and so runs nothing itself
                }
                // Work of another stream that waits for it.
                bodies.launch(stream, [&] { ran.fetch_add(1); });
                other.wait(stream.record());
                bodies.launch(other, [&] { ran.fetch_add(1); });
                expected += 2;
                other.sync();
                if (ran.load() != expected) return 4;
              }
              return 0;
            }));
}

}  // namespace
}  // namespace slip::test_one_core
