// The host in virtual time: what calls cost, when waits return, full queues, flags, memory, threads.
#include <atomic>
#include <thread>

#include "base/sync.hpp"
#include "sim/support.hpp"

namespace slip::test::test_host {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

TEST(SimHost, CallsCostTimeAndWorkStartsWhenIssued) {
  Device device = open_exact({.host = R"("launch": "10 ns", "record": "1 ns", "timed_record": "4 ns", "wait": "2 ns",
                                         "copy": "5 ns", "sync": "3 ns", "query": "1 ns")"});
  Buffer memory = device.alloc(10), host = device.alloc(10, MemoryKind::kPinned);
  Recorder recorder;
  Stream a = device.stream(StreamFlags::kNonBlocking), b = device.stream(StreamFlags::kNonBlocking);
  EXPECT_EQ(device.now(), 0);
  run_for(a, "1", 5);
  const Event event = a.record();
  b.wait(event);
  b.copy(memory, host, "2");
  EXPECT_EQ(device.now(), 18 * kNano);
  EXPECT_FALSE(b.query());
  EXPECT_EQ(device.now(), 19 * kNano);
  b.sync();
  EXPECT_EQ(device.now(), 31 * kNano);  // the copy ends at 28
  a.sync();
  EXPECT_EQ(device.now(), 32 * kNano);  // done already: no more than a query
  EXPECT_EQ(span(recorder.run("1")), "[10, 15]");
  EXPECT_EQ(span(recorder.run("2")), "[18, 28]");
}

TEST(SimHost, ObserversDoNotChangeTheTimes) {
  Picos ends[2];
  for (const bool watched : {false, true}) {
    Device device = Device::open("sim:h200");
    std::unique_ptr<Recorder> recorder = watched ? std::make_unique<Recorder>() : nullptr;
    Stream a = device.stream(), b = device.stream();
    for (int i = 0; i < 10; ++i) {
      run_for(a, "a", 3000, 0.5);
      b.wait(a.record());
      run_for(b, "b", 2000, 0.5);
      if (i % 3 == 0) b.sync();
    }
    Buffer buffer = a.alloc(1000);
    a.free(std::move(buffer));
    device.sync();
    ends[watched] = device.now();
  }
  EXPECT_EQ(ends[0], ends[1]);
}

TEST(SimHost, SpinningOnAQueryGetsThere) {
  Device device = open_exact({.host = R"("query": "10 ns")"});
  Stream stream = device.stream();
  run_for(stream, "k", 95);
  int asked = 1;
  while (!stream.query()) ++asked;
  EXPECT_EQ(asked, 10);
  EXPECT_EQ(device.now(), 100 * kNano);
}

TEST(SimHost, TimedEventsMeasureVirtualTime) {
  Device device = open_exact();
  Stream stream = device.stream();
  const TimedEvent start = stream.record_timed();
  run_for(stream, "k", 1234);
  const TimedEvent end = stream.record_timed();
  run_for(stream, "later", 50);
  EXPECT_THROW(static_cast<void>(end - start), Error);  // rule 62: not reached
  end.sync();
  EXPECT_EQ(end - start, nanoseconds(1234));
  EXPECT_EQ(start - start, nanoseconds(0));
}

TEST(SimHost, FullQueueHoldsTheHostsClock) {
  DeviceOptions options;
  options.queue_depth = 4;
  Device device = open_exact({}, options);
  Stream stream = device.stream();
  for (int i = 0; i < 4; ++i) run_for(stream, "k", 100);
  EXPECT_EQ(device.now(), 0);
  run_for(stream, "k", 100);
  EXPECT_EQ(device.now(), 100 * kNano);
  run_for(stream, "k", 100);
  EXPECT_EQ(device.now(), 200 * kNano);
  stream.sync();
  EXPECT_EQ(device.now(), 600 * kNano);
}

TEST(SimHost, Rule54WaitTakesTheRecordAtTheCall) {
  Device device = open_exact();
  Recorder recorder;
  Stream a = device.stream(), b = device.stream(), c = device.stream();
  Event event;
  run_for(a, "a", 20, 0.1);
  a.record(event);
  c.wait(event);
  run_for(b, "b", 100, 0.1);
  b.record(event);
  run_for(c, "c", 1, 0.1);
  device.sync();
  EXPECT_EQ(span(recorder.run("c")), "[20, 21]");
}

TEST(SimHost, WaitForAnotherDevicesStream) {
  std::vector<Device> devices = open_exact_all(2);
  Recorder recorder;
  Stream a = devices[0].stream(), b = devices[1].stream();
  run_for(a, "a", 70);
  b.wait(a.record());
  run_for(b, "b", 5);
  devices[1].sync();
  EXPECT_EQ(span(recorder.run("b")), "[70, 75]");
}

TEST(SimHost, WaitForAnotherWorldsStream) {
  Device one = open_exact(), two = open_exact();
  Stream a = one.stream(), b = two.stream();
  std::string order;
  a.host([&] { order += 'a'; });
  b.wait(a.record());
  b.host([&] { order += 'b'; });
  b.sync();  // drives both worlds
  EXPECT_EQ(order, "ab");
}

TEST(SimFlags, WriteReleasesAWaitAtItsTime) {
  Device device = open_exact();
  Recorder recorder;
  Buffer flag = device.alloc(4);
  Stream a = device.stream(), b = device.stream();
  b.wait_value(flag, 3);
  run_for(b, "b", 1);
  run_for(a, "a1", 10);
  a.write_value(flag, 2);
  run_for(a, "a2", 10);
  a.write_value(flag, 3);
  device.sync();
  EXPECT_EQ(span(recorder.run("b")), "[20, 21]");
}

TEST(SimFlags, HostOpensTheGate) {
  Device device = open_exact();
  Buffer flag = device.alloc(4, MemoryKind::kPinned);
  Stream stream = device.stream();
  stream.wait_value(flag, 1);
  run_for(stream, "k", 10);
  EXPECT_FALSE(stream.query());
  EXPECT_FALSE(stream.sync_for(milliseconds(5)));
  std::thread opener([&] {
    std::this_thread::sleep_for(milliseconds(10));
    __atomic_store_n(static_cast<std::uint32_t*>(flag.native()), 1u, __ATOMIC_RELEASE);
  });
  stream.sync();
  opener.join();
  EXPECT_TRUE(stream.query());
}

// ThreadSanitizer uses most of the address space.
#if !defined(__SANITIZE_THREAD__)
TEST(SimMemory, AWholeDeviceCostsNothingWithoutFunctions) {
  DeviceOptions options;
  options.run_functions = false;
  Device device = Device::open("sim:h200", options);
  Buffer big = device.alloc(std::size_t{140'000'000'000});
  EXPECT_THROW(device.alloc(std::size_t{2'000'000'000}), Error);
  Stream stream = device.stream();
  const Range flag = big.slice(69'999'999'996 & ~std::size_t{3}, 4);
  stream.write_value(flag, 5);  // flags still work
  stream.wait_value(flag, 5);
  bool called = false;
  stream.host([&] { called = true; });
  stream.fill(big, 0);
  stream.sync();
  EXPECT_FALSE(called);
  EXPECT_NEAR(static_cast<double>(device.now()) * 1e-12, 140e9 / 4.24e12, 1e-4);
}

TEST(SimMemory, IsCountedAndLazyWithFunctionsToo) {
  Device device = Device::open("sim:h200");
  Buffer big = device.alloc(std::size_t{100'000'000'000});
  EXPECT_EQ(device.memory().used, 100'000'000'000u);
  EXPECT_EQ(device.memory().total, 141'000'000'000u);
}

#endif

TEST(SimThreads, ManyHostThreadsShareAWorld) {
  std::vector<Device> devices = open_exact_all(2, {.host = R"("launch": "10 ns")"});
  std::atomic<int> ran{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const Device& device = devices[static_cast<std::size_t>(i % 2)];
      Stream stream = device.stream(StreamFlags::kNonBlocking);
      for (int k = 0; k < 200; ++k) {
        stream.host([&] { ran.fetch_add(1); });
        run_for(stream, "k", 5, 0.25);
        if (k % 50 == 49) stream.sync();
        if (k % 20 == 0) static_cast<void>(stream.query());
      }
      stream.sync();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ran.load(), 800);
  for (const Device& device : devices) device.sync();
}

TEST(SimThreads, AFunctionMayTakeItsTimeWhileOthersSubmit) {
  Device device = open_exact();
  Stream slow = device.stream(StreamFlags::kNonBlocking), other = device.stream(StreamFlags::kNonBlocking);
  std::atomic<bool> inside{false}, go{false};
  slow.host([&] {
    inside = true;
    while (!go) std::this_thread::yield();
  });
  std::thread driver([&] { slow.sync(); });
  while (!inside) std::this_thread::yield();
  run_for(other, "k", 10);  // would deadlock if functions ran under the world's lock
  EXPECT_FALSE(other.query());
  EXPECT_GE(device.now(), 0);
  go = true;
  driver.join();
  other.sync();
}

// A wait of minutes has more iterations than an int of nanoseconds has room for.
TEST(SimPauses, GrowAndStayAtTheLongest) {
  std::int64_t last = 0;
  for (int i = base::kProgramWait.yields; i < 2'000'000; ++i) {
    const std::int64_t sleep = base::kProgramWait.sleep_at(i);
    ASSERT_GE(sleep, last) << "pause " << i;
    ASSERT_LE(sleep, base::kProgramWait.max_sleep_ns) << "pause " << i;
    last = sleep;
  }
  EXPECT_EQ(last, base::kProgramWait.max_sleep_ns);
}

}  // namespace
}  // namespace slip::test::test_host
