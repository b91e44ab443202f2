// A whole compressed tensor in memory: compressed and decompressed in one call.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/codec/tensor.hpp"

namespace slip::test {

// Types without a Split are stored as bytes. `weights` has whole weights.
inline std::vector<std::byte> compress_tensor(DataType type, std::span<const std::byte> weights) {
  const model::Split split = model::split_of(type);
  model::BlockTable table(split, weights.size() / model::weight_bytes(split));
  const model::EncodedBlocks blocks = model::encode_blocks(table, 0, table.blocks(), weights);
  std::vector<std::byte> result = table.head();
  result.insert(result.end(), blocks.data(), blocks.data() + blocks.size());
  return result;
}

// `what` names the tensor in errors.
inline std::vector<std::byte> decompress_tensor(std::span<const std::byte> tensor, const std::string& what) {
  const model::BlockTable table = model::BlockTable::parse(tensor, tensor.size(), what);
  std::vector<std::byte> result(table.weights_bytes());
  model::decode_blocks(table, 0, table.blocks(), tensor.subspan(table.head_bytes()), result, what);
  return result;
}

}  // namespace slip::test
