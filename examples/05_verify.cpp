// Proof before the run: the loop of 03_weights is captured into a plan and verified. Then the same loop is captured
// without the waits of loads for layers. verify() finds the races: it names the two ops, the bytes that both access,
// and the missing wait.
#include <array>
#include <cstdio>
#include <vector>

#include "slip/slip.hpp"

namespace {

constexpr std::size_t kLayers = 4, kElements = 1 << 16, kBytes = kElements * sizeof(float);

const slip::Kernel kAdd{"vector_add", [](const slip::Args& args) {
                          const auto x = args.in<float>(0), weight = args.in<float>(1);
                          const auto y = args.out<float>(0);
                          for (std::size_t i = 0; i < y.size(); ++i) y[i] = x[i] + weight[i];
                        }};

struct Model {
  slip::Device device = slip::Device::open("cpu");
  slip::Buffer weights = device.alloc(kLayers * kBytes, slip::MemoryKind::kPinned, "weights");
  slip::Buffer slots = device.alloc(2 * kBytes, slip::MemoryKind::kDevice, "slots");
  slip::Buffer data = device.alloc(2 * kBytes, slip::MemoryKind::kDevice, "data");

  // Captures the loop; no op runs. `wait_until_used`: a load waits until the layer that used its slot is done.
  slip::Plan capture(bool wait_until_used) const {
    const auto compute = device.stream("compute"), load = device.stream("loads");
    compute.begin_capture();
    load.wait(compute.record());  // joins the capture
    std::array<slip::Event, 2> used;
    for (std::size_t k = 0; k < kLayers; ++k) {
      const auto slot = slots.slice(k % 2 * kBytes, kBytes);
      if (wait_until_used) load.wait(used[k % 2]);
      load.copy(slot, weights.slice(k * kBytes, kBytes), "load");
      compute.wait(load.record());
      compute.launch(kAdd, {.reads = {data.slice(k % 2 * kBytes, kBytes), slot},
                            .writes = {data.slice((k + 1) % 2 * kBytes, kBytes)},
                            .name = "layer"});
      compute.record(used[k % 2]);
    }
    return compute.end_capture();
  }
};

}  // namespace

int main() {
  const Model model;
  const slip::Plan right = model.capture(true), wrong = model.capture(false);
  const slip::Verification proof = slip::verify(right), finding = slip::verify(wrong);
  std::printf("with all waits: %s", proof.text(right).c_str());
  std::printf("without the waits of loads for layers: %s", finding.text(wrong).c_str());
  return proof.proven() && finding.verdict == slip::Verdict::kRace && finding.missing.size() == 2 ? 0 : 1;
}
