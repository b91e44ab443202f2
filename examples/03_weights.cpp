// A model larger than device memory: four layers with a weight each, but memory for two weights (two slots).
//
// While layer k computes with one slot, the weight of layer k+1 is loaded into the other. Two kinds of waits are
// needed. A layer waits until its weight is loaded. A load waits until the layer that last used its slot is done.
// Programs often lack the second kind.
#include <array>
#include <cstdio>
#include <vector>

#include "slip/slip.hpp"

namespace {

constexpr std::size_t kLayers = 4, kElements = 1 << 20, kBytes = kElements * sizeof(float);

const slip::Kernel kAdd{"vector_add", [](const slip::Args& args) {
                          const auto x = args.in<float>(0), weight = args.in<float>(1);
                          const auto y = args.out<float>(0);
                          for (std::size_t i = 0; i < y.size(); ++i) y[i] = x[i] + weight[i];
                        }};

}  // namespace

int main() {
  // With this limit, a fifth buffer on the device is an error.
  const auto device = slip::Device::open("cpu", {.memory_limit = 4 * kBytes});
  const auto compute = device.stream();
  const auto load = device.stream(slip::StreamFlags::kNonBlocking);

  std::vector<slip::Buffer> weights;  // on the host, all of them
  for (std::size_t k = 0; k < kLayers; ++k) {
    weights.push_back(device.alloc(kBytes, slip::MemoryKind::kPinned));
    for (float& value : weights.back().host_write<float>()) value = static_cast<float>(k + 1);
  }
  auto host = device.alloc(kBytes, slip::MemoryKind::kPinned);
  for (float& value : host.host_write<float>()) value = 100;

  // On the device: two weight slots, and two buffers. Each layer reads one buffer and writes the other.
  const std::array slots = {device.alloc(kBytes), device.alloc(kBytes)};
  const std::array data = {device.alloc(kBytes), device.alloc(kBytes)};

  compute.copy(data[0], host);
  std::array<slip::Event, 2> used;  // by slot: its last reader is done. A wait for an unrecorded event has no effect
  for (std::size_t k = 0; k < kLayers; ++k) {
    const auto& slot = slots[k % 2];
    load.wait(used[k % 2]);
    load.copy(slot, weights[k]);
    compute.wait(load.record());
    compute.launch(kAdd, {.reads = {data[k % 2], slot}, .writes = {data[(k + 1) % 2]}}, {.bytes = 3 * kBytes});
    compute.record(used[k % 2]);
  }
  compute.copy(host, data[kLayers % 2]);
  compute.sync();

  const float result = host.host_read<float>()[0];
  std::printf("result %g; %zu MiB of device memory, %zu MiB if all weights stayed\n", static_cast<double>(result),
              device.memory().peak >> 20, (kLayers + 2) * kBytes >> 20);
  return result == 110 && device.memory().peak == 4 * kBytes ? 0 : 1;
}
