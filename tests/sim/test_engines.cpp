// Compute with its width, priorities and interference, and the callback engine: exact times.
#include "sim/support.hpp"

namespace slip::test::test_engines {
namespace {

TEST(SimCompute, DurationIsTheLongerOfFlopsAndBytesOnItsWidth) {
  Device device = open_exact({.compute = R"(, "launch": "50 ns")"});
  Recorder recorder;
  Stream stream = device.stream();
  stream.launch(idle_kernel(), {.name = "flops"}, {.bytes = 10, .flops = 100});
  stream.launch(idle_kernel(), {.name = "bytes"}, {.bytes = 100, .flops = 10});
  stream.launch(idle_kernel(), {.name = "half"}, {.flops = 100, .width = 0.5});
  stream.launch(idle_kernel(), {.name = "third"}, {.flops = 1, .width = 0.3});
  stream.launch(idle_kernel(), {.name = "given"}, {.flops = 1'000'000, .time = 7 * kNano});
  stream.launch(idle_kernel(), {.name = "nothing"});
  stream.sync();
  EXPECT_EQ(span(recorder.run("flops")), "[0, 150]");
  EXPECT_EQ(span(recorder.run("bytes")), "[150, 300]");
  EXPECT_EQ(span(recorder.run("half")), "[300, 550]");
  const OpRun third = recorder.run("third");
  EXPECT_EQ(third.end_ps - third.start_ps, 50'000 + 3334);  // 1 / 0.3 ns, rounded up to the picosecond
  const OpRun given = recorder.run("given");
  EXPECT_EQ(given.end_ps - given.start_ps, 7000);
  const OpRun nothing = recorder.run("nothing");
  EXPECT_EQ(nothing.end_ps - nothing.start_ps, 50'000);
}

TEST(SimCompute, KernelsOverlapWhileTheirWidthsFit) {
  Device device = open_exact();
  Recorder recorder;
  Stream a = device.stream(), b = device.stream(), c = device.stream();
  run_for(a, "a", 100, 0.5);
  run_for(b, "b", 60, 0.5);
  run_for(c, "c", 100, 0.5);
  device.sync();
  EXPECT_EQ(span(recorder.run("a")), "[0, 100]");
  EXPECT_EQ(span(recorder.run("b")), "[0, 60]");
  EXPECT_EQ(span(recorder.run("c")), "[60, 160]");
}

TEST(SimCompute, WideKernelIsNotStarvedByNarrowOnesBehindIt) {
  Device device = open_exact();
  Recorder recorder;
  Stream a = device.stream(), b = device.stream(), c = device.stream();
  run_for(a, "a", 100, 0.5);
  run_for(b, "wide", 100, 1.0);
  run_for(c, "narrow", 100, 0.5);
  device.sync();
  EXPECT_EQ(span(recorder.run("wide")), "[100, 200]");
  EXPECT_EQ(span(recorder.run("narrow")), "[200, 300]");
}

TEST(SimCompute, Rule83PriorityDecidesAmongWaitingKernelsAndNeverPreempts) {
  Device device = open_exact();
  Recorder recorder;
  Stream low = device.stream(StreamFlags::kNonBlocking, 0), low2 = device.stream(StreamFlags::kNonBlocking, 0);
  Stream high = device.stream(StreamFlags::kNonBlocking, -5);
  run_for(low, "running", 100);
  run_for(low2, "low", 100);
  run_for(high, "high", 100);
  device.sync();
  EXPECT_EQ(span(recorder.run("high")), "[0, 100]");  // all three are ready at 0: the engine looks at all of them
  EXPECT_EQ(span(recorder.run("running")), "[100, 200]");
  EXPECT_EQ(span(recorder.run("low")), "[200, 300]");
}

TEST(SimCompute, Rule83RunningKernelIsNotInterrupted) {
  Device device = open_exact({.host = R"("launch": "10 ns")"});
  Recorder recorder;
  Stream low = device.stream(StreamFlags::kNonBlocking, 0), high = device.stream(StreamFlags::kNonBlocking, -5);
  run_for(low, "running", 100);
  run_for(low, "next", 100);
  run_for(high, "high", 100);
  device.sync();
  EXPECT_EQ(span(recorder.run("running")), "[10, 110]");
  EXPECT_EQ(span(recorder.run("high")), "[110, 210]");
  EXPECT_EQ(span(recorder.run("next")), "[210, 310]");
}

TEST(SimCompute, Rule82PriorityIsClampedToTheDescribedRange) {
  Device device = open_exact();
  EXPECT_EQ(device.info().min_priority, 0);
  EXPECT_EQ(device.info().max_priority, -5);
  EXPECT_EQ(device.stream(StreamFlags::kNonBlocking, -99).priority(), -5);
  EXPECT_EQ(device.stream(StreamFlags::kNonBlocking, 99).priority(), 0);
}

TEST(SimCompute, FillsAndCopiesWithinTheDeviceTakeItsBandwidth) {
  Device device = open_exact();
  Buffer a = device.alloc(1000), b = device.alloc(1000);
  Recorder recorder;
  Stream stream = device.stream();
  stream.fill(a, 7, "fill");
  stream.copy(b, a, "copy");
  stream.sync();
  EXPECT_EQ(span(recorder.run("fill")), "[0, 1000]");
  EXPECT_EQ(span(recorder.run("copy")), "[1000, 3000]");  // reads and writes
  EXPECT_EQ(recorder.run("copy").engine, Engine::kCompute);
}

TEST(SimCompute, CopyBesideLengthensKernels) {
  Device device = open_exact({.compute = R"(, "copy_slowdown_ppm": 250000)"});
  Buffer buffer = device.alloc(500), host = device.alloc(500, MemoryKind::kPinned);
  Recorder recorder;
  Stream a = device.stream(), b = device.stream();
  run_for(a, "before", 1000);
  run_for(b, "first", 200, 0.1);
  b.copy(buffer, host, "copy");
  device.sync();
  // Neither fits while "before" runs; then "first" runs 200 alone, and 500 concurrently with the copy.
  EXPECT_EQ(span(recorder.run("before")), "[0, 1000]");
  EXPECT_EQ(span(recorder.run("first")), "[1000, 1200]");
  EXPECT_EQ(span(recorder.run("copy")), "[1200, 1700]");
  run_for(a, "kernel", 1000, 0.5);
  b.copy(buffer, host, "beside");
  device.sync();
  const OpRun kernel = recorder.run("kernel"), beside = recorder.run("beside");
  EXPECT_EQ(beside.end_ps - beside.start_ps, 500 * kNano);
  EXPECT_EQ(kernel.start_ps, beside.start_ps);
  EXPECT_EQ(kernel.end_ps - kernel.start_ps,
            1100 * kNano);  // in 500 with the copy it does the work of 400, then 600 alone
}

TEST(SimCompute, InterferenceCountsOnlyTheTimeOfOverlap) {
  Device device = open_exact({.compute = R"(, "copy_slowdown_ppm": 70000)", .host = R"("copy": "300 ns")"});
  Buffer buffer = device.alloc(107), host = device.alloc(107, MemoryKind::kPinned);
  Recorder recorder;
  Stream a = device.stream(), b = device.stream();
  run_for(a, "kernel", 1000, 0.5);
  b.copy(buffer, host, "copy 1");
  b.copy(buffer, host, "copy 2");
  device.sync();
  EXPECT_EQ(span(recorder.run("copy 1")), "[300, 407]");
  EXPECT_EQ(span(recorder.run("copy 2")), "[600, 707]");
  EXPECT_EQ(recorder.run("kernel").end_ps, 1014 * kNano);  // twice 107 ns for 100 ns of work
}

TEST(SimCopies, KernelBesideLengthensThem) {
  Device device = open_exact({.copies = R"(, "latency": "50 ns", "kernel_slowdown_ppm": 250000)"});
  Buffer buffer = device.alloc(1000), host = device.alloc(1000, MemoryKind::kPinned);
  Recorder recorder;
  Stream a = device.stream(), b = device.stream();
  run_for(a, "kernel 1", 300);
  run_for(a, "kernel 2", 250);  // follows at once: the copy must not be any faster in between
  b.copy(buffer, host, "copy");
  device.sync();
  // The latency is unchanged; then 500 with concurrent kernels move 400 bytes, and 600 bytes are left.
  EXPECT_EQ(recorder.run("copy").end_ps, (50 + 500 + 600) * kNano);
  EXPECT_EQ(recorder.run("kernel 2").end_ps, 550 * kNano);  // and the copy does not slow them here
}

TEST(SimCopies, SlowedOnlyWhileKernelsRunAndToThePicosecond) {
  Device device = open_exact({.copies = R"(, "kernel_slowdown_ppm": 70001)", .host = R"("launch": "300 ns")"});
  Buffer buffer = device.alloc(10'000), host = device.alloc(10'000, MemoryKind::kPinned);
  Recorder recorder;
  Stream a = device.stream(), b = device.stream();
  b.copy(buffer, host, "in");
  b.copy(host, buffer, "out");
  for (int i = 0; i < 3; ++i) run_for(a, "kernel", 100);  // at 300, 600 and 900
  device.sync();
  // 300 ns at 1/1.070001 of the rate: 300 x 0.070001 / 1.070001 bytes are left over, 19.6265 ns of them
  EXPECT_EQ(recorder.run("in").end_ps, 10'000'000 + 19'627);
  EXPECT_EQ(recorder.run("out").end_ps - recorder.run("out").start_ps, 10'000'000);
}

TEST(SimCopies, BothSlowEachOther) {
  Device device =
      open_exact({.compute = R"(, "copy_slowdown_ppm": 1000000)", .copies = R"(, "kernel_slowdown_ppm": 1000000)"});
  Buffer buffer = device.alloc(1000), host = device.alloc(1000, MemoryKind::kPinned);
  Recorder recorder;
  Stream a = device.stream(), b = device.stream();
  run_for(a, "kernel", 300);
  b.copy(buffer, host, "copy");
  device.sync();
  EXPECT_EQ(span(recorder.run("kernel")), "[0, 600]");
  EXPECT_EQ(span(recorder.run("copy")), "[0, 1300]");  // 300 bytes in 600 ns, then 700
}

TEST(SimCopies, APeerCopyIsSlowedByKernelsAtEitherEnd) {
  for (const std::size_t busy : {0, 1, 2}) {
    SCOPED_TRACE(busy);
    std::vector<Device> devices = open_exact_all(
        3, {.copies = R"(, "kernel_slowdown_ppm": 1000000)", .peers = R"({"form": "switch", "bandwidth": "1 GB/s"})"});
    Buffer from = devices[0].alloc(1000), to = devices[1].alloc(1000);
    Recorder recorder;
    Stream copies = devices[0].stream(), kernels = devices[busy].stream();
    run_for(kernels, "kernel", 400);
    copies.copy(to, from, "copy");
    for (const Device& device : devices) device.sync();
    EXPECT_EQ(span(recorder.run("copy")), busy == 2 ? "[0, 1000]" : "[0, 1200]");
  }
}

TEST(SimCallback, TakesTheTimeThatItsCostSays) {
  Device device = open_exact({.host = R"("callback": "40 ns")"});
  Recorder recorder;
  Stream stream = device.stream();
  stream.host([] {}, {.name = "short"}, {.time = 7 * kNano});
  stream.host([] {}, {.name = "long"}, {.time = 1000 * kNano});
  stream.host([] {}, {.name = "unknown"}, {.bytes = 5});
  EXPECT_THROW(stream.host([] {}, {.name = "before its start"}, {.time = -1}), Error);
  stream.sync();
  EXPECT_EQ(span(recorder.run("short")), "[0, 7]");
  EXPECT_EQ(span(recorder.run("long")), "[7, 1007]");
  EXPECT_EQ(span(recorder.run("unknown")), "[1007, 1047]");
}

TEST(SimCallback, Rule79HostFunctionsRunOneAtATime) {
  Device device = open_exact({.host = R"("callback": "40 ns")"});
  Recorder recorder;
  Stream a = device.stream(), b = device.stream();
  std::string order;
  a.host([&] { order += 'a'; }, "a");
  b.host([&] { order += 'b'; }, "b");
  device.sync();
  EXPECT_EQ(order, "ab");
  EXPECT_EQ(span(recorder.run("a")), "[0, 40]");
  EXPECT_EQ(span(recorder.run("b")), "[40, 80]");
}

}  // namespace
}  // namespace slip::test::test_engines
