// Capture: what is collected, what spoils it, and that nothing of it stays behind.
#include <thread>
#include <vector>

#include "backend/support.hpp"
#include "slip/plan.hpp"

namespace slip::test_capture {
namespace {

using test::Bodies;
using test::Gate;

struct Captures : testing::Test {
  Device device = Device::open("cpu");
  Buffer memory = device.alloc(sizeof(unsigned) * 4);
  Buffer result = device.alloc(sizeof(unsigned) * 4, MemoryKind::kPinned);
  Stream origin = device.stream(StreamFlags::kNonBlocking);
  Stream fork = device.stream(StreamFlags::kNonBlocking);

  void SetUp() override {
    device.fill(memory, 0);
    device.sync();
  }
  unsigned value(std::size_t at = 0) {
    device.copy(result, memory);
    return result.host_read<unsigned>()[at];
  }
  void mix(StreamRef stream, unsigned with, std::size_t at = 0) {
    stream.launch(test::mix(), {.writes = {memory.slice(4 * at, 4)}, .scalars = {with}});
  }
  // That both streams and the device are as if nothing had happened.
  void expect_usable() {
    EXPECT_FALSE(origin.capturing());
    EXPECT_FALSE(fork.capturing());
    origin.launch(test::nothing());
    fork.launch(test::nothing());
    EXPECT_NO_THROW(origin.sync());
    EXPECT_NO_THROW(fork.sync());
    EXPECT_NO_THROW(device.sync());
    EXPECT_NO_THROW(device.legacy_stream().launch(test::nothing()));
  }
};

TEST_F(Captures, NothingRunsUntilLaunched) {
  origin.begin_capture();
  mix(origin, 5);
  Plan plan = origin.end_capture();
  EXPECT_EQ(value(), 0U);
  EXPECT_EQ(plan.nodes().size(), 1U);
  origin.launch(plan);
  origin.launch(plan);
  EXPECT_TRUE(test::finishes(origin));
  EXPECT_EQ(value(), 20U);
}

TEST_F(Captures, ForkAndJoin) {
  origin.begin_capture();
  mix(origin, 1);
  fork.wait(origin.record());
  EXPECT_TRUE(fork.capturing());
  mix(fork, 2);
  mix(origin, 7, 1);
  origin.wait(fork.record());
  mix(origin, 3);
  Plan plan = origin.end_capture();
  EXPECT_EQ(plan.streams(), 2U);
  EXPECT_EQ(plan.nodes().size(), 4U);
  EXPECT_TRUE(test::contains(plan.describe(), "4 ops in 2 streams"));
  for (int i = 0; i < 20; ++i) origin.launch(plan);
  ASSERT_TRUE(test::finishes(origin));
  unsigned expected = 0;
  for (int i = 0; i < 20; ++i) expected = 3 * (3 * (3 * expected + 1) + 2) + 3;
  EXPECT_EQ(value(), expected);
  expect_usable();
}

TEST_F(Captures, AnUnjoinedForkIsAnErrorAndReleasesTheStreams) {
  origin.begin_capture();
  fork.wait(origin.record());
  mix(fork, 1);
  EXPECT_EQ(test::code_of([&] { origin.end_capture(); }), ErrorCode::kCaptureUnjoined);
  expect_usable();
}

TEST_F(Captures, SyncAndQuerySpoilIt) {
  const auto spoils = [&](const auto& call) {
    origin.begin_capture();
    mix(origin, 1);
    EXPECT_EQ(test::code_of(call), ErrorCode::kCaptureUnsupported);
    EXPECT_EQ(test::code_of([&] { origin.end_capture(); }), ErrorCode::kCaptureInvalidated);
    expect_usable();
  };
  spoils([&] { origin.sync(); });
  spoils([&] { origin.query(); });
  spoils([&] { origin.sync_for(std::chrono::milliseconds(1)); });
  spoils([&] { origin.record().sync(); });
  spoils([&] { static_cast<void>(origin.record().query()); });
}

TEST_F(Captures, DeviceSyncSpoilsEachOfTheDevicesCapturesAndNoOther) {
  const Device other = Device::open("cpu");
  const Stream there = other.stream();
  origin.begin_capture();
  fork.begin_capture();
  there.begin_capture();
  EXPECT_EQ(test::code_of([&] { device.sync(); }), ErrorCode::kCaptureUnsupported);
  EXPECT_EQ(test::code_of([&] { origin.end_capture(); }), ErrorCode::kCaptureInvalidated);
  EXPECT_EQ(test::code_of([&] { fork.end_capture(); }), ErrorCode::kCaptureInvalidated);
  EXPECT_NO_THROW(there.end_capture());
  expect_usable();
}

TEST_F(Captures, AnEventFromBeforeMayBeAskedMeanwhile) {
  mix(origin, 1);
  const Event before = origin.record();
  origin.begin_capture();
  mix(origin, 2);
  EXPECT_NO_THROW(before.sync());
  EXPECT_TRUE(before.query());
  EXPECT_NO_THROW(origin.end_capture());
}

TEST_F(Captures, WrongBeginsAndEnds) {
  EXPECT_EQ(test::code_of([&] { origin.end_capture(); }), ErrorCode::kInvalidValue);
  EXPECT_EQ(test::code_of([&] { device.legacy_stream().begin_capture(); }), ErrorCode::kCaptureUnsupported);
  origin.begin_capture();
  EXPECT_EQ(test::code_of([&] { origin.begin_capture(); }), ErrorCode::kInvalidValue);
  fork.wait(origin.record());
  EXPECT_EQ(test::code_of([&] { fork.end_capture(); }), ErrorCode::kCaptureUnmatched);
  std::thread([&] { EXPECT_EQ(test::code_of([&] { origin.end_capture(); }), ErrorCode::kCaptureWrongThread); }).join();
  origin.wait(fork.record());
  EXPECT_NO_THROW(origin.end_capture());
  expect_usable();
}

TEST_F(Captures, EdgesAcrossTheBorderAreRefused) {
  const Event outside = fork.record();
  origin.begin_capture();
  const Event inside = origin.record();
  EXPECT_EQ(test::code_of([&] { origin.wait(outside); }), ErrorCode::kCaptureIsolation);
  EXPECT_EQ(test::code_of([&] { origin.end_capture(); }), ErrorCode::kCaptureInvalidated);
  EXPECT_EQ(test::code_of([&] { fork.wait(inside); }), ErrorCode::kCaptureIsolation) << "its capture has ended";
  EXPECT_EQ(test::code_of([&] { inside.sync(); }), ErrorCode::kCaptureUnsupported);
  expect_usable();
}

TEST_F(Captures, TwoCapturesDoNotMerge) {
  origin.begin_capture();
  fork.begin_capture();
  const Event inside = origin.record();
  EXPECT_EQ(test::code_of([&] { fork.wait(inside); }), ErrorCode::kCaptureMerge);
  EXPECT_EQ(test::code_of([&] { fork.end_capture(); }), ErrorCode::kCaptureInvalidated);
  EXPECT_EQ(test::code_of([&] { origin.end_capture(); }), ErrorCode::kCaptureInvalidated);
  expect_usable();
}

TEST_F(Captures, TheLegacyStreamAndABlockingCapture) {
  Stream blocking = device.stream();
  blocking.begin_capture();
  EXPECT_EQ(test::code_of([&] { device.legacy_stream().launch(test::nothing()); }), ErrorCode::kCaptureImplicit);
  EXPECT_EQ(test::code_of([&] { device.fill(memory, 0); }), ErrorCode::kCaptureImplicit);
  EXPECT_NO_THROW(origin.launch(test::nothing()));
  EXPECT_EQ(test::code_of([&] { blocking.end_capture(); }), ErrorCode::kCaptureInvalidated);
  expect_usable();
}

// Destroying the capturing stream ends the capture, and the stream that reuses its state is not capturing.
TEST_F(Captures, DestroyingTheOriginEndsIt) {
  {
    const Stream gone = device.stream();
    gone.begin_capture();
    fork.wait(gone.record());
    EXPECT_TRUE(fork.capturing());
  }
  expect_usable();
  for (int i = 0; i < 4; ++i) {
    const Stream next = device.stream();
    EXPECT_FALSE(next.capturing());
    mix(next, 1);
    EXPECT_TRUE(test::finishes(next));
  }
}

TEST_F(Captures, DestroyingAForkSpoilsIt) {
  origin.begin_capture();
  {
    const Stream gone = device.stream();
    gone.wait(origin.record());
    mix(gone, 1);
    origin.wait(gone.record());
  }
  EXPECT_EQ(test::code_of([&] { origin.end_capture(); }), ErrorCode::kCaptureInvalidated);
  expect_usable();
  EXPECT_FALSE(device.stream().capturing());
}

TEST_F(Captures, AForkOfADeviceThatCloses) {
  origin.begin_capture();
  {
    const Device other = Device::open("cpu");
    const Stream there = other.stream(StreamFlags::kNonBlocking);
    there.wait(origin.record());
    origin.wait(there.record());
  }
  EXPECT_EQ(test::code_of([&] { origin.end_capture(); }), ErrorCode::kCaptureInvalidated);
  expect_usable();
}

TEST_F(Captures, MemoryCallsAreRefused) {
  Buffer pooled = origin.alloc(4096);
  Buffer pageable = device.alloc(64, MemoryKind::kPageable);
  origin.begin_capture();
  EXPECT_EQ(test::code_of([&] { static_cast<void>(origin.alloc(64)); }), ErrorCode::kCaptureUnsupported);
  EXPECT_EQ(test::code_of([&] { origin.free(std::move(pooled)); }), ErrorCode::kCaptureUnsupported);
  EXPECT_TRUE(static_cast<bool>(pooled));
  EXPECT_EQ(test::code_of([&] { origin.copy(memory, pageable.slice(0, 16)); }), ErrorCode::kCaptureUnsupported);
  EXPECT_EQ(test::code_of([&] { origin.copy(result, pageable.slice(0, 16)); }), ErrorCode::kCaptureUnsupported);
  const Plan plan = origin.end_capture();
  EXPECT_TRUE(plan.nodes().empty());
  origin.free(std::move(pooled));
  expect_usable();
}

// Freed while its stream captures: not part of the plan, and not reused while earlier work still needs it.
TEST_F(Captures, APoolBufferMayGoOutOfScopeMeanwhile) {
  std::thread opener;
  {
    Buffer pooled = origin.alloc(4096);
    origin.fill(pooled, 1);
    origin.begin_capture();
  }
  const Plan plan = origin.end_capture();
  EXPECT_TRUE(plan.nodes().empty());
  EXPECT_EQ(device.memory().used, memory.bytes());
  expect_usable();
}

TEST_F(Captures, WorkAfterTheCaptureFollowsWorkBeforeIt) {
  Gate gate(device);
  gate.hold(origin);
  mix(origin, 1);
  origin.begin_capture();
  mix(origin, 9);
  Plan plan = origin.end_capture();
  mix(origin, 2);
  EXPECT_FALSE(origin.query());
  gate.open();
  EXPECT_TRUE(test::finishes(origin));
  EXPECT_EQ(value(), 5U) << "rule 99";
}

// A thread's own default stream is still open when its device closes; its state goes to the next device.
TEST(Capture, EndsWithItsDevice) {
  for (const char* name : {"cpu", "sim:h200"}) {
    {
      const Device device = Device::open(name);
      device.per_thread_stream().begin_capture();
      device.per_thread_stream().launch(test::nothing());
    }
    const Device next = Device::open(name);
    std::vector<Stream> streams;
    for (int i = 0; i < 8; ++i) streams.push_back(next.stream());
    for (const Stream& stream : streams) EXPECT_FALSE(stream.capturing()) << name;
    EXPECT_FALSE(next.legacy_stream().capturing()) << name;
  }
}

TEST(Capture, IsInvalidWhenADeviceOfItIsClosed) {
  const Device device = Device::open("cpu");
  const Stream origin = device.stream();
  {
    const Device other = Device::open("cpu");
    origin.begin_capture();
    origin.launch(test::nothing());
    other.per_thread_stream().wait(origin.record());
  }
  EXPECT_EQ(test::code_of([&] { static_cast<void>(origin.end_capture()); }), ErrorCode::kCaptureInvalidated);
  EXPECT_FALSE(origin.capturing());
}

}  // namespace
}  // namespace slip::test_capture
