// The tests of the kernel `decompress`, the same for every kind of device.
#pragma once

#include <gtest/gtest.h>

#include "support/compressed_tensor.hpp"
#include "support/decompressed.hpp"
#include "support/weights_to_compress.hpp"

namespace slip::test {

using Bytes = std::vector<std::byte>;

struct CompressedCase {
  std::string name;
  DataType type;
  Bytes weights;
};

// Weights of all types that give packed blocks, raw blocks, escapes of both kinds, and partly filled last blocks.
inline std::vector<CompressedCase> compressed_cases() {
  std::vector<CompressedCase> cases;
  for (const DataType type : {DataType::kBF16, DataType::kF16, DataType::kF32}) {
    const auto add = [&](const char* name, Bytes weights) {
      cases.push_back({std::string(data_type_name(type)) + " " + name, type, std::move(weights)});
    };
    add("normal", normal_weights(type, 20 * 8192, 1));
    add("normal, odd size", normal_weights(type, 3 * 8192 + 4567, 2));
    add("one weight", normal_weights(type, 1, 3));
    add("33 weights", normal_weights(type, 33, 4));
    add("far escapes", wide_weights(type, 2 * 8192 + 1001, 5, 40));
    add("many far escapes", wide_weights(type, 8192, 6, 256));
    add("random bits", random_bits((2 * 8192 + 3) * bytes_of(type), 7));
    add("zeros", Bytes(8192 * bytes_of(type)));
    Bytes mixed = normal_weights(type, 4 * 8192, 8);
    const Bytes noise = random_bits(8192 * bytes_of(type), 9);
    std::copy(noise.begin(), noise.end(), mixed.begin() + static_cast<std::ptrdiff_t>(8192 * bytes_of(type)));
    add("packed and raw", std::move(mixed));
  }
  Bytes all(65536 * 2);
  for (std::uint32_t i = 0; i < 65536; ++i) std::memcpy(all.data() + std::size_t{2} * i, &i, 2);
  cases.push_back({"BF16 every pattern", DataType::kBF16, all});
  cases.push_back({"F16 every pattern", DataType::kF16, all});
  for (std::size_t pass = 0; pass < 8; ++pass) {
    for (const DataType type : {DataType::kBF16, DataType::kF16}) {
      Bytes mixed = normal_weights(type, 65536, 10);
      for (std::size_t i = pass; i < 65536; i += 8) std::memcpy(mixed.data() + 2 * i, all.data() + 2 * i, 2);
      cases.push_back({std::string(data_type_name(type)) + " patterns among weights", type, std::move(mixed)});
    }
  }
  cases.push_back({"U8", DataType::kU8, random_bits(50001, 11)});
  return cases;
}

inline bool is_untouched(const Bytes& bytes, std::size_t from, std::size_t to) {
  return std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(from), bytes.begin() + static_cast<std::ptrdiff_t>(to),
                     [](std::byte byte) { return byte == kUntouched; });
}

inline void expect_bits_come_back(const Device& device) {
  for (const CompressedCase& one : compressed_cases()) {
    const Bytes tensor = compress_tensor(one.type, one.weights);
    const model::BlockTable table = model::BlockTable::parse(tensor, tensor.size(), one.name);
    const std::span<const std::byte> blocks = std::span(tensor).subspan(table.head_bytes());
    for (const DecompressWay way : {DecompressWay{}, DecompressWay{.verify = false}, DecompressWay{.shift = 4}}) {
      const Decompressed found = decompress_on(device, table, blocks, 0, table.blocks(), way);
      EXPECT_FALSE(found.report) << one.name << ": " << model::fault_text(found.report->fault);
      EXPECT_TRUE(std::equal(one.weights.begin(), one.weights.end(), found.weights.begin())) << one.name;
      EXPECT_TRUE(is_untouched(found.weights, one.weights.size(), found.weights.size())) << one.name;
    }
    if (table.blocks() < 3) continue;
    const Decompressed part = decompress_on(device, table, blocks, 1, 2);
    const auto from = one.weights.begin() + static_cast<std::ptrdiff_t>(table.weights_begin(1));
    EXPECT_FALSE(part.report) << one.name;
    EXPECT_TRUE(std::equal(part.weights.begin(), part.weights.end() - kDecompressGuard, from)) << one.name;
  }
}

// Flips bits all over the blocks: each is reported, and none of the block's weights is written.
inline void expect_damage_is_reported(const Device& device) {
  std::mt19937_64 random(13);
  for (const DataType type : {DataType::kBF16, DataType::kF16, DataType::kF32}) {
    const Bytes weights = wide_weights(type, 3 * 8192 + 100, 14, type == DataType::kF16 ? 10 : 40);
    const Bytes tensor = compress_tensor(type, weights);
    const model::BlockTable table = model::BlockTable::parse(tensor, tensor.size(), "it");
    for (int i = 0; i < 60; ++i) {
      Bytes blocks(tensor.begin() + static_cast<std::ptrdiff_t>(table.head_bytes()), tensor.end());
      const std::size_t block = random() % table.blocks();
      // Headers have the counts, whose damage is the most dangerous.
      const std::size_t at = random() % 3 == 0 ? random() % 32 : random() % table.block_bytes(block);
      blocks[table.begin(block) + at] ^= static_cast<std::byte>(1U << random() % 8);
      const Decompressed found = decompress_on(device, table, blocks, 0, table.blocks());
      ASSERT_TRUE(found.report) << data_type_name(type) << " block " << block << " byte " << at;
      EXPECT_EQ(found.report->block, block);
      EXPECT_EQ(found.report->fault, model::BlockFault::kChecksum);
      const std::size_t from = table.weights_begin(block);
      const std::size_t to = std::min(table.weights_begin(block + 1), std::uint64_t{weights.size()});
      EXPECT_TRUE(is_untouched(found.weights, from, to));
      EXPECT_TRUE(
          std::equal(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(from), found.weights.begin()));
      EXPECT_TRUE(std::equal(weights.begin() + static_cast<std::ptrdiff_t>(to), weights.end(),
                             found.weights.begin() + static_cast<std::ptrdiff_t>(to)));
      EXPECT_TRUE(is_untouched(found.weights, weights.size(), found.weights.size()));
    }
  }
}

// Damaged blocks with right checksums: the kernel must not write outside, and finds what the host's decoder finds.
inline void expect_hostile_blocks_do_no_harm(const Device& device) {
  std::mt19937_64 random(15);
  int refused = 0, decoded = 0;
  for (int i = 0; i < 300; ++i) {
    const DataType type = std::array{DataType::kBF16, DataType::kF16, DataType::kF32}[random() % 3];
    const std::size_t count = 8192 + 1 + random() % 8000;
    const Bytes tensor = compress_tensor(type, wide_weights(type, count, 16, type == DataType::kF16 ? 10 : 40));
    const model::BlockTable good = model::BlockTable::parse(tensor, tensor.size(), "it");
    model::BlockTable table(good.split(), good.weights());
    Bytes blocks(tensor.begin() + static_cast<std::ptrdiff_t>(good.head_bytes()), tensor.end());
    for (std::size_t block = 0; block < good.blocks(); ++block) {
      std::byte* const begin = blocks.data() + good.begin(block);
      const std::size_t at = random() % 2 == 0 ? 24 + random() % 8 : random() % good.block_bytes(block);
      begin[at] = static_cast<std::byte>(random() % 3 == 0 ? 0xFF : random());
      table.add(good.block_bytes(block), model::weighted_sum(begin, good.block_bytes(block)) +
                                             model::checksum_seed(block, good.id(block).weights));
    }
    const Decompressed found = decompress_on(device, table, blocks, 0, table.blocks());
    std::optional<std::size_t> first_bad;
    for (std::size_t block = 0; block < table.blocks(); ++block) {
      Bytes into(std::size_t{table.id(block).weights} * bytes_of(type));
      const std::span part(blocks.data() + table.begin(block), table.block_bytes(block));
      const model::BlockFault fault = model::decode_block(table.split(), part, table.id(block), into.data());
      if (fault != model::BlockFault::kNone && !first_bad) first_bad = block;
      ++(fault == model::BlockFault::kNone ? decoded : refused);
      if (fault == model::BlockFault::kNone) {
        EXPECT_TRUE(std::equal(into.begin(), into.end(),
                               found.weights.begin() + static_cast<std::ptrdiff_t>(table.weights_begin(block))));
      }
    }
    EXPECT_EQ(found.report.has_value(), first_bad.has_value()) << i;
    if (found.report && first_bad) {
      EXPECT_EQ(found.report->block, *first_bad) << i;
    }
    EXPECT_TRUE(is_untouched(found.weights, found.weights.size() - kDecompressGuard, found.weights.size()));
  }
  EXPECT_GT(refused, 20);
  EXPECT_GT(decoded, 20);
}

}  // namespace slip::test
