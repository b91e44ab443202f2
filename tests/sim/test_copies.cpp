// Copy engines and the ways of bytes: rules 46-50 and 75, exact.
#include "sim/support.hpp"

namespace slip::test::test_copies {
namespace {

struct Copies {
  explicit Copies(const Exact& changes = {}) : device(open_exact(changes)) {}
  Device device;
  Buffer on_device = device.alloc(10'000), on_host = device.alloc(10'000, MemoryKind::kPinned);
  Buffer other_device = device.alloc(10'000), other_host = device.alloc(10'000, MemoryKind::kPinned);
  Stream a = device.stream(StreamFlags::kNonBlocking), b = device.stream(StreamFlags::kNonBlocking);

  void in(StreamRef stream, Name name, std::size_t bytes) {
    stream.copy(on_device.slice(0, bytes), on_host.slice(0, bytes), name);
  }
  void out(StreamRef stream, Name name, std::size_t bytes) {
    stream.copy(other_host.slice(0, bytes), other_device.slice(0, bytes), name);
  }
};

TEST(SimCopies, Rule46OneCopyPerDirectionAtATime) {
  Copies copies;
  Recorder recorder;
  copies.in(copies.a, "first", 5000);
  copies.in(copies.b, "second", 100);
  copies.device.sync();
  EXPECT_EQ(span(recorder.run("first")), "[0, 5000]");
  EXPECT_EQ(span(recorder.run("second")), "[5000, 5100]");
  EXPECT_EQ(recorder.run("second").engine, Engine::kCopyIn);
}

TEST(SimCopies, Rule47TwoEnginesOverlapDirectionsAndKernels) {
  Copies copies;
  Recorder recorder;
  copies.in(copies.a, "in", 1000);
  copies.out(copies.b, "out", 1000);
  Stream c = copies.device.stream(StreamFlags::kNonBlocking);
  run_for(c, "kernel", 1000);
  copies.device.sync();
  EXPECT_EQ(span(recorder.run("in")), "[0, 1000]");
  EXPECT_EQ(span(recorder.run("out")), "[0, 1000]");
  EXPECT_EQ(span(recorder.run("kernel")), "[0, 1000]");
}

TEST(SimCopies, Rule47OneEngineServesBothDirections) {
  Copies copies({.copies = R"(, "engines": 1)"});
  Recorder recorder;
  copies.in(copies.a, "in", 1000);
  copies.out(copies.b, "out", 1000);
  Stream c = copies.device.stream(StreamFlags::kNonBlocking);
  run_for(c, "kernel", 1500);
  copies.device.sync();
  EXPECT_EQ(copies.device.info().copy_engines, 1);
  EXPECT_EQ(span(recorder.run("in")), "[0, 1000]");
  EXPECT_EQ(span(recorder.run("out")), "[1000, 2000]");
  EXPECT_EQ(span(recorder.run("kernel")), "[0, 1500]");
}

TEST(SimCopies, Rule47WithoutEnginesNothingOverlaps) {
  Copies copies({.copies = R"(, "engines": 0)"});
  Recorder recorder;
  copies.in(copies.a, "in", 1000);
  Stream c = copies.device.stream(StreamFlags::kNonBlocking);
  run_for(c, "kernel", 1000, 0.1);
  copies.out(copies.b, "out", 1000);
  copies.device.sync();
  EXPECT_EQ(span(recorder.run("in")), "[0, 1000]");
  EXPECT_EQ(span(recorder.run("kernel")), "[1000, 2000]");
  EXPECT_EQ(span(recorder.run("out")), "[2000, 3000]");
}

TEST(SimCopies, Rule48CopyEngineIsBlindToPriority) {
  Copies copies;
  Recorder recorder;
  Stream high = copies.device.stream(StreamFlags::kNonBlocking, -5);
  copies.in(copies.a, "1", 1000);
  copies.in(copies.b, "2", 1000);
  copies.in(high, "urgent", 10);
  copies.device.sync();
  EXPECT_EQ(span(recorder.run("urgent")), "[2000, 2010]");
}

TEST(SimCopies, Rule49TheCopyThatIsReadyGoesFirst) {
  Copies copies;
  Recorder recorder;
  Stream c = copies.device.stream(StreamFlags::kNonBlocking);
  run_for(c, "kernel", 500);
  copies.a.wait(c.record());
  copies.in(copies.a, "issued first", 100);
  copies.in(copies.b, "ready first", 100);
  copies.device.sync();
  EXPECT_EQ(span(recorder.run("ready first")), "[0, 100]");
  EXPECT_EQ(span(recorder.run("issued first")), "[500, 600]");
}

TEST(SimCopies, Rule50CopiesBackToBackKeepTheEngine) {
  Copies copies;
  Recorder recorder;
  copies.in(copies.a, "chunk 1", 1000);
  copies.in(copies.a, "chunk 2", 1000);
  copies.in(copies.b, "small", 10);
  copies.device.sync();
  EXPECT_EQ(span(recorder.run("chunk 2")), "[1000, 2000]");
  EXPECT_EQ(span(recorder.run("small")), "[2000, 2010]");
}

TEST(SimCopies, Rule50AKernelBetweenChunksLetsSmallCopiesIn) {
  Copies copies;
  Recorder recorder;
  copies.in(copies.a, "chunk 1", 1000);
  run_for(copies.a, "kernel", 100);
  copies.in(copies.a, "chunk 2", 1000);
  copies.in(copies.b, "small", 10);
  copies.device.sync();
  EXPECT_EQ(span(recorder.run("small")), "[1000, 1010]");
  EXPECT_EQ(span(recorder.run("chunk 2")), "[1100, 2100]");
}

// The engine continues with its hardware queue, not only with the stream: measured on an H200 with streams that share
// one.
TEST(SimCopies, Rule50StreamsOfOneQueueFollowEachOther) {
  Copies copies({.queues = 3});  // of the legacy stream, a and b; the next two streams share them
  Recorder recorder;
  const Stream with_legacy = copies.device.stream(StreamFlags::kNonBlocking);
  const Stream with_a = copies.device.stream(StreamFlags::kNonBlocking);
  copies.in(copies.a, "a", 1000);
  copies.in(copies.b, "b", 1000);
  copies.in(with_a, "behind a", 10);
  copies.device.sync();
  EXPECT_EQ(span(recorder.run("behind a")), "[1000, 1010]");
  EXPECT_EQ(span(recorder.run("b")), "[1010, 2010]");
}

TEST(SimCopies, BothDirectionsShareTheirCommonLink) {
  Copies copies({.copies = R"(, "both": "1500 MB/s")"});
  Recorder recorder;
  copies.in(copies.a, "in", 3000);
  copies.out(copies.b, "out", 1500);
  copies.device.sync();
  EXPECT_EQ(span(recorder.run("out")), "[0, 2000]");  // 750 MB/s each
  EXPECT_EQ(span(recorder.run("in")), "[0, 3500]");   // 1500 bytes in 2000 ns, the rest at 1 GB/s
}

TEST(SimCopies, LatencyHoldsTheEngine) {
  Copies copies({.copies = R"(, "latency": "30 ns")"});
  Recorder recorder;
  copies.in(copies.a, "1", 100);
  copies.in(copies.b, "2", 100);
  copies.device.sync();
  EXPECT_EQ(span(recorder.run("1")), "[0, 130]");
  EXPECT_EQ(span(recorder.run("2")), "[130, 260]");
}

TEST(SimCopies, PageableMemoryIsSlower) {
  DeviceOptions options;
  options.pageable = PageableCopy::kBlock;
  Device device = open_exact({.copies = R"(, "pageable": "250 MB/s")"}, options);
  Buffer buffer = device.alloc(100), pageable = device.alloc(100, MemoryKind::kPageable);
  Recorder recorder;
  Stream stream = device.stream();
  stream.copy(buffer, pageable, "copy");
  EXPECT_EQ(span(recorder.run("copy")), "[0, 400]");
  EXPECT_EQ(device.now(), 400 * kNano);  // rule 38: the host was held
}

TEST(SimCopies, Rule75WithoutPeerLinksACopyGoesThroughTheHost) {
  std::vector<Device> devices = open_exact_all(2);
  Buffer from = devices[0].alloc(1000), to = devices[1].alloc(1000);
  Buffer small = devices[1].alloc(100), host = devices[1].alloc(100, MemoryKind::kPinned);
  Recorder recorder;
  Stream stream = devices[0].stream(StreamFlags::kNonBlocking), other = devices[1].stream(StreamFlags::kNonBlocking);
  run_for(other, "delay", 950);
  other.copy(small, host, "in the way");
  stream.copy(to, from, "peer");
  devices[0].sync();
  std::vector<OpRun> hops;
  for (const OpRun& run : recorder.runs()) {
    if (run.name == "peer") hops.push_back(run);
  }
  ASSERT_EQ(hops.size(), 2u);
  EXPECT_EQ(span(hops[0]), "[0, 1000]");
  EXPECT_EQ(hops[0].engine, Engine::kCopyOut);
  EXPECT_EQ(hops[0].device, devices[0].id());
  EXPECT_EQ(span(hops[1]), "[1050, 2050]");  // the other device's engine was busy until 1050
  EXPECT_EQ(hops[1].engine, Engine::kCopyIn);
  EXPECT_EQ(hops[1].device, devices[1].id());
}

TEST(SimCopies, BytesReallyMove) {
  std::vector<Device> devices = open_exact_all(2);
  Buffer in = devices[0].alloc(16, MemoryKind::kPinned), out = devices[0].alloc(16, MemoryKind::kPinned);
  Buffer a = devices[0].alloc(16), b = devices[0].alloc(16), c = devices[1].alloc(16);
  for (std::size_t i = 0; i < 16; ++i) in.host_write<unsigned char>()[i] = static_cast<unsigned char>(i);
  Stream stream = devices[0].stream();
  stream.copy(a, in);
  stream.copy(b, a);
  stream.fill(b.slice(4, 2), 99);
  stream.copy(c, b);
  stream.copy(out, c);
  stream.sync();
  const auto view = out.host_read<unsigned char>();
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(view[i], i == 4 || i == 5 ? 99 : i);
}

}  // namespace
}  // namespace slip::test::test_copies
