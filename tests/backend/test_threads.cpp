// Several host threads on one device.
#include <array>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "backend/support.hpp"

namespace slip::test_threads {
namespace {

using test::Bodies;
using test::Gate;

template <class Body>
void on_threads(int count, const Body& body) {
  std::vector<std::thread> threads;
  for (int t = 0; t < count; ++t) threads.emplace_back([&body, t] { body(t); });
  for (std::thread& thread : threads) thread.join();
}

// A kernel whose counter is not atomic: only the stream's order protects it.
const Kernel kCount{"count", [](const Args& args) { ++*args.scalar<std::uint64_t*>(0); }, nullptr};

TEST(Threads, OneStreamFromMany) {
  for (const std::size_t depth : {16, 4096}) {
    std::uint64_t counter = 0;
    const Device device = Device::open("cpu", {.queue_depth = depth});
    const Stream stream = device.stream();
    const int times = test::rounds(5'000);
    on_threads(4, [&](int t) {
      for (int i = 0; i < times; ++i) {
        stream.launch(kCount, {.scalars = {&counter}});
        if (i % 500 == t) stream.sync();
        if (i % 97 == 0) static_cast<void>(stream.query());
      }
    });
    ASSERT_TRUE(test::finishes(stream));
    EXPECT_EQ(counter, 4U * static_cast<std::uint64_t>(times));
  }
}

TEST(Threads, TheLegacyStreamFromManyWithBlockingStreamsBeside) {
  std::uint64_t counter = 0;  // every op here is ordered by the legacy stream
  const Device device = Device::open("cpu", {.queue_depth = 64});
  const int times = test::rounds(1'000);
  on_threads(3, [&](int) {
    const Stream own = device.stream();
    for (int i = 0; i < times; ++i) {
      own.launch(test::nothing());
      device.legacy_stream().launch(kCount, {.scalars = {&counter}});
    }
    own.sync();
  });
  device.sync();
  EXPECT_EQ(counter, 3U * static_cast<std::uint64_t>(times));
}

TEST(Threads, ManyStreamsWithEventsBetweenThem) {
  for (const int queues : {0, 2}) {
    std::array<std::uint64_t, 8> counters{};
    const Device device = Device::open("cpu", {.queue_depth = 64, .max_connections = queues});
    std::vector<Stream> streams;
    for (int i = 0; i < 8; ++i)
      streams.push_back(device.stream(i % 2 ? StreamFlags::kBlocking : StreamFlags::kNonBlocking));
    const int times = test::rounds(2'000);
    std::array<std::atomic<std::uint64_t>, 8> launched{};
    on_threads(4, [&](int t) {
      std::mt19937_64 random(static_cast<std::uint64_t>(t) + 1);
      Event event;
      for (int i = 0; i < times; ++i) {
        const std::size_t at = random() % streams.size();
        switch (random() % 6) {
          case 0: streams[at].record(event); break;
          case 1: streams[at].wait(event); break;
          case 2: static_cast<void>(event.query()); break;
          case 3:
            if (i % 50 == 0) event.sync();
            break;
          default: streams[at].launch(kCount, {.scalars = {&counters[at]}}); launched[at].fetch_add(1);
        }
      }
    });
    for (std::size_t i = 0; i < streams.size(); ++i) {
      ASSERT_TRUE(test::finishes(streams[i])) << "queues " << queues;
      EXPECT_EQ(counters[i], launched[i].load());
    }
  }
}

TEST(Threads, ManyWaitForOneStream) {
  Bodies bodies;
  const Device device = Device::open("cpu");
  Gate gate(device);
  const Stream stream = device.stream();
  for (int round = 1; round <= test::rounds(50); ++round) {
    std::atomic<int> waiting{0};
    std::atomic<int> back{0};
    gate.set(0);
    gate.hold(stream, 1);
    stream.launch(test::nothing());
    const Event event = stream.record();
    std::thread opener([&] {
      test::eventually([&] { return waiting.load() == 20; });
      EXPECT_EQ(back.load(), 0);
      gate.set(1);
    });
    on_threads(20, [&](int t) {  // more than the device has places for waiting threads that help
      waiting.fetch_add(1);
      if (t % 3 == 0) stream.sync();
      else if (t % 3 == 1) event.sync();
      else device.sync();
      back.fetch_add(1);
    });
    opener.join();
    ASSERT_EQ(back.load(), 20);
  }
}

TEST(Threads, TimeoutsWhileOthersWait) {
  const Device device = Device::open("cpu");
  Gate gate(device);
  const Stream stream = device.stream();
  gate.hold(stream);
  stream.launch(test::nothing());
  std::atomic<int> timeouts{0};
  std::atomic<int> done{0};
  std::thread opener([&] {
    test::eventually([&] { return timeouts.load() >= 200; });
    gate.open();
  });
  on_threads(6, [&](int t) {
    if (t % 2 == 0) {
      stream.sync();
    } else {
      while (!stream.sync_for(std::chrono::microseconds(100))) timeouts.fetch_add(1);
    }
    done.fetch_add(1);
  });
  opener.join();
  EXPECT_EQ(done.load(), 6);
  EXPECT_GE(timeouts.load(), 200);
}

TEST(Threads, FailuresWhileOthersSubmit) {
  Bodies bodies;
  for (int round = 0; round < test::rounds(50); ++round) {
    const Device device = Device::open("cpu", {.queue_depth = 32});
    const Stream stream = device.stream();
    std::atomic<int> refused{0};
    std::atomic<bool> go{false};
    std::thread thrower([&] {
      test::eventually([&] { return go.load(); });
      bodies.launch(stream, [] { throw std::runtime_error("stop"); });
    });
    on_threads(3, [&](int) {
      go.store(true);
      test::eventually([&] {
        const bool stopped = test::code_of([&] { stream.launch(test::nothing()); }) == ErrorCode::kLaunchFailed;
        refused.fetch_add(stopped);
        return stopped;
      });
    });
    thrower.join();
    ASSERT_EQ(refused.load(), 3) << "every thread heard of it";
    ASSERT_EQ(test::code_of([&] { stream.sync(); }), ErrorCode::kLaunchFailed);
  }
}

TEST(Threads, PerThreadDefaultStreamsAreIndependent) {
  Bodies bodies;
  const Device device = Device::open("cpu", {.default_stream = DefaultStream::kPerThread});
  std::atomic<int> arrived{0};
  std::mutex mutex;
  on_threads(2, [&](int) {
    {
      const std::lock_guard lock(mutex);
      bodies.launch(device.default_stream(), [&] {
        arrived.fetch_add(1);
        test::eventually([&] { return arrived.load() == 2; });
      });
    }
    EXPECT_TRUE(test::finishes(device.default_stream()));
  });
  EXPECT_EQ(arrived.load(), 2);
}

}  // namespace
}  // namespace slip::test_threads
