// Failed work: poisoned streams, what passes through events and what does not, lost devices.
#include <fmt/format.h>

#include <thread>
#include <vector>

#include "backend/support.hpp"

namespace slip::test_failures {
namespace {

using test::Bodies;
using test::Gate;

constexpr CpuPolicy kAll[] = {CpuPolicy::kConcurrent, CpuPolicy::kSingle, CpuPolicy::kRandom};

TEST(Poison, TheErrorNamesTheOpAndItsPlace) {
  for (const CpuPolicy policy : kAll) {
    Bodies bodies;
    const Device device = Device::open("cpu", {.policy = policy});
    const Stream stream = device.stream();
    const int line = __LINE__ + 1;
    bodies.launch(
        stream, [] { throw std::runtime_error("seven is odd"); }, "my kernel");
    const std::string text = test::text_of([&] { stream.sync(); });
    EXPECT_TRUE(test::contains(text, "launch failed")) << text;
    EXPECT_TRUE(test::contains(text, "'my kernel'")) << text;
    EXPECT_TRUE(test::contains(text, "seven is odd")) << text;
    EXPECT_TRUE(test::contains(text, "test_failures.cpp:" + std::to_string(line))) << text;
  }
}

TEST(Poison, EveryLaterCallThrowsTheFirstError) {
  Bodies bodies;
  const Device device = Device::open("cpu");
  const Stream stream = device.stream();
  Buffer memory = device.alloc(64);
  Buffer pinned = device.alloc(64, MemoryKind::kPinned);
  bodies.launch(stream, [] { throw std::runtime_error("the first"); });
  EXPECT_EQ(test::code_of([&] { stream.sync(); }), ErrorCode::kLaunchFailed);
  const auto poisoned = [&](const auto& call) { return test::contains(test::text_of(call), "the first"); };
  EXPECT_TRUE(poisoned([&] { stream.launch(test::nothing()); }));
  EXPECT_TRUE(poisoned([&] { stream.copy(pinned, memory); }));
  EXPECT_TRUE(poisoned([&] { stream.fill(memory, 1); }));
  EXPECT_TRUE(poisoned([&] { stream.host([] {}); }));
  EXPECT_TRUE(poisoned([&] { stream.record(); }));
  EXPECT_TRUE(poisoned([&] { stream.record_timed(); }));
  EXPECT_TRUE(poisoned([&] { stream.query(); }));
  EXPECT_TRUE(poisoned([&] { stream.sync(); }));
  EXPECT_TRUE(poisoned([&] { stream.alloc(512); })) << "memory in the order of a stream that runs nothing any more";
  EXPECT_TRUE(poisoned([&] { device.sync(); }));
  last_error();
  EXPECT_TRUE(poisoned([&] { stream.sync(); })) << "reading the last error does not heal it";
}

TEST(Poison, WorkIssuedBeforeTheFailureShowedIsSkipped) {
  for (const CpuPolicy policy : kAll) {
    std::atomic<int> ran{0};
    Bodies bodies;
    const Device device = Device::open("cpu", {.policy = policy});
    Gate gate(device);
    const Stream stream = device.stream();
    auto token = std::make_shared<int>(1);
    gate.hold(stream);
    bodies.launch(stream, [&] { ran.fetch_add(1); });
    bodies.launch(stream, [] { throw 5; });
    bodies.launch(stream, [&] { ran.fetch_add(10); });
    stream.host([&, token] { ran.fetch_add(100); });
    gate.open();
    const std::string text = test::text_of([&] { stream.sync(); });
    EXPECT_TRUE(test::contains(text, "not a std::exception")) << text;
    EXPECT_EQ(ran.load(), 1) << "neither the kernel nor the host function after it";
    EXPECT_TRUE(test::eventually([&] { return token.use_count() == 1; })) << "the skipped function was not destroyed";
  }
}

TEST(Poison, OtherStreamsGoOn) {
  Bodies bodies;
  const Device device = Device::open("cpu");
  const Stream broken = device.stream();
  const Stream fine = device.stream();
  bodies.launch(broken, [] { throw std::runtime_error("broken"); });
  EXPECT_EQ(test::code_of([&] { broken.sync(); }), ErrorCode::kLaunchFailed);
  for (int i = 0; i < 10; ++i) fine.launch(test::nothing());
  EXPECT_NO_THROW(fine.sync());
  EXPECT_NO_THROW(device.legacy_stream().launch(test::nothing()));
  EXPECT_NO_THROW(device.legacy_stream().sync()) << "the legacy barrier orders but carries no failure";
}

TEST(Poison, ClosingTheStreamFreesTheDevice) {
  Bodies bodies;
  const Device device = Device::open("cpu");
  {
    const Stream broken = device.stream();
    bodies.launch(broken, [] { throw std::runtime_error("broken"); });
    EXPECT_EQ(test::code_of([&] { device.sync(); }), ErrorCode::kLaunchFailed) << "rule 22";
    EXPECT_EQ(test::code_of([&] { device.sync(); }), ErrorCode::kLaunchFailed);
  }
  EXPECT_NO_THROW(device.sync());
  const Stream next = device.stream();
  next.launch(test::nothing());
  EXPECT_NO_THROW(next.sync()) << "a reused stream state has no failure";
}

TEST(Poison, AStreamThatWaitsForFailedWorkFailsWithItsCause) {
  for (const CpuPolicy policy : kAll) {
    std::atomic<int> ran{0};
    Bodies bodies;
    const Device device = Device::open("cpu", {.policy = policy});
    Gate gate(device);
    const Stream broken = device.stream(StreamFlags::kNonBlocking);
    const Stream near = device.stream(StreamFlags::kNonBlocking);
    const Stream far = device.stream(StreamFlags::kNonBlocking);
    gate.hold(broken);
    const Event before = broken.record();
    bodies.launch(
        broken, [] { throw std::runtime_error("the cause"); }, "source of it");
    const Event after = broken.record();
    near.wait(after);
    bodies.launch(near, [&] { ran.fetch_add(1); });
    far.wait(near.record());
    bodies.launch(far, [&] { ran.fetch_add(1); });
    gate.open();
    for (const Stream* stream : {&near, &far}) {
      const std::string text = test::text_of([&] { stream->sync(); });
      EXPECT_TRUE(test::contains(text, "the cause")) << text;
      EXPECT_TRUE(test::contains(text, "'source of it'")) << text;
      EXPECT_TRUE(test::contains(text, "through a wait")) << text;
    }
    EXPECT_EQ(ran.load(), 0);
    EXPECT_NO_THROW(before.sync()) << "what came before the failure is good";
    EXPECT_EQ(test::code_of([&] { after.sync(); }), ErrorCode::kLaunchFailed);
    EXPECT_EQ(test::code_of([&] { after.query(); }), ErrorCode::kLaunchFailed);
  }
}

TEST(Poison, ErrorsNameAStreamByItsIdAndItsName) {
  for (const CpuPolicy policy : kAll) {
    Bodies bodies;
    const Device device = Device::open("cpu", {.policy = policy});
    for (const char* name : {"loads", ""}) {
      const Stream broken = device.stream({.name = name, .flags = StreamFlags::kNonBlocking});
      const Stream waiting = device.stream({.name = "compute", .flags = StreamFlags::kNonBlocking});
      Gate gate(device);
      gate.hold(broken);  // a record in a stream that has failed already would throw
      bodies.launch(broken, [] { throw std::runtime_error("the cause"); });
      waiting.wait(broken.record());
      bodies.launch(waiting, [] {});
      gate.open();
      const std::string text = test::text_of([&] { waiting.sync(); });
      const std::string shown = fmt::format("stream {}{})", broken.id(), *name ? fmt::format(" '{}'", name) : "");
      EXPECT_TRUE(test::contains(text, "(through a wait for " + shown)) << text;
    }
  }
}

// A reference may outlive its stream. The state is then reused, and the error must not show the name of another stream.
TEST(Poison, ADestroyedStreamIsNamedUntilItsStateIsReused) {
  const Device device = Device::open("cpu");
  Stream first = device.stream({.name = "first"});
  const StreamRef gone = first;
  { const Stream closed = std::move(first); }
  const std::string closed = test::text_of([&] { gone.sync(); });
  EXPECT_TRUE(test::contains(closed, fmt::format("stream {} 'first' was destroyed", gone.id()))) << closed;
  std::vector<Stream> others;
  for (int i = 0; i < 100; ++i) others.push_back(device.stream({.name = "other"}));
  const std::string reused = test::text_of([&] { gone.sync(); });
  EXPECT_TRUE(test::contains(reused, fmt::format("stream {}", gone.id()))) << reused;
  EXPECT_FALSE(test::contains(reused, "other")) << reused;
}

TEST(Poison, AWaitForWorkBeforeTheFailureIsFine) {
  Bodies bodies;
  const Device device = Device::open("cpu");
  const Stream broken = device.stream(StreamFlags::kNonBlocking);
  const Stream fine = device.stream(StreamFlags::kNonBlocking);
  broken.launch(test::nothing());
  const Event before = broken.record();
  bodies.launch(broken, [] { throw std::runtime_error("later"); });
  EXPECT_EQ(test::code_of([&] { broken.sync(); }), ErrorCode::kLaunchFailed);
  fine.wait(before);
  fine.launch(test::nothing());
  EXPECT_NO_THROW(fine.sync());
}

TEST(Poison, AHostFunctionThatThrowsPoisonsToo) {
  const Device device = Device::open("cpu");
  const Stream stream = device.stream();
  stream.host([] { throw std::runtime_error("from the host"); }, "callback");
  const std::string text = test::text_of([&] { stream.sync(); });
  EXPECT_TRUE(test::contains(text, "host function 'callback'")) << text;
}

TEST(Poison, AKernelThatAsksForTooMuchFails) {
  static const Kernel kGreedy{"greedy", [](const Args& args) { args.in<int>(2); }, nullptr};
  const Device device = Device::open("cpu");
  const Stream stream = device.stream();
  stream.launch(kGreedy);
  const std::string text = test::text_of([&] { stream.sync(); });
  EXPECT_TRUE(test::contains(text, "in(2)")) << text;
  EXPECT_TRUE(test::contains(text, "'greedy'")) << text;
}

TEST(Poison, CallsFromInsideAnOpAreRefused) {
  std::atomic<int> refused{0};
  Bodies bodies;
  const Device device = Device::open("cpu");
  const Stream stream = device.stream();
  const Stream other = device.stream();
  const auto tries = [&] {
    for (const auto& call : std::initializer_list<std::function<void()>>{
             [&] { other.launch(test::nothing()); }, [&] { other.sync(); }, [&] { device.sync(); },
             [&] { other.query(); }, [&] { static_cast<void>(device.alloc(64)); },
             [&] { static_cast<void>(device.stream()); }})
      refused.fetch_add(test::code_of(call) == ErrorCode::kNotPermitted);
  };
  bodies.launch(stream, tries);
  stream.sync();
  EXPECT_EQ(refused.load(), 6);
  stream.host(tries);
  stream.sync();
  EXPECT_EQ(refused.load(), 12);
}

TEST(Poison, FailuresFromManyStreamsAtOnce) {
  Bodies bodies;
  const Device device = Device::open("cpu");
  for (int round = 0; round < test::rounds(50); ++round) {
    std::vector<Stream> streams;
    for (int i = 0; i < 8; ++i) streams.push_back(device.stream());
    for (const Stream& stream : streams) bodies.launch(stream, [] { throw std::runtime_error("one of many"); });
    for (const Stream& stream : streams) ASSERT_EQ(test::code_of([&] { stream.sync(); }), ErrorCode::kLaunchFailed);
  }
}

TEST(Fault, LosesTheWholeDevice) {
  for (const CpuPolicy policy : kAll) {
    std::atomic<int> ran{0};
    Bodies bodies;
    const Device device = Device::open("cpu", {.policy = policy});
    Gate gate(device);
    const Stream broken = device.stream();
    const Stream other = device.stream();
    Buffer memory = device.alloc(64);
    const Event event = other.record();
    gate.hold(other);
    bodies.launch(other, [&] { ran.fetch_add(1); });
    bodies.launch(
        broken, [] { throw DeviceFault("illegal address 0x10"); }, "wild");
    ASSERT_TRUE(test::eventually([&] { return test::code_of([&] { broken.query(); }) == ErrorCode::kDeviceFault; }));
    const auto lost = [&](const auto& call) {
      const std::string text = test::text_of(call);
      return test::contains(text, "illegal address 0x10") && test::contains(text, "'wild'");
    };
    for (int twice = 0; twice < 2; ++twice) {
      EXPECT_TRUE(lost([&] { other.launch(test::nothing()); }));
      EXPECT_TRUE(lost([&] { other.sync(); }));
      EXPECT_TRUE(lost([&] { device.sync(); }));
      EXPECT_TRUE(lost([&] { static_cast<void>(device.stream()); }));
      EXPECT_TRUE(lost([&] { static_cast<void>(device.alloc(64)); }));
      EXPECT_TRUE(lost([&] { static_cast<void>(other.alloc(64)); }));
      EXPECT_TRUE(lost([&] { device.fill(memory, 1); }));
      EXPECT_TRUE(lost([&] { static_cast<void>(event.query()); }));
      last_error();
    }
    gate.open();
  }
}

TEST(Fault, PendingWorkIsDroppedAndTheDeviceCloses) {
  std::atomic<int> ran{0};
  Bodies bodies;
  {
    const Device device = Device::open("cpu");
    const Stream stream = device.stream();
    Gate gate(device);
    gate.hold(stream);
    bodies.launch(stream, [] { throw DeviceFault("gone"); });
    for (int i = 0; i < 100; ++i) bodies.launch(stream, [&] { ran.fetch_add(1); });
    gate.open();
  }
  EXPECT_EQ(ran.load(), 0);
}

}  // namespace
}  // namespace slip::test_failures
