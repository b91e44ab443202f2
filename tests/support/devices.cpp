#include "support/devices.hpp"

#include <ostream>

#include "support/kernels.hpp"

namespace slip::test {
namespace {

bool has_cuda() {
  try {
    static_cast<void>(Device::open("cuda:0"));
    return true;
  } catch (const Error&) {
    static_cast<void>(last_error());
    return false;
  }
}

std::vector<DeviceCase> make_cases() {
  std::vector<DeviceCase> cases;
  cases.push_back({.label = "cpu_concurrent", .name = "cpu", .options = {.compute_workers = 4}, .concurrent = true});
  cases.push_back({.label = "cpu_single", .name = "cpu", .options = {.policy = Policy::kSingle}});
  for (const std::uint64_t seed : {1, 2, 3})
    cases.push_back({.label = "cpu_random" + std::to_string(seed),
                     .name = "cpu",
                     .options = {.policy = Policy::kRandom, .seed = seed}});
  // Queues enough for every stream of a test: only the rules about queues want them scarce.
  cases.push_back({.label = "sim_h200", .name = "sim:h200", .options = {.max_connections = 32}, .simulated = true});
  if (has_cuda()) cases.push_back({.label = "cuda_0", .name = "cuda:0"});
  return cases;
}

}  // namespace

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
