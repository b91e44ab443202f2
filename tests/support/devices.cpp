#include "support/devices.hpp"

#include <cstdlib>
#include <ostream>

#include "support/cuda_kernels.hpp"
#include "support/kernels.hpp"

namespace slip::test {
namespace {

bool opens(const char* name, int count) {
  try {
    static_cast<void>(Device::open_all(name, count));
    return true;
  } catch (const Error&) {
    static_cast<void>(last_error());
    return false;
  }
}

bool ready_cuda() {
#if SLIP_HAS_CUDA
  // CUDA reads both when it starts. A stream that a test holds back must not share a hardware queue with streams that
  // must run: 8 queues are the default, 32 the maximum. The first launch of a kernel must not load it, because the load
  // may wait for work that a test holds back.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  if (!opens("cuda:0", 1)) return false;
  cuda::prepare();
  return true;
#else
  return opens("cuda:0", 1);
#endif
}

std::vector<DeviceCase> make_cases() {
  std::vector<DeviceCase> cases;
  cases.push_back({.label = "cpu_concurrent", .name = "cpu", .options = {.compute_workers = 4}, .concurrent = true});
  cases.push_back({.label = "cpu_single", .name = "cpu", .options = {.policy = CpuPolicy::kSingle}});
  for (const std::uint64_t seed : {1, 2, 3})
    cases.push_back({.label = "cpu_random" + std::to_string(seed),
                     .name = "cpu",
                     .options = {.policy = CpuPolicy::kRandom, .seed = seed}});
  // One queue for each stream of a test; only the tests of queues need fewer.
  cases.push_back({.label = "sim_h200", .name = "sim:h200", .options = {.max_connections = 32}, .simulated = true});
  if (has_cuda())
    cases.push_back({.label = "cuda_0",
                     .name = "cuda:0",
                     .concurrent = true,
                     .cuda = true,
                     .max_devices = opens("cuda:0", 2) ? 2 : 1});
  return cases;
}

}  // namespace

bool has_cuda() {
  static const bool kHas = ready_cuda();
  return kHas;
}

const std::vector<DeviceCase>& device_cases() {
  static const std::vector<DeviceCase> kCases = make_cases();
  return kCases;
}

std::string label_of(const testing::TestParamInfo<DeviceCase>& info) { return info.param.label; }

void PrintTo(const DeviceCase& device, std::ostream* out) { *out << device.label; }

std::vector<Device> DeviceTest::open_all(int count, const Change& change) const {
  DeviceOptions options = GetParam().options;
  if (change) change(options);
  return Device::open_all(GetParam().name, count, options);
}

std::vector<Device> open_ideal(int count, const DeviceOptions& options) {
  return Device::open_all("sim:" SLIP_SOURCE_DIR "/tests/support/ideal.json", count, options);
}

Device open_ideal(const DeviceOptions& options) { return open_ideal(1, options).front(); }

testing::AssertionResult finished(StreamRef stream) {
  if (stream.sync_for(kLimit)) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "stream " << stream.id() << " was not done within " << kLimit.count() << " s";
}

testing::AssertionResult progressed(const Device& device) {
  const Stream aside = device.stream(StreamFlags::kNonBlocking);
  for (int i = 0; i < 3; ++i) {
    Meeting alone(1);  // no buffer: freeing one would wait for the whole device
    alone.launch(aside);
    if (!aside.sync_for(kLimit) || !alone.complete())
      return testing::AssertionFailure() << "independent work did not run";
  }
  return testing::AssertionSuccess();
}

}  // namespace slip::test
