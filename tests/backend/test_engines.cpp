// Engines: how many ops run concurrently, which op runs next, and that no thread blocks work that another one needs.
#include <array>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/cpu/lane.hpp"
#include "backend/support.hpp"
#include "slip/observer.hpp"

namespace slip::test_engines {
namespace {

using test::Bodies;
using test::ConcurrencyCounter;
using test::Gate;

// Waits inside a kernel until the condition holds; false when patience ends.
template <class Ready>
bool meets(const Ready& ready) {
  return test::eventually(ready);
}

TEST(Engines, NoMoreKernelsAtOnceThanComputeWorkers) {
  for (const int workers : {1, 2, 3}) {
    ConcurrencyCounter counter;
    Bodies bodies;
    const Device device = Device::open("cpu", {.compute_workers = workers});
    EXPECT_EQ(device.info().compute_workers, workers);
    std::vector<Stream> streams;
    for (int i = 0; i < 8; ++i) streams.push_back(device.stream(StreamFlags::kNonBlocking));
    for (int round = 0; round < test::rounds(300); ++round) {
      for (const Stream& stream : streams) {
        bodies.launch(stream, [&] {
          counter.enter();
          sched_yield();  // once: it takes milliseconds while another program runs
          counter.leave();
        });
      }
    }
    std::vector<std::thread> hosts;  // host threads that wait run kernels, too: they count as well
    for (int i = 0; i < 3; ++i) hosts.emplace_back([&, i] { streams[static_cast<std::size_t>(i)].sync(); });
    device.sync();
    for (std::thread& host : hosts) host.join();
    EXPECT_LE(counter.max(), workers);
    EXPECT_EQ(counter.inside(), 0);
  }
}

TEST(Engines, HostFunctionsComeOneAtATime) {
  ConcurrencyCounter counter;
  const Device device = Device::open("cpu", {.compute_workers = 4});
  std::vector<Stream> streams;
  for (int i = 0; i < 6; ++i) streams.push_back(device.stream(StreamFlags::kNonBlocking));
  int unprotected = 0;  // protected only because the kernels run one at a time
  const int times = test::rounds(200);
  for (int round = 0; round < times; ++round) {
    for (const Stream& stream : streams) {
      stream.host([&] {
        counter.enter();
        ++unprotected;
        sched_yield();
        counter.leave();
      });
    }
  }
  device.sync();
  EXPECT_EQ(counter.max(), 1);
  EXPECT_EQ(unprotected, 6 * times);
}

// Two copies of one direction at once would let the second one end before the first.
TEST(Engines, OneCopyPerDirectionAtATime) {
  const Device device = Device::open("cpu", {.compute_workers = 4});
  constexpr std::size_t kBytes = 4 << 20;
  struct Watch : Observer {
    std::atomic<int> overlaps{0};
    std::atomic<int> copies{0};
    std::mutex mutex;
    std::array<std::vector<std::pair<Picos, Picos>>, 5> spans;
    void on(const Record& record) override {
      if (record.kind != RecordKind::kRun) return;
      const std::lock_guard lock(mutex);
      auto& taken = spans[static_cast<std::size_t>(record.engine)];
      for (const auto& [started, ended] : taken) {
        if (record.started < ended && started < record.ended) overlaps.fetch_add(1);
      }
      taken.emplace_back(record.started, record.ended);
      copies.fetch_add(1);
    }
  } watch;
  std::vector<Buffer> memory;
  std::vector<Buffer> pinned;
  std::vector<Stream> streams;
  for (int i = 0; i < 4; ++i) {
    memory.push_back(device.alloc(kBytes));
    pinned.push_back(device.alloc(kBytes, MemoryKind::kPinned));
    streams.push_back(device.stream(StreamFlags::kNonBlocking));
  }
  attach_observer(watch);
  for (int round = 0; round < 4; ++round) {
    for (std::size_t i = 0; i < 4; ++i) {
      if (i % 2 == 0) streams[i].copy(memory[i], pinned[i]);
      else streams[i].copy(pinned[i], memory[i]);
    }
  }
  device.sync();
  detach_observer(watch);
  EXPECT_EQ(watch.copies.load(), 16);
  EXPECT_EQ(watch.overlaps.load(), 0);
}

TEST(Engines, AsManyKernelsAsWorkersCanMeet) {
  for (const int workers : {2, 3, 5}) {
    std::atomic<int> arrived{0};
    std::atomic<int> failed{0};
    Bodies bodies;
    const Device device = Device::open("cpu", {.compute_workers = workers});
    std::vector<Stream> streams;
    for (int i = 0; i < workers; ++i) streams.push_back(device.stream(StreamFlags::kNonBlocking));
    for (int round = 1; round <= test::rounds(50); ++round) {
      for (const Stream& stream : streams) {
        bodies.launch(stream, [&, round, workers] {
          arrived.fetch_add(1);
          if (!meets([&] { return arrived.load() >= round * workers; })) failed.fetch_add(1);
        });
      }
    }
    for (const Stream& stream : streams) ASSERT_TRUE(test::finishes(stream)) << workers << " workers";
    EXPECT_EQ(failed.load(), 0);
  }
}

// After many short ops of the streams the pool expects the next op to be short, too. The thread that runs the waiting
// kernel still has the other stream in its local queue, and the searcher must take it from there.
TEST(Engines, AKernelWaitsForOneQueuedLaterAfterManyShortOps) {
  for (int round = 0; round < test::rounds(100); ++round) {
    std::atomic<bool> set{false};
    std::atomic<bool> seen{false};
    Bodies bodies;
    const Device device = Device::open("cpu", {.compute_workers = 2});
    const Stream first = device.stream(StreamFlags::kNonBlocking);
    const Stream second = device.stream(StreamFlags::kNonBlocking);
    const Stream source = device.stream(StreamFlags::kNonBlocking);
    Gate gate(device);
    for (int i = 0; i < 200; ++i) {  // a history of short ops, also across streams
      first.launch(test::nothing());
      second.wait(first.record());
      second.launch(test::nothing());
      first.wait(second.record());
    }
    device.sync();
    gate.hold(source);
    source.launch(test::nothing());
    const Event start = source.record();
    first.wait(start);
    second.wait(start);
    bodies.launch(first, [&] { seen.store(meets([&] { return set.load(); })); });
    bodies.launch(second, [&] { set.store(true); });
    gate.open();
    ASSERT_TRUE(test::finishes(first)) << "round " << round;
    EXPECT_TRUE(seen.load());
  }
}

// A worker keeps streams that it found empty for a while. When it gets stuck in a kernel that looked short, and the
// thread that searches for work found some and is stuck as well, what is submitted to such a stream must still run.
TEST(Engines, WorkForAStreamThatAStuckThreadKeeps) {
  Bodies bodies;
  for (int round = 0; round < test::rounds(40); ++round) {
    std::atomic<bool> set{false};
    std::atomic<int> stuck{0};
    const auto spin = [&] {
      stuck.fetch_add(1);
      meets([&] { return set.load(); });
    };
    const Device device = Device::open("cpu", {.compute_workers = 3});
    std::vector<Stream> streams;
    for (int i = 0; i < 3; ++i) streams.push_back(device.stream(StreamFlags::kNonBlocking));
    for (int i = 0; i < 2'000 + round; ++i) {  // a chain across both: one thread runs them, and finds their ops short
      streams[0].launch(test::nothing());
      streams[1].wait(streams[0].record());
      streams[1].launch(test::nothing());
      streams[0].wait(streams[1].record());
    }
    for (int i : {0, 2}) {
      bodies.launch(streams[static_cast<std::size_t>(i)], spin);
      ASSERT_TRUE(test::eventually([&] { return stuck.load() == 1 + i / 2; })) << "round " << round;
    }
    bodies.launch(streams[1], [&] { set.store(true); });
    for (const Stream& stream : streams) ASSERT_TRUE(test::finishes(stream)) << "round " << round;
  }
}

// The same with every thread that could help busy with kernels that wait as well.
TEST(Engines, AChainOfKernelsEachWaitingForALaterOne) {
  constexpr int kWorkers = 4;
  std::array<std::atomic<int>, kWorkers + 1> reached{};
  Bodies bodies;
  const Device device = Device::open("cpu", {.compute_workers = kWorkers});
  std::vector<Stream> streams;
  for (int i = 0; i < kWorkers; ++i) streams.push_back(device.stream(StreamFlags::kNonBlocking));
  const Stream source = device.stream(StreamFlags::kNonBlocking);
  for (int round = 1; round <= test::rounds(200); ++round) {
    for (int i = 0; i < 20; ++i) source.launch(test::nothing());
    const Event start = source.record();
    for (std::size_t i = 0; i < kWorkers; ++i) {
      for (int k = 0; k < 10; ++k) streams[i].launch(test::nothing());
      streams[i].wait(start);
      bodies.launch(streams[i], [&, i, round] {
        if (i + 1 < kWorkers) meets([&] { return reached[i + 1].load() >= round; });
        reached[i].store(round);
      });
    }
    for (const Stream& stream : streams) ASSERT_TRUE(test::finishes(stream)) << "round " << round;
    ASSERT_EQ(reached[0].load(), round);
  }
}

TEST(Engines, CopiesAndHostFunctionsGoOnWhileAllKernelsAreStuck) {
  std::atomic<bool> release{false};
  std::atomic<int> stuck{0};
  std::atomic<bool> called{false};
  Bodies bodies;
  const Device device = Device::open("cpu", {.compute_workers = 2});
  Buffer memory = device.alloc(1 << 20);
  Buffer up = device.alloc(1 << 20, MemoryKind::kPinned);
  Buffer down = device.alloc(1 << 20, MemoryKind::kPinned);
  for (int& value : up.host_write<int>()) value = 7;
  const Stream a = device.stream();
  const Stream b = device.stream();
  const Stream copies = device.stream();
  for (const Stream* stream : {&a, &b}) {
    bodies.launch(*stream, [&] {
      stuck.fetch_add(1);
      meets([&] { return release.load(); });
    });
  }
  ASSERT_TRUE(test::eventually([&] { return stuck.load() == 2; }));
  copies.copy(memory, up);
  copies.copy(down, memory);
  copies.host([&] { called.store(true); });
  EXPECT_TRUE(test::finishes(copies)) << "copies and host functions have threads of their own";
  EXPECT_TRUE(called.load());
  const Stream third = device.stream();
  third.launch(test::nothing());
  EXPECT_FALSE(third.sync_for(std::chrono::milliseconds(20))) << "a third kernel has no place";
  release.store(true);
  EXPECT_TRUE(test::finishes(third) && test::finishes(a) && test::finishes(b));
  EXPECT_EQ(down.host_read<int>()[1000], 7);
}

TEST(Engines, AWaitingKernelOfHigherPriorityGoesFirst) {
  std::vector<int> order;  // one compute worker: nothing runs at once
  std::atomic<bool> release{false};
  Bodies bodies;
  const Device device = Device::open("cpu", {.compute_workers = 1});
  const Stream holder = device.stream(StreamFlags::kNonBlocking);
  std::vector<Stream> streams;
  for (int priority : {0, -1, -2}) streams.push_back(device.stream(StreamFlags::kNonBlocking, priority));
  std::atomic<bool> held{false};
  bodies.launch(holder, [&] {
    held.store(true);
    meets([&] { return release.load(); });
  });
  ASSERT_TRUE(test::eventually([&] { return held.load(); }));
  for (const Stream& stream : streams) {
    bodies.launch(stream, [&order, priority = stream.priority()] { order.push_back(priority); });
    const backend::Lane& lane = static_cast<const backend::Lane&>(*stream.state());
    ASSERT_TRUE(test::eventually([&] { return lane.state.load() == backend::LaneState::kParked; }))
        << "it waits for the engine";
  }
  release.store(true);
  device.sync();
  EXPECT_EQ(order, (std::vector<int>{-2, -1, 0}));
  EXPECT_EQ(device.stream(StreamFlags::kNonBlocking, -9).priority(), -2) << "clamped (rule 82)";
  EXPECT_EQ(device.stream(StreamFlags::kNonBlocking, 5).priority(), 0);
}

TEST(Engines, LongOpsDoNotStarveAnotherStream) {
  std::atomic<std::uint64_t> slow_done{0};
  std::atomic<std::uint64_t> slow_when_quick_ended{0};
  Bodies bodies;
  const Device device = Device::open("cpu", {.compute_workers = 1});
  const Stream slow = device.stream(StreamFlags::kNonBlocking);
  const Stream quick = device.stream(StreamFlags::kNonBlocking);
  constexpr int kSlowOps = 400;
  Gate gate(device);
  gate.hold(slow);
  gate.hold(quick);
  for (int i = 0; i < kSlowOps; ++i) {
    bodies.launch(slow, [&] {
      const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
      while (std::chrono::steady_clock::now() < end) {}
      slow_done.fetch_add(1);
    });
  }
  for (int i = 0; i < 5; ++i) bodies.launch(quick, [&] { slow_when_quick_ended.store(slow_done.load()); });
  gate.open();
  ASSERT_TRUE(test::finishes(quick));
  EXPECT_LT(slow_when_quick_ended.load(), kSlowOps / 2) << "the one engine was kept by the stream that had it";
  ASSERT_TRUE(test::finishes(slow));
}

// What an event captured is done although the kernel issued after it still runs.
TEST(Engines, AWaitCountsAsDoneBeforeTheNextKernelEnds) {
  for (int round = 0; round < test::rounds(50); ++round) {
    std::atomic<bool> set{false};
    std::atomic<bool> seen{false};
    Bodies bodies;
    const Device device = Device::open("cpu", {.compute_workers = 2});
    const Stream first = device.stream(StreamFlags::kNonBlocking);
    const Stream second = device.stream(StreamFlags::kNonBlocking);
    const Stream other = device.stream(StreamFlags::kNonBlocking);
    Gate gate(device);
    gate.hold(first);
    other.launch(test::nothing());
    first.launch(test::nothing());
    first.wait(other.record());
    const Event captured = first.record();
    bodies.launch(first, [&] { seen.store(meets([&] { return set.load(); })); });
    second.wait(captured);
    bodies.launch(second, [&] { set.store(true); });
    gate.open();
    ASSERT_TRUE(test::finishes(second)) << "round " << round;
    ASSERT_TRUE(test::finishes(first));
    EXPECT_TRUE(seen.load());
  }
}

}  // namespace
}  // namespace slip::test_engines
