// Compressed tensors with damaged bytes: each is refused with an error, or decodes to the number of bytes that its head
// says. Half of the inputs get right checksums again, so that damage reaches the decoder behind them. All loops of this
// processor must agree.
//
// usage: fuzz_codec SECONDS SEED
#include <cstring>
#include <random>

#include "fuzz/fuzz_loop.hpp"
#include "model/codec/tensor.hpp"
#include "support/compressed_tensor.hpp"
#include "support/weights_to_compress.hpp"

namespace slip {
namespace {

using Bytes = std::vector<std::byte>;

class Input {
 public:
  explicit Input(std::uint64_t seed) : random_(seed) {}

  // Weights that give blocks of all kinds.
  Bytes weights(DataType type) {
    const std::size_t count = below(3) == 0 ? 8192 + below(300) : below(2000);
    switch (below(4)) {
      case 0: return test::normal_weights(type, count, random_());
      case 1: return test::random_bits(count * bytes_of(type), random_());
      case 2: return Bytes(count * bytes_of(type));
      default: return test::wide_weights(type, count, random_(), static_cast<int>(6 + below(60)));
    }
  }

  void damage(Bytes& bytes) {
    for (std::uint64_t change = 1 + below(4); change > 0 && !bytes.empty(); --change) {
      // The counts and tables at the beginning decide most.
      const std::size_t at = below(2) == 0 ? below(std::min<std::size_t>(bytes.size(), 64)) : below(bytes.size());
      switch (below(5)) {
        case 0: bytes[at] = std::byte{0xFF}; break;
        case 1: bytes[at] = std::byte{0}; break;
        case 2: bytes[at] ^= static_cast<std::byte>(1U << below(8)); break;
        case 3: bytes[at] = static_cast<std::byte>(random_()); break;
        default: std::rotate(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.end());
      }
    }
  }

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

 private:
  std::mt19937_64 random_;
};

void require(bool truth, const std::string& what) {
  if (!truth) throw std::logic_error(what);
}

// A tensor of damaged blocks with right checksums.
Bytes with_right_checks(Input& input, const Bytes& tensor) {
  const model::BlockTable good = model::BlockTable::parse(tensor, tensor.size(), "good");
  model::BlockTable table(good.split(), good.weights());
  Bytes blocks;
  for (std::size_t i = 0; i < good.blocks(); ++i) {
    const auto from = tensor.begin() + static_cast<std::ptrdiff_t>(good.head_bytes() + good.begin(i));
    Bytes block(from, from + static_cast<std::ptrdiff_t>(good.block_bytes(i)));
    input.damage(block);
    if (input.below(6) == 0) block.resize((input.below(block.size() / 16) + 1) * 16);
    table.add(block.size(),
              model::weighted_sum(block.data(), block.size()) + model::checksum_seed(i, good.id(i).weights));
    blocks.insert(blocks.end(), block.begin(), block.end());
  }
  Bytes result = table.head();
  result.insert(result.end(), blocks.begin(), blocks.end());
  return result;
}

void require_same_loops(const Bytes& tensor, const Bytes& weights) {
  const model::BlockTable table = model::BlockTable::parse(tensor, tensor.size(), "it");
  for (std::size_t i = 0; i < table.blocks(); ++i) {
    const std::span block(tensor.data() + table.head_bytes() + table.begin(i), table.block_bytes(i));
    const std::size_t bytes = std::size_t{table.id(i).weights} * model::weight_bytes(table.split());
    for (const model::CodecLoops loops : model::kAllCodecLoops) {
      if (!model::has_loops(loops)) continue;
      Bytes again(bytes);
      const auto fault =
          model::decode_block(table.split(), block, table.id(i), again.data(), model::Stores::kPastCaches, loops);
      require(fault == model::BlockFault::kNone,
              std::string(model::loops_name(loops)) + ": the decoder refuses what the best one takes");
      require(std::memcmp(again.data(), weights.data() + table.weights_begin(i), bytes) == 0,
              std::string(model::loops_name(loops)) + ": the decoders differ in block " + std::to_string(i));
    }
  }
}

bool one(std::uint64_t seed, std::string& text) {
  Input input(seed);
  const DataType types[] = {DataType::kBF16, DataType::kF16, DataType::kF32, DataType::kU8};
  const DataType type = types[input.below(4)];
  const Bytes original = input.weights(type);
  Bytes tensor = test::compress_tensor(type, original);
  require(test::decompress_tensor(tensor, "good") == original, "a sound tensor does not come back");
  const bool fixed = input.below(2) == 0;
  if (fixed) tensor = with_right_checks(input, tensor);
  else if (input.below(4) == 0) tensor.resize(input.below(tensor.size() + 1));
  else input.damage(tensor);
  text = std::to_string(tensor.size()) + " bytes of " + data_type_name(type);
  Bytes weights;
  try {
    weights = test::decompress_tensor(tensor, "damaged");
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kParse) throw;
    return false;
  }
  require(fixed || weights == original, "damage was not found");  // a rotation by 0 changes nothing
  require(weights.size() == original.size(), "it has another size");
  require_same_loops(tensor, weights);
  return true;
}

}  // namespace
}  // namespace slip

int main(int argc, char** argv) { return slip::fuzz_main(argc, argv, "fuzz_codec", slip::one); }
