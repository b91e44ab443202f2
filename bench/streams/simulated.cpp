#include "simulated.hpp"

#include <vector>

#include "slip/device.hpp"
#include "support/timing.hpp"

namespace slip::bench {
namespace {

constexpr std::size_t kOps = 2'000'000;
constexpr int kRing = 64;

// An H200 whose peers form a ring; both directions share each link.
constexpr const char* kRingDevice = "sim:" SLIP_SOURCE_DIR "/bench/streams/ring.json";

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
  const std::vector<Device> devices = Device::open_all(kRingDevice, kRing, {.run_functions = false});
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
