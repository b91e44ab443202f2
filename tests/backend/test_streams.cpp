// Life of streams: many of them, closed while work is pending, used again under another name, references that dangle.
#include <thread>
#include <vector>

#include "backend/support.hpp"

namespace slip::test_streams {
namespace {

using test::Gate;

TEST(Streams, AThousandClosedWhilePendingAllRun) {
  std::atomic<int> ran{0};
  test::Bodies bodies;
  const Device device = Device::open("cpu", {.queue_depth = 16});
  Gate gate(device);
  const int count = test::rounds(1'000);
  for (int i = 0; i < count; ++i) {
    const Stream stream = device.stream(i % 2 == 0 ? StreamFlags::kBlocking : StreamFlags::kNonBlocking, -(i % 3));
    gate.hold(stream);
    bodies.launch(stream, [&] { ran.fetch_add(1); });
  }
  EXPECT_EQ(ran.load(), 0);
  gate.open();
  device.sync();
  EXPECT_EQ(ran.load(), count);
}

TEST(Streams, OpenedAndClosedInALoopReuseTheirState) {
  for (const CpuPolicy policy : {CpuPolicy::kConcurrent, CpuPolicy::kSingle, CpuPolicy::kRandom}) {
    const Device device = Device::open("cpu", {.policy = policy});
    std::vector<runtime::StreamState*> states;
    for (int i = 0; i < 200; ++i) {
      const Stream stream = device.stream();
      stream.launch(test::nothing());
      stream.sync();
      if (std::find(states.begin(), states.end(), stream.state()) == states.end()) states.push_back(stream.state());
    }
    EXPECT_LT(states.size(), 100U) << "policy " << int(policy) << ": a lane of 256 KiB for each stream that ever was";
  }
}

TEST(Streams, IdsAreNeverUsedAgain) {
  const Device device = Device::open("cpu");
  std::uint64_t last = 0;
  for (int i = 0; i < 100; ++i) {
    const Stream stream = device.stream();
    EXPECT_GT(stream.id(), last);
    last = stream.id();
  }
}

TEST(Streams, ADanglingReferenceIsRefusedAlsoWhenItsStateHasANewLife) {
  const Device device = Device::open("cpu");
  const StreamRef dangling = [&]() -> StreamRef { return device.stream(); }();
  const auto refuses = [&] {
    EXPECT_EQ(test::code_of([&] { dangling.launch(test::nothing()); }), ErrorCode::kInvalidHandle);
    EXPECT_EQ(test::code_of([&] { dangling.sync(); }), ErrorCode::kInvalidHandle);
    EXPECT_EQ(test::code_of([&] { dangling.query(); }), ErrorCode::kInvalidHandle);
    EXPECT_EQ(test::code_of([&] { dangling.record(); }), ErrorCode::kInvalidHandle);
    EXPECT_EQ(test::code_of([&] { dangling.begin_capture(); }), ErrorCode::kInvalidHandle);
    EXPECT_EQ(test::code_of([&] { dangling.host([] {}); }), ErrorCode::kInvalidHandle);
  };
  refuses();
  std::vector<Stream> others;
  for (int i = 0; i < 4; ++i) others.push_back(device.stream());
  refuses();
  for (Stream& other : others) EXPECT_TRUE(test::finishes(other));
}

TEST(Streams, AReferenceIntoAClosedDeviceIsRefused) {
  StreamRef dangling = [] {
    const Device device = Device::open("cpu");
    const Stream stream = device.stream();
    stream.launch(test::nothing());
    return StreamRef(stream);
  }();
  EXPECT_EQ(test::code_of([&] { dangling.launch(test::nothing()); }), ErrorCode::kInvalidHandle);
  const Device another = Device::open("cpu");
  const Stream stream = another.stream();
  EXPECT_EQ(test::code_of([&] { dangling.sync(); }), ErrorCode::kInvalidHandle);
}

TEST(Streams, AMovedFromStreamIsRefused) {
  const Device device = Device::open("cpu");
  Stream first = device.stream();
  const std::uint64_t id = first.id();
  const Stream second = std::move(first);
  EXPECT_EQ(second.id(), id);
  EXPECT_EQ(test::code_of([&] { first.launch(test::nothing()); }), ErrorCode::kInvalidHandle);
  second.launch(test::nothing());
  EXPECT_TRUE(test::finishes(second));
}

TEST(Events, OutliveTheirStreamAndTheirDevice) {
  Event reached;
  Event early;
  {
    const Device device = Device::open("cpu");
    Gate gate(device);
    {
      const Stream stream = device.stream();
      early = stream.record();
      gate.hold(stream);
      reached = stream.record();
    }
    EXPECT_TRUE(early.query());
    EXPECT_FALSE(reached.query());
    const Stream other = device.stream();
    other.wait(reached);
    other.launch(test::nothing());
    EXPECT_FALSE(other.query());
    gate.open();
    EXPECT_TRUE(test::finishes(other));
    reached.sync();
  }
  EXPECT_TRUE(reached.query());
  reached.sync();
  const Device device = Device::open("cpu");
  const Stream stream = device.stream();
  stream.wait(reached);
  stream.launch(test::nothing());
  EXPECT_TRUE(test::finishes(stream));
}

// Events of a closed stream must not see pending work or errors of the stream that reuses its state.
TEST(Events, OfAnEarlierLifeStayReached) {
  test::Bodies bodies;
  const Device device = Device::open("cpu");
  Gate gate(device);
  Event old;
  {
    const Stream stream = device.stream();
    stream.launch(test::nothing());
    old = stream.record();
    stream.sync();
  }
  std::vector<Stream> lives;
  for (int i = 0; i < 3; ++i) {
    lives.push_back(device.stream());
    bodies.launch(lives.back(), [] { throw std::runtime_error("second life"); });
    EXPECT_EQ(test::code_of([&] { lives.back().sync(); }), ErrorCode::kLaunchFailed);
  }
  EXPECT_TRUE(old.query());
  EXPECT_NO_THROW(old.sync());
}

TEST(Streams, ThreadsOpenAndCloseAtOnce) {
  const Device device = Device::open("cpu", {.queue_depth = 16});
  std::atomic<int> ran{0};
  std::atomic<int> refused{0};
  static const Kernel kCount{"count", [](const Args& args) { args.scalar<std::atomic<int>*>(0)->fetch_add(1); },
                             nullptr};
  constexpr int kThreads = 4;
  const int times = test::rounds(3'000);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < times; ++i) {
        try {
          const Stream stream = device.stream(i % 2 == 0 ? StreamFlags::kBlocking : StreamFlags::kNonBlocking);
          stream.launch(kCount, {.scalars = {&ran}});
          if (i % 3 == 0) stream.sync();
        } catch (const Error&) {
          refused.fetch_add(1);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  device.sync();
  EXPECT_EQ(refused.load(), 0) << "two threads were given one stream";
  EXPECT_EQ(ran.load(), kThreads * times);
}

// A lane may leave its device while an entry of it is still in that device's queue.
TEST(Streams, StatesOfAClosedDeviceServeTheNextOne) {
  for (int i = 0; i < test::rounds(200); ++i) {
    {
      const Device device = Device::open("cpu");
      const Stream stream = device.stream();
      for (int k = 0; k < 3; ++k) {
        stream.launch(test::nothing());
        stream.sync();
      }
    }
    std::atomic<bool> ran{false};
    test::Bodies bodies;
    const Device device = Device::open("cpu");
    const Stream stream = device.stream();
    bodies.launch(stream, [&] { ran.store(true); });
    ASSERT_TRUE(test::eventually([&] { return ran.load(); })) << "round " << i << ": nobody ran it";
  }
}

// A new device takes the state of the stream, while a thread queries an event of the old one.
TEST(Streams, AnEventOfAClosedDeviceIsQueriedWhileOthersOpen) {
  Event event;
  {
    const Device device = Device::open("cpu", {.compute_workers = 1});
    const Stream stream = device.stream();
    event = stream.record();
    event.sync();
  }
  std::atomic<bool> ends{false};
  std::atomic<int> unreached{0};
  std::thread querier([&] {
    while (!ends.load()) unreached += event.query() ? 0 : 1;
  });
  for (int i = 0; i < test::rounds(100); ++i) {
    const Device next = Device::open("cpu", {.compute_workers = 1});
    const Stream stream = next.stream();
    stream.launch(test::nothing());
    stream.sync();
  }
  ends.store(true);
  querier.join();
  EXPECT_EQ(unreached.load(), 0);
}

TEST(Streams, PerThreadStreamsCloseWithTheirThread) {
  const Device device = Device::open("cpu");
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  StreamRef dangling = device.legacy_stream();
  std::thread([&] {
    const StreamRef mine = device.per_thread_stream();
    EXPECT_TRUE(mine == device.per_thread_stream());
    mine.launch(test::nothing());
    first = mine.id();
    dangling = mine;
  }).join();
  std::thread([&] { second = device.per_thread_stream().id(); }).join();
  EXPECT_NE(first, second);
  EXPECT_EQ(test::code_of([&] { dangling.sync(); }), ErrorCode::kInvalidHandle);
  device.sync();
}

TEST(Streams, APerThreadStreamMayOutliveItsDevice) {
  std::thread([] {
    {
      const Device device = Device::open("cpu");
      device.per_thread_stream().launch(test::nothing());
    }
    const Device device = Device::open("cpu");
    device.per_thread_stream().launch(test::nothing());
    EXPECT_TRUE(test::finishes(device.per_thread_stream()));
  }).join();
}

}  // namespace
}  // namespace slip::test_streams
