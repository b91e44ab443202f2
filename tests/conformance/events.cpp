// Section D: events, records and waits (rules 51-60, 66).
#include <optional>

#include "support/errors.hpp"
#include "support/gate.hpp"
#include "support/kernels.hpp"
#include "support/times.hpp"

namespace slip::test::events {
namespace {

class Events : public DeviceTest {};

TEST_P(Events, Rule51_AnEventNeverRecordedIsDone) {
  const Device device = open();
  for (const Event& event : {Event(), Event(device)}) {
    EXPECT_FALSE(event.recorded());
    EXPECT_TRUE(event.query());
    EXPECT_NO_THROW(event.sync());
  }
}

TEST_P(Events, Rule52_WaitOnAnEventNeverRecordedWaitsForNothing) {
  const Device device = open();
  const Stream waiting = device.stream(), recording = device.stream();
  Event event;
  Gate gate(device);
  waiting.wait(event);
  gate.hold(recording);
  recording.record(event);  // comes too late for that wait
  busy(waiting, 0);
  EXPECT_TRUE(finished(waiting));
}

TEST_P(Events, Rule53_LaterWorkDoesNotChangeARecord) {
  const Device device = open();
  const Stream stream = device.stream(), waiting = device.stream();
  busy(stream, 0);
  const Event event = stream.record();
  Gate gate(device);
  gate.hold(stream);
  busy(stream, 0);
  waiting.wait(event);
  EXPECT_TRUE(finished(waiting));
  EXPECT_TRUE(event.query());
  EXPECT_FALSE(stream.query());
}

TEST_P(Events, Rule54_WaitUsesTheRecordLatestAtTheCall) {
  const Device device = open();
  const Trail trail(device);
  const Stream first = device.stream(), second = device.stream(), waiting = device.stream();
  Gate gate(device), never(device);
  gate.hold(first);
  trail.leave(first, 1);
  Event event = first.record();
  waiting.wait(event);
  never.hold(second);
  second.record(event);  // the wait above keeps the record it saw
  trail.leave(waiting, 2);
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(waiting.query()) << "the first record still counts";
  gate.open();
  EXPECT_TRUE(finished(waiting)) << "the second one never did";
  EXPECT_FALSE(event.query());
  never.open();
  EXPECT_TRUE(trail.is({1, 2}));
}

TEST_P(Events, Rule55_SyncAndQueryUseTheRecordLatestAtTheirCall) {
  const Device device = open();
  const Stream first = device.stream(), second = device.stream();
  Gate gate(device), other(device);
  gate.hold(first);
  other.hold(second);
  Event event = first.record();
  EXPECT_FALSE(event.query());
  second.record(event);
  gate.open();
  EXPECT_TRUE(finished(first));
  EXPECT_FALSE(event.query()) << "the first record is done, but no longer the latest";
  HostCall sync([&] { event.sync(); });
  EXPECT_TRUE(sync.holds(device));
  other.open();
  EXPECT_TRUE(sync.ends());
  EXPECT_TRUE(event.query());
}

TEST_P(Events, Rule56_RecordInAnotherStreamReplacesTheOldOne) {
  const Device device = open();
  const Stream first = device.stream(), second = device.stream(), waiting = device.stream();
  Gate gate(device);
  gate.hold(first);
  Event event = first.record();
  second.record(event);
  waiting.wait(event);
  EXPECT_TRUE(finished(waiting));
  EXPECT_TRUE(event.query());
  EXPECT_FALSE(first.query());
}

TEST_P(Events, Rule57_WaitOrdersFutureWorkOnly) {
  const Device device = open();
  const Trail trail(device);
  const Stream stream = device.stream(), waiting = device.stream(), aside = device.stream();
  Gate gate(device);
  gate.hold(stream);
  trail.leave(stream, 1);
  const Event event = stream.record();
  busy(waiting, 0);
  const Event earlier = waiting.record();
  waiting.wait(event);
  trail.leave(waiting, 2);
  aside.wait(earlier);
  EXPECT_TRUE(finished(aside)) << "work issued before the wait is untouched";
  EXPECT_FALSE(waiting.query());
  gate.open();
  EXPECT_TRUE(trail.is({1, 2}));
}

TEST_P(Events, Rule58_WaitNeverHoldsTheHost) {
  const Device device = open();
  const Stream stream = device.stream(), waiting = device.stream();
  Gate gate(device);
  gate.hold(stream);
  const Event event = stream.record();
  HostCall wait([&] {
    for (int i = 0; i < 100; ++i) waiting.wait(event);
  });
  EXPECT_TRUE(wait.ends());
  EXPECT_FALSE(waiting.query());
}

TEST_P(Events, Rule59_OrderIsTransitive) {
  const Device device = open();
  const Trail trail(device);
  const Stream first = device.stream(), second = device.stream(), third = device.stream();
  Gate gate(device);
  gate.hold(first);
  trail.leave(first, 1);
  second.wait(first.record());
  third.wait(second.record());  // nothing but the wait was issued to the second
  trail.leave(third, 2);
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(third.query());
  gate.open();
  EXPECT_TRUE(trail.is({1, 2}));
}

TEST_P(Events, Rule60_WaitDoesNotOrderTheStreamOfTheEvent) {
  if (simulated()) {
    const Device device = open_ideal();
    const Stream stream = device.stream(), waiting = device.stream();
    const auto program = [&] {
      busy(stream, 5, 0.5);
      waiting.wait(stream.record());
      busy(waiting, 5, 0.5);
      busy(stream, 5, 0.5);
    };
    EXPECT_EQ(duration(device, program), 10 * kMs);
    return;
  }
  const Device device = open();
  const Stream stream = device.stream(), waiting = device.stream();
  Gate gate(device);
  waiting.wait(stream.record());
  gate.hold(waiting);
  busy(stream, 0);
  EXPECT_TRUE(finished(stream)) << "held by a stream that waits for it";
  gate.open();
  if (!concurrent()) return;
  Meeting meeting(2);
  waiting.wait(stream.record());
  meeting.launch(waiting);
  meeting.launch(stream);
  EXPECT_TRUE(finished(stream) && finished(waiting));
  EXPECT_TRUE(meeting.complete());
}

TEST_P(Events, Rule66_DestroyingAPendingEventKeepsItsWaits) {
  const Device device = open();
  const Trail trail(device);
  const Stream stream = device.stream(), waiting = device.stream();
  Gate gate(device);
  gate.hold(stream);
  trail.leave(stream, 1);
  {
    const TimedEvent event = stream.record_timed();
    waiting.wait(event);
  }
  trail.leave(waiting, 2);
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(waiting.query());
  gate.open();
  EXPECT_TRUE(trail.is({1, 2}));
}

TEST_P(Events, Rule66_AnEventOutlivesItsStreamAndItsDevice) {
  std::optional<Event> event;
  {
    const Device device = open();
    {
      const Stream stream = device.stream();
      busy(stream, 0);
      event = stream.record();
    }
    event->sync();
    EXPECT_TRUE(event->query());
  }
  EXPECT_TRUE(event->query());
  EXPECT_NO_THROW(event->sync());
}

TEST_P(Events, Rule66_AnEventOfAClosedDeviceHasNothingToDoWithOthers) {
  SLIP_NEEDS_FAILING_KERNELS();
  std::vector<Event> events;
  {
    const Device device = open();
    for (int i = 0; i < 4; ++i) events.push_back(device.stream().record());
    events.push_back(device.legacy_stream().record());
  }
  const Device lost = open();  // its streams may take the places of the old ones
  const Stream stream = lost.stream(), other = lost.stream();
  stream.launch(fault_kernel());
  EXPECT_TRUE(fails([&] { stream.sync(); }, ErrorCode::kDeviceFault));
  for (const Event& event : events) {
    EXPECT_TRUE(event.query());
    EXPECT_NO_THROW(event.sync());
  }
}

SLIP_OVER_DEVICES(Events);

}  // namespace
}  // namespace slip::test::events
