#include "simulated.hpp"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <stdexcept>
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

// The description of the ring as a file in /tmp. The destructor removes it.
class RingFile {
 public:
  RingFile() : path_("/tmp/slip-ring-XXXXXX.json") {
    const int made = ::mkstemps(path_.data(), sizeof(".json") - 1);
    if (made < 0) throw std::runtime_error("cannot create a file in /tmp for the description of a device");
    ::close(made);
    std::ofstream(path_) << kRingDevice;
  }
  ~RingFile() { ::unlink(path_.c_str()); }
  RingFile(const RingFile&) = delete;
  RingFile& operator=(const RingFile&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

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
  const std::vector<Device> devices = Device::open_all("sim:" + RingFile().path(), kRing, {.run_functions = false});
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
