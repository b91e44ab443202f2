// measure_decode(): how fast a device decodes compressed weights.
#include <cmath>
#include <cstring>
#include <random>

#include "flow/weights/weight_groups.hpp"
#include "model/codec/kernel.hpp"
#include "runtime/core.hpp"
#include "runtime/observers.hpp"
#include "slip/costs.hpp"

namespace slip {
namespace {

constexpr std::uint64_t kWeights = std::uint64_t{16} << 20;  // 32 MiB
constexpr std::uint64_t kDistinct = std::uint64_t{1} << 18;  // they repeat then

// bf16 from a normal distribution, which compress as trained weights do.
std::vector<std::byte> sample_weights() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<std::byte> weights(kWeights * 2);
  for (std::uint64_t i = 0; i < kWeights; ++i) {
    if (i >= kDistinct) {
      std::memcpy(weights.data() + 2 * i, weights.data() + 2 * (i - kDistinct), 2);
      continue;
    }
    const float value = normal(random);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    bits >>= 16;
    std::memcpy(weights.data() + 2 * i, &bits, 2);
  }
  return weights;
}

}  // namespace

LinkCost measure_decode(const Device& device, Here here) {
  const runtime::PrivateScope measuring;  // keeps these ops out of the program's trace
  model::BlockTable table(model::Split::kBf16, kWeights, here);
  const model::EncodedBlocks blocks = model::encode_blocks(table, 0, table.blocks(), sample_weights(), here);
  const std::uint64_t count = table.blocks(), checksums = flow::aligned(blocks.size());
  const std::uint64_t ends = checksums + flow::aligned(8 * count), report = ends + flow::aligned(4 * count);
  Buffer host = device.alloc(report + 8, MemoryKind::kPinned, "decode", here);
  {
    const HostView<std::byte> view = host.host_write<std::byte>(here);
    std::memcpy(view.begin(), blocks.data(), blocks.size());
    std::memcpy(view.begin() + checksums, table.checksums().data(), 8 * count);
    std::memcpy(view.begin() + ends, table.ends().data(), 4 * count);
    std::memset(view.begin() + report, 0, 8);
  }
  const Buffer packed = device.alloc(report + 8, MemoryKind::kDevice, "decode", here);
  const Buffer weights = device.alloc(kWeights * 2, MemoryKind::kDevice, "decode", here);
  const Stream stream = device.stream(StreamFlags::kNonBlocking, 0, here);
  stream.copy(packed, host, "decode", here);
  stream.sync(here);
  const std::vector<Scalar> scalars = model::DecompressSizes::of(table).scalars();
  const std::uint64_t each = table.weights_begin(1);
  return measure_link(
      device,
      [&](StreamRef on, std::uint64_t bytes) {
        const std::uint64_t some = bytes / each;
        on.launch(model::decompress_kernel(),
                  {.reads = {packed.slice(0, table.begin(some)), packed.slice(checksums, 8 * some),
                             packed.slice(ends, 4 * some)},
                   .writes = {weights.slice(0, bytes), packed.slice(report, 8)},
                   .scalars = scalars,
                   .name = "decode"},
                  {.bytes = table.begin(some) + bytes});
      },
      kWeights * 2, each, here);
}

}  // namespace slip
