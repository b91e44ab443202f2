#include <cstring>
#include <map>
#include <random>

#include "bars.hpp"
#include "base/small_floats.hpp"
#include "base/team.hpp"

namespace slip::bench {
namespace {

std::vector<std::byte> normal_weights(DataType type, std::size_t blocks) {
  const std::size_t each = 8192 * bytes_of(type);
  std::vector<std::byte> result(blocks * each);
  base::for_each_index(blocks, [&](std::size_t block) {
    std::mt19937 random(static_cast<unsigned>(block + 1));
    std::normal_distribution<float> normal(0, 0.02F);
    std::byte* at = result.data() + block * each;
    for (std::size_t i = 0; i < 8192; ++i, at += bytes_of(type)) {
      const float value = normal(random);
      const std::uint16_t half =
          type == DataType::kF16 ? base::from_float<base::F16>(value).bits : base::from_float<base::Bf16>(value).bits;
      if (type == DataType::kF32) std::memcpy(at, &value, sizeof value);
      else std::memcpy(at, &half, sizeof half);
    }
  });
  return result;
}

}  // namespace

const CodecWeights& codec_weights(DataType type, std::size_t blocks) {
  static std::map<std::pair<DataType, std::size_t>, CodecWeights> made;
  const auto [at, is_new] = made.try_emplace({type, blocks});
  if (is_new) {
    CodecWeights& result = at->second;
    result.weights = normal_weights(type, blocks);
    result.table = model::BlockTable(model::split_of(type), blocks * 8192);
    result.blocks = model::encode_blocks(result.table, 0, blocks, result.weights);
  }
  return at->second;
}

}  // namespace slip::bench
