// Section A: order within a stream and the default streams (rules 1-13).
#include <thread>

#include "slip/plan.hpp"
#include "support/gate.hpp"
#include "support/kernels.hpp"
#include "support/times.hpp"

namespace slip::test::streams {
namespace {

class Streams : public DeviceTest {};

TEST_P(Streams, Rule1_OpsOfOneStreamRunInOrder) {
  const Device device = open();
  const Trail trail(device);
  const Buffer first = device.alloc(64), second = device.alloc(64);
  const Stream stream = device.stream();
  Gate gate(device);
  gate.hold(stream);
  trail.leave(stream, 1);
  stream.fill(first, 7);  // a fill, a copy and a kernel on three engines, each using the one before
  stream.copy(second, first);
  stream.launch(add_kernel(), {.reads = {second}, .writes = {first}, .scalars = {1}});
  stream.copy(second, first);
  trail.leave(stream, 2);
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(stream.query());
  gate.open();
  ASSERT_TRUE(finished(stream));
  EXPECT_TRUE(trail.is({1, 2}));
  EXPECT_EQ(words_of(device, second)[3], 0x07070708u);
}

TEST_P(Streams, Rule2_IndependentOpsOfTwoStreamsMayOverlap) {
  if (simulated()) {
    const Device device = open_ideal();
    const Stream a = device.stream(), b = device.stream();
    EXPECT_EQ(duration(device, [&] { busy(a, 10, 0.5), busy(b, 10, 0.5); }), 10 * kMs);
    EXPECT_EQ(duration(device, [&] { busy(a, 10, 0.6), busy(b, 10, 0.6); }), 20 * kMs) << "resources do not suffice";
    return;
  }
  SLIP_NEEDS_CONCURRENCY();
  const Device device = open();
  const Stream a = device.stream(), b = device.stream();
  Meeting meeting(2);
  meeting.launch(a);
  meeting.launch(b);
  EXPECT_TRUE(finished(a) && finished(b));
  EXPECT_TRUE(meeting.complete());
}

TEST_P(Streams, Rule3_LegacyOpStandsBetweenOpsOfABlockingStream) {
  const Device device = open();
  const Trail trail(device);
  const Stream stream = device.stream();
  Gate gate(device);
  gate.hold(stream);
  trail.leave(stream, 1);
  trail.leave(device.legacy_stream(), 2);
  trail.leave(stream, 3);
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(device.legacy_stream().query());
  gate.open();
  EXPECT_TRUE(trail.is({1, 2, 3}));
}

TEST_P(Streams, Rule4_LegacyOpOrdersTwoBlockingStreams) {
  const Device device = open();
  const Trail trail(device);
  const Stream first = device.stream(), second = device.stream();
  Gate gate(device);
  gate.hold(first);
  trail.leave(first, 1);
  trail.leave(device.legacy_stream(), 2);
  trail.leave(second, 3);
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(second.query());
  gate.open();
  EXPECT_TRUE(trail.is({1, 2, 3}));
}

TEST_P(Streams, Rule5_OpsOnTheSameSideOfALegacyOpMayOverlap) {
  if (simulated()) {
    const Device device = open_ideal();
    const Stream a = device.stream(), b = device.stream();
    EXPECT_EQ(duration(device, [&] { busy(a, 10, 0.5), busy(b, 10, 0.5), busy(device.legacy_stream(), 3); }), 13 * kMs);
    return;
  }
  const Device device = open();
  const Stream a = device.stream(), b = device.stream();
  {
    Gate gate(device);  // on every policy: no order between the two
    gate.hold(a);
    const Event ran = (busy(b, 0), b.record());
    busy(device.legacy_stream(), 0);
    const Stream waiter = device.stream(StreamFlags::kNonBlocking);
    waiter.wait(ran);
    EXPECT_TRUE(finished(waiter));
    EXPECT_FALSE(device.legacy_stream().query());
  }
  device.sync();
  if (!concurrent()) return;
  Meeting before(2), after(2);
  before.launch(a);
  before.launch(b);
  busy(device.legacy_stream(), 0);
  after.launch(a);
  after.launch(b);
  EXPECT_TRUE(finished(a) && finished(b));
  EXPECT_TRUE(before.complete() && after.complete());
}

TEST_P(Streams, Rule6_NonBlockingStreamsAndTheLegacyStreamHaveNoOrder) {
  const Device device = open();
  const Stream free = device.stream(StreamFlags::kNonBlocking);
  {
    Gate gate(device);
    gate.hold(free);
    busy(device.legacy_stream(), 0);
    EXPECT_TRUE(finished(device.legacy_stream()));
    EXPECT_FALSE(free.query());
  }
  device.sync();
  Gate gate(device);
  gate.hold(device.legacy_stream());
  busy(free, 0);
  EXPECT_TRUE(finished(free));
  EXPECT_FALSE(device.legacy_stream().query());
}

TEST_P(Streams, Rule7_NonBlockingStreamsOverlapAcrossALegacyOp) {
  if (simulated()) {
    const Device device = open_ideal();
    const Stream a = device.stream(StreamFlags::kNonBlocking), b = device.stream(StreamFlags::kNonBlocking);
    const auto three = [&] { busy(a, 10, 0.3), busy(device.legacy_stream(), 10, 0.3), busy(b, 10, 0.3); };
    EXPECT_EQ(duration(device, three), 10 * kMs);
    return;
  }
  const Device device = open();
  const Stream a = device.stream(StreamFlags::kNonBlocking), b = device.stream(StreamFlags::kNonBlocking);
  {
    Gate gate(device);
    gate.hold(a);
    gate.hold(device.legacy_stream());
    busy(b, 0);
    EXPECT_TRUE(finished(b));
  }
  device.sync();
  if (!concurrent()) return;
  Meeting meeting(2);
  meeting.launch(a);
  busy(device.legacy_stream(), 0);
  meeting.launch(b);
  EXPECT_TRUE(finished(a) && finished(b));
  EXPECT_TRUE(meeting.complete());
}

// As cuStreamWaitValue32 with GEQ: a flag that counts may wrap around.
TEST_P(Streams, WaitsForAFlagCompareCyclically) {
  const Device device = open();
  const Buffer flag = device.alloc(4, MemoryKind::kPinned);
  const Stream a = device.stream(StreamFlags::kNonBlocking), b = device.stream(StreamFlags::kNonBlocking);
  a.write_value(flag, 2);
  a.wait_value(flag, 0xFFFFFFFEU);  // 4 behind
  EXPECT_TRUE(finished(a));
  a.write_value(flag, 0xFFFFFFFEU);
  EXPECT_TRUE(finished(a));
  b.wait_value(flag, 2);  // 4 ahead
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(b.query());
  a.write_value(flag, 2);
  EXPECT_TRUE(finished(b));
}

TEST_P(Streams, Rule8_LegacyCommandsKeepBlockingStreamsApart) {
  const Device device = open();
  const Buffer here = device.alloc(64), there = device.alloc(64);
  const Buffer word = device.alloc(4, MemoryKind::kPinned);
  const StreamRef legacy = device.legacy_stream();
  Buffer pooled = legacy.alloc(64);
  const std::function<void()> commands[] = {
      [&] { legacy.fill(here, 1); },
      [&] { legacy.copy(there, here); },
      [&] { legacy.host([] {}); },
      [&] { legacy.write_value(word, 1); },
      [&] { static_cast<void>(legacy.record_timed()); },
      [&] { legacy.free(std::move(pooled)); },
  };
  for (const auto& command : commands) {
    const Trail trail(device);
    const Stream a = device.stream(), b = device.stream();
    Gate gate(device);
    gate.hold(a);
    trail.leave(a, 1);
    command();
    trail.leave(b, 2);
    EXPECT_TRUE(progressed(device));
    EXPECT_FALSE(b.query());
    gate.open();
    EXPECT_TRUE(trail.is({1, 2}));
  }
}

TEST_P(Streams, Rule8_AllocationsEmptyPlansAndWaitsForNothingAreNoBarriers) {
  const Device device = open();
  const StreamRef legacy = device.legacy_stream();
  const Event never;
  Plan empty, captured_empty;
  {
    const Stream origin = device.stream(StreamFlags::kNonBlocking), side = device.stream(StreamFlags::kNonBlocking);
    origin.begin_capture();
    side.wait(origin.record());
    origin.wait(side.record());
    captured_empty = origin.end_capture();
  }
  std::vector<Buffer> kept;  // freeing it in the legacy stream would be a barrier
  const std::function<void()> commands[] = {
      [&] { kept.push_back(legacy.alloc(64)); },
      [&] { legacy.launch(empty); },
      [&] { legacy.launch(captured_empty); },
      [&] { legacy.wait(never); },
  };
  for (const auto& command : commands) {
    const Trail trail(device);
    const Stream a = device.stream(), b = device.stream();
    Gate gate(device);
    gate.hold(a);
    command();
    trail.leave(b, 1);
    EXPECT_TRUE(finished(b)) << "held back by command " << &command - commands;
    EXPECT_FALSE(a.query());
    gate.open();
    EXPECT_TRUE(trail.is({1}));
  }
}

TEST_P(Streams, Rule9_RecordInTheLegacyStreamIsABarrier) {
  const Device device = open();
  const Trail trail(device);
  const Stream a = device.stream(), b = device.stream();
  Gate gate(device);
  gate.hold(a);
  trail.leave(a, 1);
  const Event event = device.legacy_stream().record();
  trail.leave(b, 2);
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(b.query());
  EXPECT_FALSE(event.query());
  gate.open();
  EXPECT_TRUE(trail.is({1, 2}));
}

TEST_P(Streams, Rule9_WaitInTheLegacyStreamIsABarrier) {
  const Device device = open();
  const Trail trail(device);
  const Stream a = device.stream(), b = device.stream(), other = device.stream(StreamFlags::kNonBlocking);
  const Event done = other.record();
  done.sync();
  Gate gate(device);
  gate.hold(a);
  trail.leave(a, 1);
  device.legacy_stream().wait(done);
  trail.leave(b, 2);
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(b.query());
  gate.open();
  EXPECT_TRUE(trail.is({1, 2}));
}

TEST_P(Streams, Rule9_RecordInABlockingStreamCoversTheLegacyOpsBeforeIt) {
  const Device device = open();
  const Stream blocking = device.stream(), waiting = device.stream(StreamFlags::kNonBlocking);
  Gate gate(device);
  gate.hold(device.legacy_stream());
  const Event event = blocking.record();  // nothing else was issued to this stream
  waiting.wait(event);
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(event.query()) << "an H200 says not ready, too";
  EXPECT_FALSE(waiting.query());
  gate.open();
  EXPECT_TRUE(finished(waiting));
  EXPECT_TRUE(event.query());
}

TEST_P(Streams, Rule10_EventInTheLegacyStreamCoversBlockingStreamsOnly) {
  const Device device = open();
  const Stream blocking = device.stream(), free = device.stream(StreamFlags::kNonBlocking);
  const Stream waiter = device.stream(StreamFlags::kNonBlocking);
  {
    Gate gate(device);
    gate.hold(free);
    waiter.wait(device.legacy_stream().record());
    EXPECT_TRUE(finished(waiter)) << "it must not cover the non-blocking stream";
  }
  device.sync();
  Gate gate(device);
  gate.hold(blocking);
  const Event covers = device.legacy_stream().record();
  waiter.wait(covers);
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(covers.query());
  EXPECT_FALSE(waiter.query());
  gate.open();
  EXPECT_TRUE(finished(waiter));
  EXPECT_TRUE(covers.query());
}

TEST_P(Streams, Rule11_LegacyBarrierStaysOnItsDevice) {
  SLIP_NEEDS_DEVICES(2);
  const std::vector<Device> devices = open_all(2);
  const Stream here = devices[0].stream(), there = devices[1].stream();
  Gate gate(devices[0]);
  gate.hold(here);
  busy(devices[0].legacy_stream(), 0);
  busy(there, 0);
  busy(devices[1].legacy_stream(), 0);
  busy(there, 0);
  EXPECT_TRUE(finished(there));
  EXPECT_TRUE(finished(devices[1].legacy_stream()));
  EXPECT_FALSE(devices[0].legacy_stream().query());
}

TEST_P(Streams, Rule12_EachThreadHasItsOwnDefaultStream) {
  const Device device = open([](DeviceOptions& options) { options.default_stream = DefaultStream::kPerThread; });
  const StreamRef mine = device.default_stream();
  EXPECT_EQ(mine, device.default_stream());
  Meeting meeting(2);
  Gate gate(device);
  gate.hold(mine);
  HostCall other([&] {
    EXPECT_FALSE(device.default_stream() == mine);
    busy(device.default_stream(), 0);
    EXPECT_TRUE(finished(device.default_stream())) << "held by another thread's default stream";
    if (concurrent()) meeting.launch(device.default_stream());
  });
  EXPECT_TRUE(other.ends());
  EXPECT_FALSE(mine.query());
  gate.open();
  if (!concurrent()) return;
  meeting.launch(mine);
  device.sync();
  EXPECT_TRUE(meeting.complete());
}

TEST_P(Streams, Rule13_PerThreadStreamIsABlockingStream) {
  const Device device = open();
  const Trail trail(device);
  const StreamRef mine = device.per_thread_stream();
  const Stream created = device.stream();
  Gate gate(device);
  gate.hold(mine);
  trail.leave(mine, 1);
  busy(created, 0);
  EXPECT_TRUE(finished(created)) << "created streams and per-thread ones have no order";
  trail.leave(device.legacy_stream(), 2);
  trail.leave(mine, 3);
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(device.legacy_stream().query());
  gate.open();
  EXPECT_TRUE(trail.is({1, 2, 3}));
}

SLIP_OVER_DEVICES(Streams);

}  // namespace
}  // namespace slip::test::streams
