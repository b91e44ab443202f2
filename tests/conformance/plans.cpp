// Section G: launches of plans (rule 100), with other bindings and over several devices.
#include "slip/observer.hpp"
#include "slip/plan.hpp"
#include "support/errors.hpp"
#include "support/gate.hpp"
#include "support/kernels.hpp"
#include "support/times.hpp"

namespace slip::test::plans {
namespace {

class Plans : public DeviceTest {};

TEST_P(Plans, Rule100_LaunchesOfOnePlanNeverOverlap) {
  const Device device = open();
  const Trail trail(device);
  const Stream a = device.stream(StreamFlags::kNonBlocking), b = device.stream(StreamFlags::kNonBlocking);
  a.begin_capture();
  trail.leave(a, 1);
  trail.leave(a, 2);
  Plan plan = a.end_capture();
  Gate gate(device);
  gate.hold(a);
  a.launch(plan);
  b.launch(plan);  // in another stream, but after the first launch
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(b.query());
  gate.open();
  EXPECT_TRUE(trail.is({1, 2, 1, 2}));
}

// A device that compiles plans compiles again for other bindings, and runs single ops while a recorder observes it.
TEST_P(Plans, Rule100_HoldsForLaunchesWithOtherBindingsAndForObservedOnes) {
  const Device device = open();
  const Trail trail(device);
  const Buffer planned = device.alloc(64), other = device.alloc(64);
  const Stream a = device.stream(StreamFlags::kNonBlocking), b = device.stream(StreamFlags::kNonBlocking);
  int calls = 0;
  a.begin_capture();
  trail.leave(a, 1);
  a.fill(planned, 1);
  a.host([&calls] { ++calls; });
  trail.leave(a, 2);
  Plan plan = a.end_capture();
  Gate gate(device);
  gate.hold(a);
  a.launch(plan);
  b.launch(plan, Bindings().buffer(planned, other));
  a.launch(plan);
  struct : Observer {
    void on(const Record&) override {}
  } observer;
  attach_observer(observer);
  b.launch(plan);
  detach_observer(observer);
  a.launch(plan, Bindings().buffer(planned, other));
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(b.query());
  gate.open();
  EXPECT_TRUE(trail.is({1, 2, 1, 2, 1, 2, 1, 2, 1, 2}));
  EXPECT_EQ(calls, 5);
}

TEST_P(Plans, Rule100_ALaunchIsOrderedLikeOneOpOfItsStream) {
  const Device device = open();
  const Trail trail(device);
  const Stream origin = device.stream(), forked = device.stream();
  origin.begin_capture();
  trail.leave(origin, 2);
  forked.wait(origin.record());
  trail.leave(forked, 3);
  origin.wait(forked.record());
  Plan plan = origin.end_capture();
  Gate gate(device);
  gate.hold(origin);
  trail.leave(origin, 1);
  origin.launch(plan);
  trail.leave(origin, 4);
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(origin.query());
  gate.open();
  EXPECT_TRUE(trail.is({1, 2, 3, 4}));
}

TEST_P(Plans, ForksOfAPlanMayOverlap) {
  if (simulated()) {
    const Device device = open_ideal();
    const Stream origin = device.stream(), forked = device.stream();
    origin.begin_capture();
    forked.wait(origin.record());
    busy(origin, 5, 0.5);
    busy(forked, 5, 0.5);
    origin.wait(forked.record());
    Plan plan = origin.end_capture();
    EXPECT_EQ(duration(device, [&] { origin.launch(plan); }), 5 * kMs);
    EXPECT_EQ(duration(device, [&] { origin.launch(plan), forked.launch(plan); }), 10 * kMs);
    return;
  }
  SLIP_NEEDS_CONCURRENCY();
  const Device device = open();
  const Stream origin = device.stream(), forked = device.stream();
  Meeting meeting(2);
  origin.begin_capture();
  forked.wait(origin.record());
  meeting.launch(origin);
  meeting.launch(forked);
  origin.wait(forked.record());
  Plan plan = origin.end_capture();
  origin.launch(plan);
  EXPECT_TRUE(finished(origin));
  EXPECT_TRUE(meeting.complete());
}

TEST_P(Plans, BindingsReplaceBuffersAndScalars) {
  const Device device = open();
  const Buffer planned = device.alloc(64, MemoryKind::kDevice, "planned"), other = device.alloc(64);
  const Buffer small = device.alloc(32, MemoryKind::kDevice, "small");
  const Stream stream = device.stream();
  stream.begin_capture();
  stream.fill(planned, 0);
  stream.launch(mix_kernel(), {.writes = {planned.slice(16, 32)}, .scalars = {5}, .name = "step"});
  Plan plan = stream.end_capture();
  stream.launch(plan);
  stream.launch(plan, Bindings().buffer(planned, other).scalar("step", 0, 6));
  EXPECT_TRUE(finished(stream));
  EXPECT_EQ(words_of(device, planned)[4], mixed(0, 5));
  EXPECT_EQ(words_of(device, other)[4], mixed(0, 6));
  EXPECT_EQ(words_of(device, other)[12], 0u);
  EXPECT_TRUE(
      fails([&] { stream.launch(plan, Bindings().buffer(planned, small)); }, ErrorCode::kInvalidValue, {"32", "64"}));
}

// A launch that is refused must issue nothing: half a plan would be worse than none.
TEST_P(Plans, ARefusedLaunchRunsNothing) {
  const Device device = open();
  const Trail trail(device);
  const Stream stream = device.stream();
  Buffer later = device.alloc(64, MemoryKind::kDevice, "later");
  stream.begin_capture();
  trail.leave(stream, 1);
  stream.fill(later, 1);
  Plan plan = stream.end_capture();
  { const Buffer gone = std::move(later); }
  EXPECT_TRUE(fails([&] { stream.launch(plan); }, ErrorCode::kInvalidHandle, {"freed"}));
  EXPECT_TRUE(finished(stream));
  EXPECT_TRUE(trail.is({}));
}

TEST_P(Plans, APlanSpansDevices) {
  SLIP_NEEDS_DEVICES(2);
  const std::vector<Device> devices = open_all(2);
  const Buffer from = devices[0].alloc(64), to = devices[1].alloc(64);
  const Stream here = devices[0].stream(), there = devices[1].stream();
  here.begin_capture();
  here.fill(from, 3);
  there.wait(here.record());
  there.copy(to, from);
  there.launch(add_kernel(), {.reads = {to}, .writes = {to}, .scalars = {1}});
  here.wait(there.record());
  here.fill(from, 4);
  Plan plan = here.end_capture();
  for (int i = 0; i < 3; ++i) here.launch(plan);
  EXPECT_TRUE(finished(here));
  EXPECT_EQ(words_of(devices[1], to)[0], 0x03030304u);
  EXPECT_EQ(words_of(devices[0], from)[0], 0x04040404u);
}

TEST_P(Plans, HostFunctionsOfAPlanRunAtEachLaunch) {
  const Device device = open();
  const Stream stream = device.stream();
  int calls = 0;
  stream.begin_capture();
  stream.host([&] { ++calls; });
  Plan plan = stream.end_capture();
  for (int i = 0; i < 3; ++i) stream.launch(plan);
  EXPECT_TRUE(finished(stream));
  EXPECT_EQ(calls, 3);
}

SLIP_OVER_DEVICES(Plans);

}  // namespace
}  // namespace slip::test::plans
