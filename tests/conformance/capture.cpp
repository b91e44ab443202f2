// Section G: capture of streams into plans (rules 96-99).
#include "slip/plan.hpp"
#include "support/errors.hpp"
#include "support/gate.hpp"
#include "support/kernels.hpp"
#include "support/times.hpp"

namespace slip::test::capture {
namespace {

class Captures : public DeviceTest {};

TEST_P(Captures, Rule96_CaptureBeginsAndEndsInTheRightPlace) {
  const Device device = open();
  const Stream origin = device.stream(), forked = device.stream();
  EXPECT_TRUE(fails([&] { device.legacy_stream().begin_capture(); }, ErrorCode::kCaptureUnsupported, {"legacy"}));
  EXPECT_TRUE(
      fails([&] { static_cast<void>(origin.end_capture()); }, ErrorCode::kInvalidValue, {std::to_string(origin.id())}));
  origin.begin_capture();
  EXPECT_TRUE(origin.capturing());
  EXPECT_TRUE(fails([&] { origin.begin_capture(); }, ErrorCode::kInvalidValue, {std::to_string(origin.id())}));
  forked.wait(origin.record());
  EXPECT_TRUE(fails([&] { static_cast<void>(forked.end_capture()); }, ErrorCode::kCaptureUnmatched,
                    {std::to_string(forked.id()), std::to_string(origin.id())}));
  HostCall other(
      [&] { EXPECT_TRUE(fails([&] { static_cast<void>(origin.end_capture()); }, ErrorCode::kCaptureWrongThread)); });
  EXPECT_TRUE(other.ends());
  EXPECT_NO_THROW(static_cast<void>(origin.end_capture()));
  EXPECT_FALSE(origin.capturing());
  EXPECT_FALSE(forked.capturing());
}

TEST_P(Captures, Rule97_CapturedWorkDoesNotRunUntilLaunched) {
  const Device device = open();
  const Trail trail(device);
  const Stream stream = device.stream();
  stream.begin_capture();
  trail.leave(stream, 1);
  trail.leave(stream, 2);
  Plan plan = stream.end_capture();
  EXPECT_EQ(plan.nodes().size(), 2u);
  EXPECT_TRUE(finished(stream));
  EXPECT_TRUE(trail.is({}));
  stream.launch(plan);
  EXPECT_TRUE(trail.is({1, 2}));
}

TEST_P(Captures, Rule97_AnEventPullsAnotherStreamIn) {
  const Device device = open();
  const Trail trail(device);
  const Stream origin = device.stream(), forked = device.stream(StreamFlags::kNonBlocking);
  origin.begin_capture();
  trail.leave(origin, 1);
  forked.wait(origin.record());
  EXPECT_TRUE(forked.capturing());
  trail.leave(forked, 2);
  origin.wait(forked.record());
  trail.leave(origin, 3);
  Plan plan = origin.end_capture();
  EXPECT_EQ(plan.streams(), 2u);
  EXPECT_TRUE(trail.is({}));
  Gate gate(device);
  gate.hold(origin);
  origin.launch(plan);
  busy(forked, 0);  // the stream itself is free again
  EXPECT_TRUE(finished(forked));
  gate.open();
  EXPECT_TRUE(trail.is({1, 2, 3}));
}

TEST_P(Captures, Rule97_ForkedStreamsMustBeJoined) {
  const Device device = open();
  const Trail trail(device);
  const Stream origin = device.stream(), forked = device.stream();
  origin.begin_capture();
  trail.leave(origin, 1);
  forked.wait(origin.record());
  trail.leave(forked, 2);
  EXPECT_TRUE(fails([&] { static_cast<void>(origin.end_capture()); }, ErrorCode::kCaptureUnjoined));
  EXPECT_FALSE(origin.capturing());
  EXPECT_FALSE(forked.capturing());
  trail.leave(forked, 5);
  EXPECT_TRUE(trail.is({5})) << "both streams work again, and nothing captured ran";
}

TEST_P(Captures, Rule98_WaitingForCapturedWorkSpoilsTheCapture) {
  const Device device = open();
  const Stream stream = device.stream(StreamFlags::kNonBlocking);
  Event event;
  const std::function<void()> calls[] = {
      [&] { stream.sync(); }, [&] { static_cast<void>(stream.query()); },
      [&] { event.sync(); },  [&] { static_cast<void>(event.query()); },
      [&] { device.sync(); },
  };
  for (const auto& call : calls) {
    stream.begin_capture();
    busy(stream, 0);
    stream.record(event);
    EXPECT_TRUE(fails(call, ErrorCode::kCaptureUnsupported)) << &call - calls;
    EXPECT_TRUE(fails([&] { busy(stream, 0); }, ErrorCode::kCaptureInvalidated)) << &call - calls;
    EXPECT_TRUE(fails([&] { static_cast<void>(stream.end_capture()); }, ErrorCode::kCaptureInvalidated))
        << &call - calls;
  }
  busy(stream, 0);
  EXPECT_TRUE(finished(stream));
}

// An H200 does the same for each of these calls: error 906 at the call, error 901 at the end of the capture.
TEST_P(Captures, Rule98_UseOfTheLegacyStreamInvalidatesTheCaptureOfABlockingStream) {
  const Device device = open();
  const Buffer memory = device.alloc(64);
  const StreamRef legacy = device.legacy_stream();
  const Stream stream = device.stream();
  Event never, captured;
  const std::function<void()> calls[] = {
      [&] { busy(legacy, 0); },
      [&] { device.fill(memory, 1); },
      [&] { static_cast<void>(legacy.record()); },
      [&] { static_cast<void>(legacy.alloc(64)); },
      [&] { legacy.wait(captured); },
      [&] { legacy.wait(never); },
      [&] { legacy.sync(); },
      [&] { static_cast<void>(legacy.query()); },
  };
  for (const auto& call : calls) {
    stream.begin_capture();
    busy(stream, 0);
    stream.record(captured);
    EXPECT_TRUE(fails(call, ErrorCode::kCaptureImplicit)) << &call - calls;
    EXPECT_TRUE(fails([&] { busy(stream, 0); }, ErrorCode::kCaptureInvalidated)) << &call - calls;
    EXPECT_TRUE(fails([&] { static_cast<void>(stream.end_capture()); }, ErrorCode::kCaptureInvalidated))
        << &call - calls;
    EXPECT_FALSE(stream.capturing()) << &call - calls;
  }
  busy(legacy, 0);
  EXPECT_TRUE(finished(legacy)) << "both streams work again";
}

TEST_P(Captures, Rule98_TheLegacyStreamLeavesCapturesOfNonBlockingStreamsAlone) {
  const Device device = open();
  const Stream blocking = device.stream(), free = device.stream(StreamFlags::kNonBlocking);
  free.begin_capture();
  EXPECT_NO_THROW(busy(device.legacy_stream(), 0));
  EXPECT_NO_THROW(static_cast<void>(free.end_capture()));
  EXPECT_TRUE(finished(device.legacy_stream()));
  free.begin_capture();
  blocking.begin_capture();
  EXPECT_TRUE(fails([&] { busy(device.legacy_stream(), 0); }, ErrorCode::kCaptureImplicit));
  EXPECT_TRUE(fails([&] { static_cast<void>(blocking.end_capture()); }, ErrorCode::kCaptureInvalidated));
  EXPECT_NO_THROW(static_cast<void>(free.end_capture())) << "a capture without a blocking stream goes on";
}

TEST_P(Captures, Rule98_TheLegacyStreamCannotJoinACapture) {
  const Device device = open();
  const Stream free = device.stream(StreamFlags::kNonBlocking);
  free.begin_capture();
  busy(free, 0);
  EXPECT_TRUE(fails([&] { device.legacy_stream().wait(free.record()); }, ErrorCode::kCaptureImplicit));
  EXPECT_TRUE(fails([&] { static_cast<void>(free.end_capture()); }, ErrorCode::kCaptureInvalidated)) << "as on an H200";
}

TEST_P(Captures, Rule98_AnotherDevicesLegacyStreamLeavesTheCaptureAlone) {
  SLIP_NEEDS_DEVICES(2);
  const std::vector<Device> devices = open_all(2);
  const Stream stream = devices[0].stream();
  stream.begin_capture();
  busy(stream, 0);
  EXPECT_NO_THROW(busy(devices[1].legacy_stream(), 0));
  EXPECT_NO_THROW(static_cast<void>(stream.end_capture()));
}

TEST_P(Captures, Rule98_CapturesCannotMerge) {
  const Device device = open();
  const Stream first = device.stream(), second = device.stream();
  first.begin_capture();
  second.begin_capture();
  busy(first, 0);
  EXPECT_TRUE(fails([&] { second.wait(first.record()); }, ErrorCode::kCaptureMerge, {std::to_string(second.id())}));
  EXPECT_TRUE(fails([&] { static_cast<void>(second.end_capture()); }, ErrorCode::kCaptureInvalidated));
  EXPECT_TRUE(fails([&] { static_cast<void>(first.end_capture()); }, ErrorCode::kCaptureInvalidated));
}

TEST_P(Captures, Rule98_NoEdgesAcrossTheBorder) {
  const Device device = open();
  const Stream stream = device.stream(), outside = device.stream();
  const Event before = outside.record();
  stream.begin_capture();
  EXPECT_TRUE(fails([&] { stream.wait(before); }, ErrorCode::kCaptureIsolation));
  EXPECT_TRUE(fails([&] { static_cast<void>(stream.end_capture()); }, ErrorCode::kCaptureInvalidated));
  stream.begin_capture();
  busy(stream, 0);
  const Event captured = stream.record();
  static_cast<void>(stream.end_capture());
  EXPECT_TRUE(fails([&] { outside.wait(captured); }, ErrorCode::kCaptureIsolation));
  EXPECT_TRUE(fails([&] { captured.sync(); }, ErrorCode::kCaptureUnsupported));
  EXPECT_TRUE(finished(outside));
}

TEST_P(Captures, Rule98_WhatCannotBeCapturedIsRefused) {
  const Device device = open();
  const Buffer memory = device.alloc(64), pageable = device.alloc(64, MemoryKind::kPageable);
  const Stream stream = device.stream(StreamFlags::kNonBlocking);
  Plan empty;
  stream.begin_capture();
  EXPECT_TRUE(fails([&] { stream.copy(memory, pageable); }, ErrorCode::kCaptureUnsupported));
  EXPECT_TRUE(fails([&] { static_cast<void>(stream.alloc(64)); }, ErrorCode::kCaptureUnsupported));
  EXPECT_TRUE(fails([&] { stream.launch(empty); }, ErrorCode::kCaptureUnsupported));
  static_cast<void>(stream.end_capture());
}

TEST_P(Captures, Rule99_WorkAfterTheCaptureFollowsWorkBeforeIt) {
  const Device device = open();
  const Trail trail(device);
  const Stream stream = device.stream();
  Gate gate(device);
  gate.hold(stream);
  trail.leave(stream, 1);
  stream.begin_capture();
  trail.leave(stream, 7);
  static_cast<void>(stream.end_capture());
  trail.leave(stream, 2);
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(stream.query());
  gate.open();
  EXPECT_TRUE(trail.is({1, 2}));
}

SLIP_OVER_DEVICES(Captures);

}  // namespace
}  // namespace slip::test::capture
