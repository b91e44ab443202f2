// Streams weights for a program that launches its own kernels: no graph, no Runner. The device holds less than half of
// the weights. A layer is skipped in one step and used twice in another; the results are those of resident weights.
//
//   11_weight_streamer [--device cuda:0]
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "slip/slip.hpp"

namespace {

constexpr std::uint64_t kTokens = 16, kSize = 256, kBytes = kSize * kSize * sizeof(float);
constexpr std::uint32_t kLayers = 12;

// The kernel and its scalars: here the library's matrix product. A real program has its own kernels.
const slip::GraphOp& product() {
  static const slip::Graph graph = [] {
    slip::Graph made;
    const slip::Value x = made.input("x", slip::DataType::kF32, {kTokens, kSize});
    made.linear("y", x, made.weight("w", slip::DataType::kF32, {kSize, kSize}));
    return made;
  }();
  return graph.ops().front();
}

std::vector<slip::StreamedGroup> layers() {
  std::vector<slip::StreamedGroup> groups;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    const auto fill = [layer](std::uint64_t offset, std::span<std::byte> into) {
      for (std::size_t i = 0; i < into.size() / sizeof(float); ++i) {
        const float value = static_cast<float>((offset / sizeof(float) + i) * (layer + 3) % 19) / 100.0F - 0.09F;
        std::memcpy(into.data() + i * sizeof(float), &value, sizeof(float));
      }
    };
    groups.push_back({"layer" + std::to_string(layer), slip::GroupSource::callback(kBytes, fill)});
  }
  return groups;
}

// Three steps: one in order, one that skips a layer, one that uses a layer twice.
std::vector<float> run(const slip::Device& device, std::uint64_t budget) {
  slip::WeightStreamer streamer(device, layers(), {.budget = budget});
  std::vector<slip::GroupUse> uses;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) uses.push_back({"layer" + std::to_string(layer)});
  const slip::WeightPass pass = streamer.add_pass("forward", uses);
  streamer.plan();
  std::printf("%s", streamer.describe(pass).c_str());
  std::printf("proof: %s\n", slip::verdict_name(streamer.verify(pass).verdict));

  const slip::Stream stream = device.stream(slip::StreamFlags::kNonBlocking);
  const slip::Buffer values = device.alloc(2 * kTokens * kSize * sizeof(float));
  slip::Buffer host = device.alloc(kTokens * kSize * sizeof(float), slip::MemoryKind::kPinned);
  slip::Range x = values.slice(0, host.bytes()), y = values.slice(host.bytes(), host.bytes());
  for (float& value : host.host_write<float>()) value = 0.5F;
  stream.copy(x, host);
  for (int step = 0; step < 3; ++step) {
    streamer.begin(pass);
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      if (step == 1 && layer == 5) continue;
      for (int time = 0; time < (step == 2 && layer == 2 ? 2 : 1); ++time) {
        const slip::Range weights = streamer.acquire(layer, stream);
        stream.launch(*product().kernel,
                      {.reads = {x, weights}, .writes = {y}, .scalars = product().scalars, .name = {}}, product().cost);
        streamer.release(layer, stream);
        std::swap(x, y);
      }
    }
  }
  stream.copy(host, x);
  stream.sync();
  std::printf("%s\n", streamer.report().text().c_str());
  const auto result = host.host_read<float>();
  return {result.begin(), result.end()};
}

}  // namespace

int main(int count, char** arguments) {
  std::string name = "cpu";
  if (count == 3 && std::string(arguments[1]) == "--device") name = arguments[2];
  const slip::Device device = slip::Device::open(name);
  const std::vector<float> expected = run(device, kLayers * kBytes);
  const std::vector<float> output = run(device, kLayers * kBytes * 2 / 5);
  std::printf("outputs: %s\n", output == expected ? "equal" : "WRONG");
  return output == expected ? 0 : 1;
}
