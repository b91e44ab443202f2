// The codec of weights on the host: every bit pattern comes back, damage is found, and a hostile block does no harm.
#include <gtest/gtest.h>

#include <algorithm>

#include "model/codec/tensor.hpp"
#include "support/compressed_tensor.hpp"
#include "support/errors.hpp"
#include "support/weights_to_compress.hpp"

namespace slip::test_codec {
namespace {

using model::BlockFault;
using model::BlockId;
using model::CodecLoops;
using model::Split;
using model::Stores;
using test::fails;
using test::normal_weights;
using test::random_bits;
using test::wide_weights;
using Bytes = std::vector<std::byte>;

constexpr std::uint32_t kBlock = 8192;
constexpr DataType kSplitTypes[] = {DataType::kBF16, DataType::kF16, DataType::kF32};

// Encodes one block and decodes it with all loops of this processor; returns its size.
std::size_t round_trip(DataType type, const Bytes& weights) {
  const Split split = model::split_of(type);
  const auto count = static_cast<std::uint32_t>(weights.size() / model::weight_bytes(split));
  Bytes block(model::max_block_bytes(split) + 16, std::byte{0xA5});
  const std::size_t size = model::encode_block(split, weights.data(), count, block.data());
  EXPECT_TRUE(std::all_of(block.end() - 16, block.end(), [](std::byte b) { return b == std::byte{0xA5}; }));
  for (const CodecLoops loops : model::kAllCodecLoops) {
    if (!model::has_loops(loops)) continue;
    const std::uint64_t checksum = model::weighted_sum(block.data(), size, loops) + model::checksum_seed(5, count);
    EXPECT_EQ(checksum,
              model::weighted_sum(block.data(), size, CodecLoops::kPortable) + model::checksum_seed(5, count));
    for (const Stores stores : {Stores::kCached, Stores::kPastCaches}) {
      // Guards around the weights, which begin at another address modulo 64 for each count.
      const std::size_t at = 64 + count % 64;
      Bytes again(at + weights.size() + 64, std::byte{0x5A});
      const BlockFault fault =
          model::decode_block(split, {block.data(), size}, {5, count, checksum}, again.data() + at, stores, loops);
      EXPECT_EQ(fault, BlockFault::kNone) << model::loops_name(loops) << ": " << model::fault_text(fault);
      EXPECT_EQ(std::memcmp(weights.data(), again.data() + at, weights.size()), 0)
          << data_type_name(type) << " " << count << " " << model::loops_name(loops);
      const auto untouched = [](std::byte b) { return b == std::byte{0x5A}; };
      EXPECT_TRUE(std::all_of(again.begin(), again.begin() + static_cast<std::ptrdiff_t>(at), untouched));
      EXPECT_TRUE(std::all_of(again.end() - 64, again.end(), untouched));
    }
  }
  return size;
}

Bytes slice(const Bytes& all, std::size_t from, std::size_t bytes) {
  return {all.begin() + static_cast<std::ptrdiff_t>(from), all.begin() + static_cast<std::ptrdiff_t>(from + bytes)};
}

TEST(Codec, EveryPatternOfSixteenBitsComesBack) {
  Bytes all(65536 * 2);
  for (std::uint32_t i = 0; i < 65536; ++i) std::memcpy(all.data() + std::size_t{2} * i, &i, 2);
  for (const DataType type : {DataType::kBF16, DataType::kF16}) {
    for (std::size_t at = 0; at < all.size(); at += 2 * kBlock) round_trip(type, slice(all, at, 2 * kBlock));
    // The same among usual weights: every pattern is in a packed block, most as escapes.
    for (std::size_t pass = 0; pass < 8; ++pass) {
      Bytes mixed = normal_weights(type, 65536, 3);
      for (std::size_t i = pass; i < 65536; i += 8) std::memcpy(mixed.data() + 2 * i, all.data() + 2 * i, 2);
      for (std::size_t at = 0; at < mixed.size(); at += 2 * kBlock)
        EXPECT_LT(round_trip(type, slice(mixed, at, 2 * kBlock)), 2 * kBlock);
    }
  }
}

TEST(Codec, SpecialValuesComeBack) {
  const std::uint32_t specials[] = {0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF,
                                    0x7FBFFFFF, 0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0x7FC0DEAD, 0xFFC12345};
  for (const DataType type : kSplitTypes) {
    const std::size_t size = bytes_of(type);
    Bytes weights = normal_weights(type, kBlock, 11);
    for (std::size_t i = 0; i < std::size(specials); ++i) {
      const std::uint32_t bits = specials[i] >> (size == 2 ? 16 : 0);
      std::memcpy(weights.data() + i * 577 * size, &bits, size);
    }
    EXPECT_LT(round_trip(type, weights), weights.size());
    for (const std::uint32_t special : specials) {  // all equal
      const std::uint32_t bits = special >> (size == 2 ? 16 : 0);
      for (std::size_t i = 0; i < kBlock; ++i) std::memcpy(weights.data() + i * size, &bits, size);
      EXPECT_LT(round_trip(type, weights), weights.size());
    }
  }
}

TEST(Codec, EverySizeOfABlockComesBack) {
  for (const DataType type : kSplitTypes) {
    const Bytes all = normal_weights(type, kBlock, 7), wide = wide_weights(type, kBlock, 8, 200);
    for (std::size_t count = 1; count <= kBlock; count += count < 300 || count + 300 > kBlock ? 1 : 97) {
      for (const Bytes* weights : {&all, &wide})
        EXPECT_LE(round_trip(type, slice(*weights, 0, count * bytes_of(type))),
                  model::max_block_bytes(model::split_of(type)));
    }
  }
}

TEST(Codec, BlocksWithManyEscapesOfBothKindsComeBack) {
  std::size_t packed = 0;
  for (const DataType type : kSplitTypes) {
    for (const int width : {8, 12, 22, 23, 24, 40, 100, 256}) {
      const Bytes weights = wide_weights(type, kBlock, static_cast<std::uint64_t>(width), width);
      packed += round_trip(type, weights) < weights.size() ? 1 : 0;
    }
  }
  EXPECT_GE(packed, 12U);  // otherwise this test tests nothing
}

TEST(Codec, WeightsLikeTrainedOnesReachTheirRatio) {
  const auto ratio = [](DataType type) {
    const Bytes weights = normal_weights(type, 64 * kBlock, 19);
    return static_cast<double>(weights.size()) / static_cast<double>(test::compress_tensor(type, weights).size());
  };
  EXPECT_GE(ratio(DataType::kBF16), 1.43);
  EXPECT_GE(ratio(DataType::kF16), 1.12);
  EXPECT_GE(ratio(DataType::kF32), 1.17);
}

TEST(Codec, RandomBitsGrowByLessThanATenthOfAPercent) {
  for (const DataType type : {DataType::kBF16, DataType::kF32, DataType::kI8, DataType::kF64}) {
    const Bytes weights = random_bits(std::size_t{64} * 16384, 23);
    const Bytes tensor = test::compress_tensor(type, weights);
    EXPECT_LE(tensor.size(), weights.size() + weights.size() / 1000) << data_type_name(type);
    EXPECT_EQ(test::decompress_tensor(tensor, "it"), weights);
  }
}

TEST(Codec, TensorsOfEverySizeComeBack) {
  for (const DataType type : {DataType::kBF16, DataType::kF16, DataType::kF32, DataType::kU8, DataType::kI64}) {
    const std::size_t size = bytes_of(type);
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{kBlock - 1}, std::size_t{kBlock},
                                    std::size_t{kBlock + 1}, std::size_t{3 * kBlock + 17}}) {
      Bytes weights = model::split_of(type) == Split::kBytes ? random_bits(count * size, count)
                                                             : normal_weights(type, count, count);
      EXPECT_EQ(test::decompress_tensor(test::compress_tensor(type, weights), "it"), weights) << count;
    }
  }
}

TEST(Codec, TheSameWeightsGiveTheSameBytes) {
  const Bytes weights = wide_weights(DataType::kBF16, 3 * kBlock, 5, 30);
  EXPECT_EQ(test::compress_tensor(DataType::kBF16, weights), test::compress_tensor(DataType::kBF16, weights));
}

TEST(Codec, AnyFlippedBitOfATensorIsFound) {
  for (const DataType type : kSplitTypes) {
    Bytes tensor =
        test::compress_tensor(type, wide_weights(type, kBlock / 8 + 5, 31, type == DataType::kF16 ? 10 : 40));
    ASSERT_LT(tensor.size(), (kBlock / 8 + 5) * bytes_of(type));
    for (std::size_t bit = 0; bit < 8 * tensor.size(); ++bit) {
      tensor[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
      EXPECT_THROW(test::decompress_tensor(tensor, "it"), Error) << data_type_name(type) << " bit " << bit;
      tensor[bit / 8] ^= static_cast<std::byte>(1U << bit % 8);
    }
    EXPECT_NO_THROW(test::decompress_tensor(tensor, "it"));
  }
}

TEST(Codec, TwoFlippedBitsAndSwappedWordsAreFound) {
  const Bytes tensor = test::compress_tensor(DataType::kBF16, normal_weights(DataType::kBF16, kBlock, 37));
  std::mt19937_64 random(41);
  for (int i = 0; i < 3000; ++i) {
    Bytes bad = tensor;
    if (i % 2 == 0) {
      const std::size_t a = random() % (8 * bad.size()), b = random() % (8 * bad.size());
      if (a == b) continue;
      bad[a / 8] ^= static_cast<std::byte>(1U << a % 8);
      bad[b / 8] ^= static_cast<std::byte>(1U << b % 8);
    } else {
      const std::size_t a = random() % (bad.size() / 4) * 4, b = random() % (bad.size() / 4) * 4;
      std::swap_ranges(bad.begin() + static_cast<std::ptrdiff_t>(a), bad.begin() + static_cast<std::ptrdiff_t>(a + 4),
                       bad.begin() + static_cast<std::ptrdiff_t>(b));
      if (bad == tensor) continue;
    }
    EXPECT_THROW(test::decompress_tensor(bad, "it"), Error) << i;
  }
}

TEST(Codec, FaultsNameTheTensorAndTheBlock) {
  const Bytes tensor = test::compress_tensor(DataType::kBF16, normal_weights(DataType::kBF16, 3 * kBlock, 43));
  const model::BlockTable table = model::BlockTable::parse(tensor, tensor.size(), "w");
  Bytes bad = tensor;
  bad[table.head_bytes() + table.begin(1) + 100] ^= std::byte{1};
  EXPECT_TRUE(fails([&] { test::decompress_tensor(bad, "'f': tensor 'w'"); }, ErrorCode::kParse,
                    {"'f': tensor 'w'", "block 1 of 3", "checksum"}));
  bad = tensor;
  bad[4] = std::byte{9};
  EXPECT_TRUE(fails([&] { test::decompress_tensor(bad, "w"); }, ErrorCode::kParse, {"version 9", "knows 1"}));
  bad = tensor;
  bad.resize(bad.size() - 16);
  EXPECT_TRUE(fails([&] { test::decompress_tensor(bad, "w"); }, ErrorCode::kParse, {"cut short"}));
  EXPECT_TRUE(fails([&] { test::decompress_tensor(Bytes(7), "w"); }, ErrorCode::kParse, {"7 bytes", "cut short"}));
  EXPECT_TRUE(
      fails([&] { test::decompress_tensor(Bytes(64), "w"); }, ErrorCode::kParse, {"it begins with 0x00000000"}));
  EXPECT_TRUE(
      fails([] { model::BlockTable(Split::kBf16, std::uint64_t{1} << 50); }, ErrorCode::kInvalidValue, {"at most"}));
  EXPECT_TRUE(
      fails([] { model::BlockTable(Split::kF32, std::uint64_t{1} << 35); }, ErrorCode::kInvalidValue, {"64 GiB"}));
}

// A block with a right checksum but any content: the decoder must not trust it. The guards and the address sanitizer
// see accesses outside.
TEST(Codec, HostileBlocksWriteNothingOutside) {
  std::mt19937_64 random(47);
  const Bytes weights[] = {wide_weights(DataType::kBF16, kBlock, 1, 40), wide_weights(DataType::kF16, kBlock, 1, 30),
                           wide_weights(DataType::kF32, kBlock, 1, 40)};
  int refused = 0, decoded = 0;
  for (int i = 0; i < 6000; ++i) {
    const std::size_t kind = random() % 3;
    const DataType type = kSplitTypes[kind];
    const Split split = model::split_of(type);
    const auto count = static_cast<std::uint32_t>(random() % 3 == 0 ? kBlock : 1 + random() % kBlock);
    Bytes block(model::max_block_bytes(split));
    block.resize(model::encode_block(split, weights[kind].data(), count, block.data()));
    for (std::uint64_t change = 1 + random() % 4; change > 0; --change) {
      const std::size_t at = random() % 2 == 0 ? 24 + random() % 8 : random() % block.size();
      if (at < block.size()) block[at] = static_cast<std::byte>(random() % 3 == 0 ? 0xFF : random());
    }
    if (random() % 4 == 0) block.resize(random() % (block.size() / 16 + 1) * 16);
    const std::size_t bytes = std::size_t{count} * bytes_of(type);
    Bytes into(bytes + 64, std::byte{0x5A});
    for (const CodecLoops loops : model::kAllCodecLoops) {
      if (!model::has_loops(loops)) continue;
      const std::uint64_t checksum = model::weighted_sum(block.data(), block.size()) + model::checksum_seed(0, count);
      const BlockFault fault =
          model::decode_block(split, block, {0, count, checksum}, into.data(), Stores::kCached, loops);
      if (fault == BlockFault::kNone) {
        ++decoded;
      } else {
        ++refused;
        if (loops == CodecLoops::kPortable) {
          ASSERT_TRUE(std::all_of(into.begin(), into.end(), [](std::byte b) { return b == std::byte{0x5A}; }));
        }
      }
      ASSERT_TRUE(std::all_of(into.end() - 64, into.end(), [](std::byte b) { return b == std::byte{0x5A}; })) << i;
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(decoded, 500);
}

}  // namespace
}  // namespace slip::test_codec
