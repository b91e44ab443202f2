// The devices that conformance tests run over, and the fixture that opens them.
//
// A suite derives from DeviceTest and is instantiated once for all devices: one line in its file. To add a backend, add
// it to device_cases().
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "slip/device.hpp"
#include "support/watchdog.hpp"

namespace slip::test {

// Long enough for a loaded machine under a sanitizer; a test that fails waits this long, one that passes never does.
inline constexpr std::chrono::seconds kLimit{20};

struct DeviceCase {
  std::string label;  // of the test: cpu_concurrent
  std::string name;   // for Device::open: cpu
  DeviceOptions options = {};
  bool concurrent = false;  // kernels really run side by side, so that two of them can meet
  bool simulated = false;   // virtual time: durations are exact
  bool cuda = false;        // a GPU: its kernels cannot throw, and the driver chooses queues and how deep they are
  int most = 1000;          // devices of this kind that can be open together and reach each other
};

const std::vector<DeviceCase>& device_cases();
// Whether there is a device cuda:0. The first call readies CUDA for tests that hold streams back, so it must come
// before any other use of CUDA.
bool has_cuda();
std::string label_of(const testing::TestParamInfo<DeviceCase>& info);
// How gtest prints a case.
void PrintTo(const DeviceCase& device, std::ostream* out);

class DeviceTest : public testing::TestWithParam<DeviceCase> {
 protected:
  using Change = std::function<void(DeviceOptions&)>;

  // The device of this case, with some options changed.
  Device open(const Change& change = {}) const { return open_all(1, change).front(); }
  std::vector<Device> open_all(int count, const Change& change = {}) const;

  bool concurrent() const { return GetParam().concurrent; }
  bool simulated() const { return GetParam().simulated; }
  bool on_cuda() const { return GetParam().cuda; }

 private:
  Watchdog watchdog_{std::chrono::seconds(120)};
};

// A simulated device without overheads, so that durations are round numbers: calls cost nothing, a copy moves 1 GB/s in
// each direction without latency, a host function takes 1 ms, and kernels take what their Cost says. Peers are reached
// through the host.
Device open_ideal(const DeviceOptions& options = {});
std::vector<Device> open_ideal(int count, const DeviceOptions& options = {});

// All work of the stream is done within the limit.
testing::AssertionResult finished(StreamRef stream);
// Independent work of the device goes through, so that whatever could run beside it had its chance.
testing::AssertionResult progressed(const Device& device);

}  // namespace slip::test

// Runs a suite over every device.
#define SLIP_OVER_DEVICES(suite) \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, testing::ValuesIn(::slip::test::device_cases()), ::slip::test::label_of)

// What only shows where kernels run side by side.
#define SLIP_NEEDS_CONCURRENCY() \
  if (!concurrent()) GTEST_SKIP() << "this device runs one op at a time: nothing can meet"

// What takes several devices; there may be one GPU only.
#define SLIP_NEEDS_DEVICES(count) \
  if (GetParam().most < (count)) GTEST_SKIP() << "fewer than " << (count) << " such devices on this machine"

// What a GPU cannot do, or is not asked to: `why` says it.
#define SLIP_NOT_ON_CUDA(why) \
  if (on_cuda()) GTEST_SKIP() << (why)

// Kernels that throw: those of a GPU cannot, and a real fault would take the context of all other tests away.
#define SLIP_NEEDS_FAILING_KERNELS() \
  SLIP_NOT_ON_CUDA("a kernel of a GPU cannot throw, and a real fault loses the whole process's context")
