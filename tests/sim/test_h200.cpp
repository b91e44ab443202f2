// The h200 description against what was measured on one.
#include "sim/support.hpp"

namespace slip::test::test_h200 {
namespace {

struct H200 {
  Device device = Device::open("sim:h200", without_functions());
  Buffer memory = device.alloc(std::size_t{1} << 30), more = device.alloc(std::size_t{1} << 30);
  Buffer host = device.alloc(std::size_t{1} << 30, MemoryKind::kPinned);
  Buffer sink = device.alloc(std::size_t{1} << 30, MemoryKind::kPinned);
  Stream a = device.stream(StreamFlags::kNonBlocking), b = device.stream(StreamFlags::kNonBlocking);

  static DeviceOptions without_functions() {
    DeviceOptions options;
    options.run_functions = false;
    return options;
  }
  // Rate of copies into the device, back to back, in GB/s.
  double rate(std::size_t bytes) {
    a.sync();
    const Picos start = device.now();
    for (int i = 0; i < 100; ++i) a.copy(memory.slice(0, bytes), host.slice(0, bytes));
    a.sync();
    return static_cast<double>(bytes) * 100 / (static_cast<double>(device.now() - start) * 1e-12) * 1e-9;
  }
};

TEST(SimH200, CopyRatesBySize) {
  H200 gpu;
  EXPECT_NEAR(gpu.rate(64 << 10), 16.8, 0.5);
  EXPECT_NEAR(gpu.rate(1 << 20), 48, 1);
  EXPECT_NEAR(gpu.rate(4 << 20), 53.5, 0.6);
  EXPECT_NEAR(gpu.rate(std::size_t{1} << 28), 55.4, 0.1);
}

TEST(SimH200, BothDirectionsAtOnce) {
  H200 gpu;
  Recorder recorder;
  gpu.a.copy(gpu.memory, gpu.host, "in");
  gpu.b.copy(gpu.sink, gpu.more, "out");
  gpu.device.sync();
  const OpRun in = recorder.run("in");
  EXPECT_NEAR(static_cast<double>(1 << 30) / static_cast<double>(in.end - in.start), 49.8, 0.1);
}

TEST(SimH200, LaunchAndSynchronise) {
  H200 gpu;
  gpu.a.sync();
  const Picos start = gpu.device.now();
  gpu.a.launch(idle_kernel());
  gpu.a.sync();
  EXPECT_EQ(gpu.device.now() - start, 8'600 * kNano);
}

TEST(SimH200, ProductAndTheCopyBesideIt) {
  H200 gpu;
  Recorder recorder;
  const std::uint64_t flops = 2ull * 8192 * 8192 * 8192;
  gpu.a.launch(idle_kernel(), {.name = "alone"}, {.flops = flops});
  gpu.a.sync();
  gpu.b.copy(gpu.memory, gpu.host, "copy");
  gpu.a.launch(idle_kernel(), {.name = "beside"}, {.flops = flops});
  gpu.device.sync();
  const OpRun alone = recorder.run("alone"), beside = recorder.run("beside");
  EXPECT_NEAR(static_cast<double>(alone.end - alone.start), 1.397e6, 2e3);
  EXPECT_NEAR(static_cast<double>(beside.end - beside.start) / static_cast<double>(alone.end - alone.start), 1.07,
              0.001);
}

// When a copy of 1 MiB ends behind copies of another stream, in ms. `between`: a kernel after each of them.
double small_copy_ends(int priority, int copies, std::size_t bytes, bool between) {
  H200 gpu;
  Recorder recorder;
  const Stream other = gpu.device.stream(StreamFlags::kNonBlocking, priority);
  for (int i = 0; i < copies; ++i) {
    gpu.a.copy(gpu.memory.slice(0, bytes), gpu.host.slice(0, bytes), "large");
    if (between) gpu.a.launch(idle_kernel(), {.name = "kernel"});
  }
  other.copy(gpu.more.slice(0, 1 << 20), gpu.host.slice(0, 1 << 20), "small");
  gpu.device.sync();
  return static_cast<double>(recorder.run("small").end) * 1e-6;
}

TEST(SimH200, Rules48To50AsMeasured) {
  const std::size_t large = std::size_t{256} << 20, chunk = std::size_t{32} << 20;
  for (const int priority : {0, -5}) {
    EXPECT_NEAR(small_copy_ends(priority, 4, large, false), 19.4, 0.1) << "priority " << priority;
    EXPECT_NEAR(small_copy_ends(priority, 32, chunk, false), 19.5, 0.1) << "priority " << priority;
    EXPECT_NEAR(small_copy_ends(priority, 4, large, true), 4.9, 0.1) << "priority " << priority;
  }
}

}  // namespace
}  // namespace slip::test::test_h200
