// Failures of work: poisoned streams, what inherits them, lost devices (rules 31, 81, 90).
#include <fmt/format.h>

#include "sim/support.hpp"

namespace slip::test::test_errors {
namespace {

const Kernel& throwing_kernel() {
  static const Kernel kThrowing{"thrower", [](const Args&) { throw std::runtime_error("out of luck"); }, nullptr};
  return kThrowing;
}
const Kernel& faulting_kernel() {
  static const Kernel kFaulting{"faulter", [](const Args&) { throw DeviceFault("illegal address 0x10"); }, nullptr};
  return kFaulting;
}

std::string text_of(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(SimErrors, ThrowingKernelPoisonsItsStream) {
  Device device = open_exact();
  Stream stream = device.stream();
  const Event before = stream.record();
  stream.launch(throwing_kernel(), {.name = "step 7"});
  bool called = false;
  stream.host([&] { called = true; });
  const std::string text = text_of([&] { stream.sync(); }, ErrorCode::kLaunchFailed);
  EXPECT_NE(text.find("step 7"), std::string::npos) << text;
  EXPECT_NE(text.find("test_errors.cpp"), std::string::npos) << text;
  EXPECT_NE(text.find("out of luck"), std::string::npos) << text;
  EXPECT_FALSE(called);
  EXPECT_NO_THROW(before.sync());
  text_of([&] { run_for(stream, "later", 1); }, ErrorCode::kLaunchFailed);
  text_of([&] { device.sync(); }, ErrorCode::kLaunchFailed);
}

TEST(SimErrors, ExplicitWaitsInheritImplicitOnesDoNot) {
  Device device = open_exact();
  Stream bad = device.stream(), follower = device.stream(), early = device.stream(), bystander = device.stream();
  const Event good = bad.record();
  bad.launch(throwing_kernel());
  const Event failed = bad.record();
  follower.wait(failed);
  bool followed = false, other = false, legacy = false;
  follower.host([&] { followed = true; });
  early.wait(good);
  early.host([&] { other = true; });
  device.legacy_stream().host([&] { legacy = true; });  // waits for all of them, by the legacy rule only
  bystander.host([] {});
  const std::string text = text_of([&] { follower.sync(); }, ErrorCode::kLaunchFailed);
  EXPECT_NE(text.find("waited for stream " + std::to_string(bad.id())), std::string::npos) << text;
  EXPECT_NO_THROW(early.sync());
  EXPECT_NO_THROW(bystander.sync());
  EXPECT_NO_THROW(device.legacy_stream().sync());
  EXPECT_FALSE(followed);
  EXPECT_TRUE(other);
  EXPECT_TRUE(legacy);
}

TEST(SimErrors, StreamsAreNamedByTheirIdsAndNames) {
  const Device device = open_exact();
  const Stream bad = device.stream({.name = "loads"}), follower = device.stream();
  bad.launch(throwing_kernel());
  follower.wait(bad.record());
  const std::string text = text_of([&] { follower.sync(); }, ErrorCode::kLaunchFailed);
  const std::string named = fmt::format("stream {} 'loads'", bad.id());
  EXPECT_NE(text.find("in " + named + " of"), std::string::npos) << text;
  EXPECT_NE(text.find(fmt::format("; stream {} waited for {}", follower.id(), named)), std::string::npos) << text;
}

TEST(SimErrors, DeviceFaultLosesTheDevice) {
  std::vector<Device> devices = open_exact_all(2);
  Stream a = devices[0].stream(), b = devices[0].stream(), c = devices[1].stream(), d = devices[1].stream();
  Buffer word = devices[0].alloc(4, MemoryKind::kPinned);
  bool called = false, remote = false;
  b.wait_value(word, 1);  // never set: pending work still ends
  b.host([&] { called = true; });
  const Event pending = b.record();
  a.launch(faulting_kernel());
  c.wait(pending);
  c.host([&] { called = true; });
  d.host([&] { remote = true; });
  const std::string text = text_of([&] { devices[0].sync(); }, ErrorCode::kDeviceFault);
  EXPECT_NE(text.find("illegal address 0x10"), std::string::npos);
  text_of([&] { b.sync(); }, ErrorCode::kDeviceFault);
  text_of([&] { run_for(a, "later", 1); }, ErrorCode::kDeviceFault);
  EXPECT_NO_THROW(d.sync());
  text_of([&] { c.sync(); }, ErrorCode::kDeviceFault);  // it waited for work that was lost
  EXPECT_FALSE(called);
  EXPECT_TRUE(remote);
}

TEST(SimErrors, KernelWithoutAFunctionIsRefusedByName) {
  static const Kernel kOnlyCuda{"only cuda", nullptr, nullptr};
  Device device = open_exact();
  Stream stream = device.stream();
  const std::string text = text_of([&] { stream.launch(kOnlyCuda); }, ErrorCode::kUnsupported);
  EXPECT_NE(text.find("only cuda"), std::string::npos);
  EXPECT_NO_THROW(stream.sync());
  DeviceOptions options;
  options.run_functions = false;
  Device planner = open_exact({}, options);
  Stream planned = planner.stream();
  planned.launch(kOnlyCuda, {}, {.time = 5 * kNano});
  planned.sync();
  EXPECT_EQ(planner.now(), 5 * kNano);
}

TEST(SimErrors, FunctionsMayNotCallTheRuntime) {
  Device device = open_exact();
  Stream stream = device.stream();
  ErrorCode seen = ErrorCode::kOk;
  stream.host([&] {
    try {
      stream.sync();
    } catch (const Error& error) {
      seen = error.code();
    }
  });
  stream.sync();
  EXPECT_EQ(seen, ErrorCode::kNotPermitted);
}

TEST(SimErrors, UnknownDevicesAreNamed) {
  text_of([] { Device::open("sim:nothing"); }, ErrorCode::kInvalidDevice);
  text_of([] { Device::open("sim:/nowhere/at/all.json"); }, ErrorCode::kIo);
  const std::string text = text_of([] { Device::open("sim"); }, ErrorCode::kInvalidDevice);
  EXPECT_NE(text.find("sim:h200"), std::string::npos) << text;
}

TEST(SimErrors, StreamsAreUsedAgainAcrossDevices) {
  Event old;
  {
    Device device = open_exact();
    Stream stream = device.stream();
    run_for(stream, "k", 10);
    old = stream.record();
    stream.sync();
  }
  EXPECT_TRUE(old.query());  // its device is closed
  Device device = open_exact();
  std::vector<Stream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(device.stream());
  for (const Stream& stream : streams) run_for(stream, "k", 10);
  EXPECT_TRUE(old.query());
  EXPECT_NO_THROW(old.sync());
  device.sync();
}

}  // namespace
}  // namespace slip::test::test_errors
