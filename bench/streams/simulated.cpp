#include "simulated.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "slip/device.hpp"
#include "support/timing.hpp"

namespace slip::bench {
namespace {

constexpr std::size_t kOps = 2'000'000;
constexpr int kRing = 64;

// An H200 whose peers form a ring; both directions share each link.
constexpr const char* kRingDevice = R"({
  "name": "ring", "memory": "141 GB", "queues": 8,
  "compute": {"flops": "787 TFLOP/s", "bandwidth": "4.24 TB/s", "launch": "0.5 us"},
  "copies": {"engines": 2, "in": "55.4 GB/s", "out": "55.3 GB/s", "latency": "2.7 us"},
  "host": {"launch": "3.9 us", "copy": "2.2 us", "record": "0.2 us", "wait": "0.23 us", "sync": "4.2 us"},
  "peers": {"form": "ring", "bandwidth": "50 GB/s", "latency": "1.5 us", "shared": true}
})";

// Writes the description to a file in the temporary folder, once, and returns its path. The file is not removed.
const std::string& ring_file() {
  static const std::string kPath = [] {
    const auto path = std::filesystem::temp_directory_path() / ("slip-ring-" + std::to_string(std::rand()) + ".json");
    std::ofstream(path) << kRingDevice;
    return path.string();
  }();
  return kPath;
}

const Kernel& nothing() {
  static const Kernel kNothing{"nothing", [](const Args&) {}};
  return kNothing;
}

}  // namespace

std::optional<double> simulated_chain_rate(Context& context) {
  const std::size_t ops = context.iterations(kOps);
  const Device device = Device::open("sim:h200", {.run_functions = false});
  const Stream stream = device.stream();
  const Timer timer;
  for (std::size_t i = 0; i < ops; ++i) stream.launch(nothing(), {}, {.time = 1'000'000});
  stream.sync();
  return static_cast<double>(ops) / timer.elapsed_ns() * 1e9;
}

// Each device sends a block to its right neighbour in every step, after it has received the one of the step before: the
// steps of a ring collective, on links that both directions share.
std::optional<double> simulated_ring_rate(Context& context) {
  const std::size_t steps = context.iterations(kOps) / kRing;
  const std::vector<Device> devices = Device::open_all("sim:" + ring_file(), kRing, {.run_functions = false});
  std::vector<Stream> streams;
  std::vector<Buffer> blocks;
  std::vector<Event> sent(kRing);
  for (const Device& device : devices) {
    streams.push_back(device.stream(StreamFlags::kNonBlocking));
    blocks.push_back(device.alloc(2 << 20));
  }
  const Timer timer;
  for (std::size_t step = 0; step < steps; ++step) {
    for (int i = 0; i < kRing; ++i) {
      const int right = (i + 1) % kRing;
      streams[i].wait(sent[(i + kRing - 1) % kRing]);
      streams[i].copy(blocks[right].slice(0, 1 << 20), blocks[i].slice(1 << 20, 1 << 20));
      streams[i].record(sent[i]);
    }
  }
  for (const Stream& stream : streams) stream.sync();
  context.note("counted: copies alone; each comes with a wait and a record");
  return static_cast<double>(steps * kRing) / timer.elapsed_ns() * 1e9;
}

}  // namespace slip::bench
