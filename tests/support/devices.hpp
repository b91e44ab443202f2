// The devices on which conformance tests run, and the fixture that opens them.
//
// A suite derives from DeviceTest, and SLIP_OVER_DEVICES in its file instantiates it for all devices. To add a backend,
// add it to device_cases().
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "slip/device.hpp"
#include "support/watchdog.hpp"

namespace slip::test {

// Long enough for a busy machine and a sanitizer. Only a test that fails waits this long.
inline constexpr std::chrono::seconds kLimit{20};

struct DeviceCase {
  std::string label;  // in the name of the test, such as "cpu_concurrent"
  std::string name;   // for Device::open, such as "cpu"
  DeviceOptions options = {};
  bool concurrent = false;  // kernels run at the same time, so that two of them can be members of a Meeting
  bool simulated = false;   // virtual time: durations are exact
  bool cuda = false;        // a GPU: its kernels cannot throw, and the driver chooses the queues and their depth
  int max_devices = 1000;   // the maximum number of such devices that can be open together and have peer access
};

const std::vector<DeviceCase>& device_cases();
// Whether there is a device cuda:0. The first call sets CUDA up for tests that hold streams back, so it must come
// before any other use of CUDA.
bool has_cuda();
std::string label_of(const testing::TestParamInfo<DeviceCase>& info);
// gtest calls it to print a case.
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

// A simulated device without overheads, so that durations are round numbers. Calls take no time, a copy moves 1 GB/s in
// each direction without latency, a host function takes 1 ms, and the time of a kernel follows from its Cost. Copies
// between peers go through the host.
Device open_ideal(const DeviceOptions& options = {});
std::vector<Device> open_ideal(int count, const DeviceOptions& options = {});

// Whether all work of the stream is done within kLimit.
testing::AssertionResult finished(StreamRef stream);
// Runs three independent kernels on the device. When they are done, work that a stream does not hold back has had time
// to run, too.
testing::AssertionResult progressed(const Device& device);

}  // namespace slip::test

// Runs a suite over every device.
#define SLIP_OVER_DEVICES(suite) \
  INSTANTIATE_TEST_SUITE_P(Devices, suite, testing::ValuesIn(::slip::test::device_cases()), ::slip::test::label_of)

// For tests of kernels that run at the same time.
#define SLIP_NEEDS_CONCURRENCY() \
  if (!concurrent()) GTEST_SKIP() << "this device runs one op at a time"

// For tests with several devices: the machine may have only one GPU.
#define SLIP_NEEDS_DEVICES(count) \
  if (GetParam().max_devices < (count)) GTEST_SKIP() << "fewer than " << (count) << " such devices on this machine"

// For tests that do not apply to GPUs. `why`: the reason.
#define SLIP_NOT_ON_CUDA(why) \
  if (on_cuda()) GTEST_SKIP() << (why)

// For tests of kernels that throw.
#define SLIP_NEEDS_FAILING_KERNELS() \
  SLIP_NOT_ON_CUDA("a kernel of a GPU cannot throw, and a real fault destroys the context that all tests use")
