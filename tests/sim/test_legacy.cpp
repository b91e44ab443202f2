// The legacy stream: rules 3-11 and 24, exact, and the edges that are reported to observers.
#include <algorithm>

#include "sim/support.hpp"

namespace slip::test::test_legacy {
namespace {

struct Legacy {
  Device device = open_exact();
  Stream a = device.stream(), b = device.stream();
  Stream free = device.stream(StreamFlags::kNonBlocking);
  StreamRef legacy = device.legacy_stream();
};

TEST(SimLegacy, Rule3And4WorkBeforeAndAfterIsOrdered) {
  Legacy world;
  Recorder recorder;
  run_for(world.a, "a", 20, 0.1);
  run_for(world.legacy, "legacy", 20, 0.1);
  run_for(world.b, "b", 20, 0.1);
  world.device.sync();
  EXPECT_EQ(span(recorder.run("a")), "[0, 20]");
  EXPECT_EQ(span(recorder.run("legacy")), "[20, 40]");
  EXPECT_EQ(span(recorder.run("b")), "[40, 60]");
}

TEST(SimLegacy, Rule5SidesOverlapEachOther) {
  Legacy world;
  Recorder recorder;
  run_for(world.a, "a", 20, 0.1);
  run_for(world.b, "b", 30, 0.1);
  run_for(world.legacy, "legacy", 1, 0.1);
  run_for(world.a, "a2", 20, 0.1);
  run_for(world.b, "b2", 20, 0.1);
  world.device.sync();
  EXPECT_EQ(span(recorder.run("b")), "[0, 30]");
  EXPECT_EQ(span(recorder.run("legacy")), "[30, 31]");
  EXPECT_EQ(span(recorder.run("a2")), "[31, 51]");
  EXPECT_EQ(span(recorder.run("b2")), "[31, 51]");
}

TEST(SimLegacy, Rule6And7NonBlockingStreamsAreNotOrdered) {
  Legacy world;
  Recorder recorder;
  Stream other = world.device.stream(StreamFlags::kNonBlocking);
  run_for(world.free, "free", 20, 0.1);
  run_for(world.legacy, "legacy", 20, 0.1);
  run_for(other, "free too", 20, 0.1);
  world.device.sync();
  EXPECT_EQ(span(recorder.run("free")), "[0, 20]");
  EXPECT_EQ(span(recorder.run("legacy")), "[0, 20]");
  EXPECT_EQ(span(recorder.run("free too")), "[0, 20]");
}

TEST(SimLegacy, Rule9RecordsAndWaitsAreBarriers) {
  for (const bool record : {true, false}) {
    Legacy world;
    Recorder recorder;
    const Event done = world.free.record();
    run_for(world.a, "a", 20, 0.1);
    if (record) world.legacy.record();
    else world.legacy.wait(done);
    run_for(world.b, "b", 20, 0.1);
    world.device.sync();
    EXPECT_EQ(span(recorder.run("b")), "[20, 40]");
  }
}

TEST(SimLegacy, Rule10RecordCoversBlockingStreams) {
  Legacy world;
  run_for(world.a, "a", 20, 0.1);
  run_for(world.free, "free", 500, 0.1);
  const Event event = world.legacy.record();
  event.sync();
  EXPECT_EQ(world.device.now(), 20 * kNano);
}

TEST(SimLegacy, Rule11BarrierIsPerDevice) {
  std::vector<Device> devices = open_exact_all(2);
  Recorder recorder;
  Stream other = devices[1].stream();
  run_for(other, "1", 20, 0.1);
  run_for(devices[0].legacy_stream(), "legacy", 20, 0.1);
  run_for(other, "2", 20, 0.1);
  devices[0].sync();
  devices[1].sync();
  EXPECT_EQ(span(recorder.run("legacy")), "[0, 20]");
  EXPECT_EQ(span(recorder.run("2")), "[20, 40]");
}

TEST(SimLegacy, Rule24SyncOfLegacyWaitsForBlockingStreams) {
  Legacy world;
  run_for(world.a, "a", 20, 0.1);
  run_for(world.free, "free", 500, 0.1);
  EXPECT_FALSE(world.legacy.query());
  world.legacy.sync();
  EXPECT_EQ(world.device.now(), 20 * kNano);
  EXPECT_FALSE(world.free.query());
}

TEST(SimLegacy, ChainOfLegacyOpsBetweenManyStreams) {
  Legacy world;
  Recorder recorder;
  for (int i = 0; i < 50; ++i) {
    run_for(world.a, "a", 2, 0.1);
    run_for(world.b, "b", 3, 0.1);
    run_for(world.legacy, "legacy", 1, 0.1);
  }
  world.device.sync();
  EXPECT_EQ(world.device.now(), 50 * 4 * kNano);
}

TEST(SimLegacy, AskingIsNoBarrierAlsoWhenObserved) {
  for (const bool watched : {false, true}) {
    Legacy world;
    const std::unique_ptr<Recorder> recorder = watched ? std::make_unique<Recorder>() : nullptr;
    run_for(world.a, "a", 1000, 0.1);
    EXPECT_FALSE(world.legacy.query());
    run_for(world.b, "b", 10, 0.1);
    world.b.sync();
    EXPECT_EQ(world.device.now() / kNano, 10) << watched;
    world.legacy.sync();
    EXPECT_EQ(world.device.now() / kNano, 1000) << watched;
  }
}

TEST(SimLegacy, ObserversAreNotifiedOfTheEdges) {
  Legacy world;
  Recorder recorder;
  run_for(world.a, "a", 1);
  run_for(world.free, "free", 1);
  run_for(world.legacy, "l1", 1);
  run_for(world.legacy, "l2", 1);
  run_for(world.b, "b1", 1);
  run_for(world.b, "b2", 1);
  world.a.sync();
  world.device.sync();
  const std::vector<Edge> edges = recorder.barriers();
  ASSERT_EQ(edges.size(), 2u);
  EXPECT_EQ(edges[0].stream, world.legacy.id());
  EXPECT_EQ(edges[0].position, recorder.run("l1").position);
  EXPECT_EQ(edges[0].other_stream, world.a.id());
  EXPECT_EQ(edges[0].other_position, recorder.run("a").position);
  EXPECT_EQ(edges[1].stream, world.b.id());
  EXPECT_EQ(edges[1].position, recorder.run("b1").position);
  EXPECT_EQ(edges[1].other_stream, world.legacy.id());
  EXPECT_EQ(edges[1].other_position, recorder.run("l2").position);
}

}  // namespace
}  // namespace slip::test::test_legacy
