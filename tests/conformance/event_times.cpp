// Section D: elapsed times, and events of several devices (rules 61-64, 67-70).
#include "support/errors.hpp"
#include "support/gate.hpp"
#include "support/kernels.hpp"
#include "support/times.hpp"

namespace slip::test::event_times {
namespace {

using namespace std::chrono_literals;

template <class A, class B>
concept Subtractable = requires(const A& a, const B& b) {
  a - b;
};

class EventTimes : public DeviceTest {};

TEST_P(EventTimes, Rule61_ElapsedTimeNeedsRecordedEvents) {
  const Device device = open();
  const Stream stream = device.stream();
  const TimedEvent recorded = stream.record_timed();
  recorded.sync();
  EXPECT_TRUE(
      fails([&] { static_cast<void>(recorded - TimedEvent()); }, ErrorCode::kInvalidHandle, {"never recorded"}));
  EXPECT_TRUE(fails([&] { static_cast<void>(TimedEvent(device) - recorded); }, ErrorCode::kInvalidHandle));
}

TEST_P(EventTimes, Rule62_ElapsedTimeOfAnIncompleteEventIsNotReady) {
  const Device device = open();
  const Stream stream = device.stream();
  const TimedEvent begin = stream.record_timed();
  static_cast<void>(last_error());
  Gate gate(device);
  gate.hold(stream);
  const TimedEvent end = stream.record_timed();
  EXPECT_TRUE(fails([&] { static_cast<void>(end - begin); }, ErrorCode::kNotReady));
  EXPECT_EQ(peek_last_error(), ErrorCode::kOk);
  gate.open();
  end.sync();
  EXPECT_GE(end - begin, 0ns);
}

TEST_P(EventTimes, Rule63_EventsWithoutTimeCannotBeSubtracted) {
  EXPECT_TRUE((Subtractable<TimedEvent, TimedEvent>));
  EXPECT_FALSE((Subtractable<Event, Event>));
  EXPECT_FALSE((Subtractable<TimedEvent, Event>));
}

TEST_P(EventTimes, Rule64_ElapsedTimeIsThatOfTheDevice) {
  if (simulated()) {
    const Device device = open_ideal();
    const Stream stream = device.stream(), other = device.stream();
    const TimedEvent begin = stream.record_timed();
    busy(stream, 3);
    const TimedEvent middle = stream.record_timed();
    busy(other, 20);  // in between: full width, so the next kernel waits for it
    busy(stream, 4);
    const TimedEvent end = stream.record_timed();
    device.sync();
    EXPECT_EQ(middle - begin, 3ms);
    EXPECT_EQ(end - begin, 27ms) << "more than the stream's own work";
    return;
  }
  const Device device = open();
  const Stream stream = device.stream();
  const TimedEvent begin = stream.record_timed();
  busy(stream, 0);
  const TimedEvent end = stream.record_timed();
  end.sync();
  EXPECT_GE(end - begin, 0ns);
  EXPECT_LE(begin - end, 0ns);
}

TEST_P(EventTimes, Rule67_AnEventIsRecordedOnItsOwnDeviceOnly) {
  SLIP_NEEDS_DEVICES(2);
  const std::vector<Device> devices = open_all(2);
  const Stream here = devices[0].stream(), there = devices[1].stream();
  const std::string id0 = std::to_string(devices[0].id()), id1 = std::to_string(devices[1].id());
  Event tied(devices[0]);
  EXPECT_TRUE(fails([&] { there.record(tied); }, ErrorCode::kInvalidHandle, {"device " + id0, "device " + id1}));
  here.record(tied);
  Event used = there.record();
  EXPECT_TRUE(fails([&] { here.record(used); }, ErrorCode::kInvalidHandle, {"device " + id0, "device " + id1}));
  there.record(used);
  devices[1].sync();
  EXPECT_TRUE(used.query());
}

TEST_P(EventTimes, Rule68_WaitOrdersAcrossDevices) {
  SLIP_NEEDS_DEVICES(2);
  const std::vector<Device> devices = open_all(2);
  Buffer word = devices[0].alloc(4, MemoryKind::kPinned);
  set_words(word, 0);
  const Stream here = devices[0].stream(), there = devices[1].stream();
  Gate gate(devices[0]);
  gate.hold(here);
  here.launch(mix_kernel(), {.writes = {word}, .scalars = {1}});
  there.wait(here.record());
  there.launch(mix_kernel(), {.writes = {word}, .scalars = {2}});
  here.wait(there.record());
  here.launch(mix_kernel(), {.writes = {word}, .scalars = {3}});
  EXPECT_TRUE(progressed(devices[1]));
  EXPECT_FALSE(there.query());
  gate.open();
  EXPECT_TRUE(finished(here));
  EXPECT_TRUE(all_words(word, mixed(mixed(mixed(0, 1), 2), 3)));
}

TEST_P(EventTimes, Rule69_NoElapsedTimeBetweenDevices) {
  SLIP_NEEDS_DEVICES(2);
  const std::vector<Device> devices = open_all(2);
  const Stream here = devices[0].stream(), there = devices[1].stream();
  const TimedEvent begin = here.record_timed(), end = there.record_timed();
  begin.sync();
  end.sync();
  EXPECT_TRUE(fails([&] { static_cast<void>(end - begin); }, ErrorCode::kInvalidHandle,
                    {std::to_string(devices[0].id()), std::to_string(devices[1].id())}));
}

TEST_P(EventTimes, Rule70_EventsCanBeAskedFromAnywhere) {
  SLIP_NEEDS_DEVICES(2);
  const std::vector<Device> devices = open_all(2);
  const Stream here = devices[0].stream(), there = devices[1].stream();
  const Event event = there.record();
  HostCall other([&] {  // a thread that has only used the other device so far
    busy(here, 0);
    here.sync();
    event.sync();
    EXPECT_TRUE(event.query());
  });
  EXPECT_TRUE(other.ends());
}

SLIP_OVER_DEVICES(EventTimes);

}  // namespace
}  // namespace slip::test::event_times
