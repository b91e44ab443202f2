// Hardware queues: rules 92-95, as an H200 with CUDA_DEVICE_MAX_CONNECTIONS=1 was seen to behave.
#include <fmt/format.h>

#include "sim/support.hpp"

namespace slip::test::test_queues {
namespace {

struct OneQueue {
  explicit OneQueue(int connections = 1, const Exact& changes = {})
      : device(open_exact(changes, with_connections(connections))) {}
  Device device;
  Stream a = device.stream(StreamFlags::kNonBlocking), b = device.stream(StreamFlags::kNonBlocking);
  Stream c = device.stream(StreamFlags::kNonBlocking);
  Buffer memory = device.alloc(4096), more = device.alloc(4096);
  Buffer host = device.alloc(4096, MemoryKind::kPinned), word = device.alloc(4, MemoryKind::kPinned);

  void in(StreamRef stream, Name name, std::size_t bytes = 100) {
    stream.copy(memory.slice(0, bytes), host.slice(0, bytes), name);
  }
  void out(StreamRef stream, Name name) { stream.copy(host.slice(2048, 100), more.slice(0, 100), name); }
};

TEST(SimQueues, Rule92NumberComesFromTheDescriptionOrTheOption) {
  EXPECT_EQ(open_exact({.queues = 3}).info().queues, 3);
  EXPECT_EQ(open_exact({.queues = 3}, with_connections(5)).info().queues, 5);
  EXPECT_EQ(open_exact().info().queues, 8);
}

TEST(SimQueues, StreamsTakeQueuesInTurn) {
  Device device = open_exact({.queues = 2});
  Recorder recorder;
  std::vector<Stream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(device.stream());
  for (int i = 0; i < 4; ++i) run_for(streams[static_cast<std::size_t>(i)], fmt::format("{}", i), 1);
  device.sync();
  EXPECT_NE(recorder.run("0").queue, recorder.run("1").queue);
  EXPECT_EQ(recorder.run("0").queue, recorder.run("2").queue);
  EXPECT_EQ(recorder.run("1").queue, recorder.run("3").queue);
}

TEST(SimQueues, Rule93UnresolvedHeadHoldsBackIndependentStreams) {
  for (const int connections : {1, 32}) {
    Device device = open_exact({}, with_connections(connections));
    Recorder recorder;
    std::vector<Stream> streams;
    for (int i = 0; i < 30; ++i) streams.push_back(device.stream(StreamFlags::kNonBlocking));
    run_for(streams[0], "v0", 1000, 0.01);
    streams[1].wait(streams[0].record());
    run_for(streams[1], "v1", 10, 0.01);
    for (std::size_t i = 2; i < streams.size(); ++i) run_for(streams[i], fmt::format("free {}", i), 10, 0.01);
    device.sync();
    EXPECT_EQ(recorder.run("v1").start, 1000);
    for (std::size_t i = 2; i < streams.size(); ++i)
      EXPECT_EQ(recorder.run(fmt::format("free {}", i)).start, connections == 1 ? 1000 : 0) << i;
  }
}

TEST(SimQueues, Rule93AlsoBehindASecondKernelOfTheSameStream) {
  OneQueue one;
  Recorder recorder;
  run_for(one.a, "a1", 1000, 0.1);
  run_for(one.a, "a2", 1000, 0.1);
  run_for(one.b, "b", 10, 0.1);
  one.device.sync();
  EXPECT_EQ(span(recorder.run("b")), "[1000, 1010]");
}

TEST(SimQueues, Rule94ReadyKernelsOverlapEvenWithOneQueue) {
  OneQueue one;
  Recorder recorder;
  run_for(one.a, "a", 1000, 0.5);
  run_for(one.b, "b", 1000, 0.5);
  one.device.sync();
  EXPECT_EQ(span(recorder.run("a")), "[0, 1000]");
  EXPECT_EQ(span(recorder.run("b")), "[0, 1000]");
}

TEST(SimQueues, Rule95SecondKernelOfAStreamWithEnoughQueues) {
  OneQueue many(8);
  Recorder recorder;
  run_for(many.a, "k1", 1000, 0.1);
  run_for(many.a, "k2", 1000, 0.1);
  run_for(many.b, "k3", 10, 0.1);
  many.device.sync();
  EXPECT_EQ(span(recorder.run("k3")), "[0, 10]");
}

TEST(SimQueues, WaitAloneHoldsNothingButTheCommandBehindItDoes) {
  OneQueue one;
  Recorder recorder;
  run_for(one.c, "long", 1000, 0.1);
  one.a.wait(one.c.record());
  run_for(one.b, "free", 10, 0.1);
  one.in(one.a, "held copy");
  run_for(one.b, "still free", 10, 0.1);
  one.in(one.b, "held back");
  one.device.sync();
  EXPECT_EQ(span(recorder.run("free")), "[0, 10]");
  EXPECT_EQ(span(recorder.run("still free")), "[10, 20]");  // compute and copies do not hold each other
  EXPECT_EQ(recorder.run("held copy").start, 1000);
  EXPECT_EQ(recorder.run("held back").start, 1100);
}

TEST(SimQueues, DirectionsHaveLanesOfTheirOwn) {
  OneQueue one;
  Recorder recorder;
  run_for(one.a, "kernel", 1000);
  one.in(one.a, "in");
  one.out(one.b, "out");
  one.in(one.c, "in behind");
  one.device.sync();
  EXPECT_EQ(recorder.run("out").start, 0);
  EXPECT_EQ(recorder.run("in").start, 1000);
  EXPECT_EQ(recorder.run("in behind").start, 1100);
}

TEST(SimQueues, PlainRecordHoldsNothingTimedRecordDoes) {
  for (const bool timed : {false, true}) {
    OneQueue one;
    Recorder recorder;
    run_for(one.a, "a", 1000, 0.1);
    if (timed) one.a.record_timed();
    else one.a.record();
    run_for(one.b, "b", 10, 0.1);
    one.device.sync();
    EXPECT_EQ(recorder.run("b").start, timed ? 1000 : 0);
  }
}

TEST(SimQueues, HostFunctionsAndWordsStandWhereTheirStreamWasLast) {
  OneQueue one;
  Recorder recorder;
  one.in(one.a, "copy", 1000);
  one.a.host([] {});
  run_for(one.b, "free", 10, 0.1);  // the function stands in the copies' lane
  run_for(one.c, "kernel", 500, 0.1);
  one.c.write_value(one.word, 1);
  run_for(one.b, "held", 10, 0.1);  // the write stands in the kernels' lane
  one.device.sync();
  EXPECT_EQ(span(recorder.run("free")), "[0, 10]");
  EXPECT_EQ(recorder.run("held").start, 500);
}

}  // namespace
}  // namespace slip::test::test_queues
