// Several devices: waits across them, closing one while the other waits, devices of different policies.
#include <optional>
#include <thread>
#include <vector>

#include "backend/support.hpp"

namespace slip::test_devices {
namespace {

using test::Bodies;
using test::Gate;

constexpr CpuPolicy kPolicies[] = {CpuPolicy::kConcurrent, CpuPolicy::kSingle, CpuPolicy::kRandom};

TEST(Devices, AWaitCrossesBetweenAnyTwoPolicies) {
  for (const CpuPolicy from : kPolicies) {
    for (const CpuPolicy to : kPolicies) {
      std::atomic<int> order{0};
      std::atomic<int> first{0};
      std::atomic<int> second{0};
      Bodies bodies;
      const Device source = Device::open("cpu", {.policy = from});
      const Device sink = Device::open("cpu", {.policy = to});
      const Stream a = source.stream();
      const Stream b = sink.stream();
      Gate gate(source);
      gate.hold(a);
      bodies.launch(a, [&] { first.store(++order); });
      b.wait(a.record());
      bodies.launch(b, [&] { second.store(++order); });
      EXPECT_FALSE(b.sync_for(std::chrono::milliseconds(5)));
      EXPECT_EQ(order.load(), 0);
      gate.open();
      // No thread waits for the source: the threads of its device must run it, and wake the sink.
      ASSERT_TRUE(test::finishes(b)) << "from policy " << int(from) << " to " << int(to);
      EXPECT_EQ(first.load(), 1);
      EXPECT_EQ(second.load(), 2);
    }
  }
}

TEST(Devices, PingPongAcross) {
  for (const CpuPolicy from : kPolicies) {
    const Device one = Device::open("cpu", {.policy = from});
    const Device two = Device::open("cpu");
    const Stream a = one.stream();
    const Stream b = two.stream();
    std::uint64_t hops = 0;
    std::atomic<std::uint64_t> ran{0};
    static const Kernel kHop{"hop",
                             [](const Args& args) {
                               auto* count = args.scalar<std::atomic<std::uint64_t>*>(0);
                               if (count->load() == args.scalar<std::uint64_t>(1)) count->fetch_add(1);
                             },
                             nullptr};
    for (int i = 0; i < test::rounds(from == CpuPolicy::kConcurrent ? 2'000 : 200); ++i) {
      a.launch(kHop, {.scalars = {&ran, hops++}});
      b.wait(a.record());
      b.launch(kHop, {.scalars = {&ran, hops++}});
      a.wait(b.record());
    }
    ASSERT_TRUE(test::finishes(a) && test::finishes(b));
    EXPECT_EQ(ran.load(), hops) << "a hop ran out of order";
  }
}

// The event outlives its device. The device finished its work when it closed, so the wait is for nothing.
TEST(Devices, AWaitForAClosedDeviceOfAnotherKindWaitsForNothing) {
  for (const auto& [from, to] : {std::pair("sim:h200", "cpu"), std::pair("cpu", "sim:h200")}) {
    Event event;
    {
      const Device source = Device::open(from);
      const Stream stream = source.stream();
      const Buffer buffer = source.alloc(64);
      stream.fill(buffer, 1);
      event = stream.record();
    }
    const Device sink = Device::open(to);
    const Stream stream = sink.stream();
    stream.wait(event);
    std::atomic<bool> ran{false};
    stream.host([&] { ran = true; });
    ASSERT_TRUE(test::finishes(stream)) << "from " << from << " to " << to;
    EXPECT_TRUE(ran);
  }
}

// The thread that ends the source's last op must not take the sink's work along when the source closes.
TEST(Devices, ClosingTheSourceLeavesTheSinkItsWork) {
  for (int round = 0; round < test::rounds(300); ++round) {
    std::atomic<int> ran{0};
    Bodies bodies;
    const Device sink = Device::open("cpu");
    const Stream b = sink.stream();
    {
      const Device source = Device::open("cpu");
      const Stream a = source.stream();
      Gate gate(source);
      gate.hold(a);
      a.launch(test::nothing());
      b.wait(a.record());
      for (int i = 0; i < 300; ++i) bodies.launch(b, [&] { ran.fetch_add(1); });
      gate.open();
    }
    ASSERT_TRUE(test::finishes(b)) << "round " << round;
    ASSERT_EQ(ran.load(), 300);
  }
}

TEST(Devices, EachKeepsItsOwnEngines) {
  for (int round = 0; round < test::rounds(30); ++round) {
    test::ConcurrencyCounter counter;
    Bodies bodies;
    const Device source = Device::open("cpu", {.compute_workers = 4});
    const Device sink = Device::open("cpu", {.compute_workers = 1});
    std::vector<Stream> from;
    std::vector<Stream> to;
    for (int i = 0; i < 4; ++i) {
      from.push_back(source.stream(StreamFlags::kNonBlocking));
      to.push_back(sink.stream(StreamFlags::kNonBlocking));
      from.back().launch(test::nothing());
      for (const Stream& stream : from) to.back().wait(stream.record());
      for (int k = 0; k < 20; ++k) {
        bodies.launch(to.back(), [&] {
          counter.enter();
          sched_yield();
          counter.leave();
        });
      }
    }
    std::thread other([&] { source.sync(); });
    sink.sync();
    other.join();
    ASSERT_EQ(counter.max(), 1) << "the sink has one compute worker, whichever thread woke its streams";
  }
}

TEST(Devices, OneFaultLeavesTheOthersAlone) {
  Bodies bodies;
  const std::vector<Device> devices = Device::open_all("cpu", 3);
  const Stream broken = devices[0].stream();
  const Stream fine = devices[1].stream();
  bodies.launch(broken, [] { throw DeviceFault("illegal address"); });
  EXPECT_EQ(test::code_of([&] { broken.sync(); }), ErrorCode::kDeviceFault);
  fine.launch(test::nothing());
  EXPECT_TRUE(test::finishes(fine));
  Buffer memory = devices[2].alloc(64);
  EXPECT_NO_THROW(devices[2].fill(memory, 1));
  EXPECT_EQ(test::code_of([&] { devices[0].sync(); }), ErrorCode::kDeviceFault);
}

TEST(Devices, AStreamThatWaitsForALostDeviceFailsWithIt) {
  Bodies bodies;
  const std::vector<Device> devices = Device::open_all("cpu", 2);
  const Stream broken = devices[0].stream();
  const Stream waits = devices[1].stream();
  Gate gate(devices[1]), fault(devices[0]);
  gate.hold(waits);
  fault.hold(broken);  // record() would throw on a device that is already lost
  bodies.launch(broken, [] { throw DeviceFault("illegal address"); });
  waits.wait(broken.record());
  fault.open();
  bool ran = false;
  bodies.launch(waits, [&] { ran = true; });
  EXPECT_EQ(test::code_of([&] { broken.sync(); }), ErrorCode::kDeviceFault);
  gate.open();
  EXPECT_EQ(test::code_of([&] { waits.sync(); }), ErrorCode::kDeviceFault);
  EXPECT_FALSE(ran) << "its data never came";
  const Stream other = devices[1].stream();
  other.launch(test::nothing());
  EXPECT_TRUE(test::finishes(other)) << "the device itself is not lost";
}

TEST(Devices, FreeingWaitsForTheDevicesThatUseTheMemory) {
  for (const MemoryKind kind : {MemoryKind::kPinned, MemoryKind::kDevice}) {
    const std::vector<Device> devices = Device::open_all("cpu", 2);
    devices[1].enable_peer_access(devices[0]);
    std::optional<Buffer> memory = devices[0].alloc(64, kind);
    const Stream other = devices[1].stream(StreamFlags::kNonBlocking);
    Gate gate(devices[1]);
    gate.hold(other);
    other.launch(test::put(), {.writes = {*memory}, .scalars = {7}});
    test::HostCall free([&] { memory.reset(); });
    EXPECT_TRUE(free.holds(devices[0]));
    gate.open();
    EXPECT_TRUE(free.ends());
  }
}

TEST(Devices, FreedInsideAHostFunctionIsALeakNotAHang) {
  auto* device = new Device(Device::open("cpu"));  // the host function below leaks both on purpose
  auto* memory = new Buffer(device->alloc(64, MemoryKind::kDevice, "lost"));
  std::atomic<bool> ended{false};
  testing::internal::CaptureStderr();
  {
    const Stream stream = device->stream();
    stream.host([&] {
      delete memory;
      ended.store(true);
    });
    EXPECT_TRUE(test::finishes(stream));
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(ended.load());
  EXPECT_TRUE(test::contains(said, "'lost'") && test::contains(said, "64 bytes")) << said;
  delete device;
}

// The device's thread destroys the function, and with it the last handles of the buffer and of the device.
TEST(Devices, HandlesThatAHostFunctionOwnsAreLeakedWithoutAHang) {
  for (const CpuPolicy policy : {CpuPolicy::kConcurrent, CpuPolicy::kSingle}) {
    std::atomic<bool> open{false}, ended{false};
    testing::internal::CaptureStderr();
    {
      const Device device = Device::open("cpu", {.policy = policy});
      const Stream stream = device.stream();
      const auto memory = std::make_shared<Buffer>(device.alloc(64, MemoryKind::kDevice, "owned"));
      stream.host([&open, device, memory] {
        while (!open.load()) std::this_thread::yield();
      });
      stream.launch(test::nothing());
      stream.host([&ended] { ended.store(true); });
    }
    open.store(true);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!ended.load() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    const std::string said = testing::internal::GetCapturedStderr();
    ASSERT_TRUE(ended.load()) << "policy " << int(policy);
    EXPECT_TRUE(test::contains(said, "'owned'") && test::contains(said, "device 'cpu'")) << said;
  }
}

TEST(Devices, ManyOpenAndCloseOneAfterTheOther) {
  for (int i = 0; i < test::rounds(100); ++i) {
    int ran = 0;
    Bodies bodies;
    {
      const Device device = Device::open("cpu", {.policy = kPolicies[i % 3]});
      const Stream stream = device.stream();
      for (int k = 0; k < 10; ++k) bodies.launch(stream, [&] { ++ran; });
    }
    ASSERT_EQ(ran, 10) << "closing finishes the work";
  }
}

TEST(Devices, ACopyOfTheHandleKeepsTheDevice) {
  std::optional<Device> first = Device::open("cpu");
  const Device second = *first;
  EXPECT_TRUE(*first == second);
  first.reset();
  const Stream stream = second.stream();
  stream.launch(test::nothing());
  EXPECT_TRUE(test::finishes(stream));
}

TEST(Devices, AStreamKeepsItsDevice) {
  std::atomic<bool> ran{false};
  Bodies bodies;
  const Stream stream = Device::open("cpu").stream();
  bodies.launch(stream, [&] { ran.store(true); });
  EXPECT_TRUE(test::finishes(stream));
  EXPECT_TRUE(ran.load());
}

}  // namespace
}  // namespace slip::test_devices
