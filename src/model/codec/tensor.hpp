// A compressed tensor: a head with the table of its blocks, then the blocks. Any range of blocks can be decoded by
// itself, on the host (decode_blocks) or on a device (codec/kernel.hpp).
//
//   32 bytes            magic, version, Split, number of weights, bytes of the tensor, checksum of the head
//   8 bytes per block   its checksum (codec/block.hpp)
//   4 bytes per block   its end, in units of 16 bytes from the end of the head
//   zero bytes up to a multiple of 16, then the blocks
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/codec/block.hpp"
#include "slip/error.hpp"

namespace slip::model {

class BlockTable {
 public:
  BlockTable() = default;
  // An empty table, for an encoder: it calls add() for each block in order. Throws kInvalidValue above 2^40 weights.
  BlockTable(Split split, std::uint64_t weights, Here here = Here::at());
  void add(std::size_t bytes, std::uint64_t checksum);

  // The table of a compressed tensor of `bytes` bytes. `head`: its first bytes, at least head_bytes(). `what`: names
  // the tensor in errors. Throws kParse if the head was changed or describes a tensor of another size.
  static BlockTable parse(std::span<const std::byte> head, std::uint64_t bytes, const std::string& what,
                          Here here = Here::at());
  // head_bytes() of a compressed tensor of `bytes` bytes, from its first kFixedBytes bytes. Throws kParse like parse().
  static constexpr std::size_t kFixedBytes = 32;
  static std::size_t head_bytes_of(std::span<const std::byte> fixed, std::uint64_t bytes, const std::string& what,
                                   Here here = Here::at());

  Split split() const { return split_; }
  std::uint64_t weights() const { return weights_; }
  std::uint64_t weights_bytes() const { return weights_ * weight_bytes(split_); }  // decoded
  std::size_t blocks() const { return count_; }
  std::size_t head_bytes() const { return head_bytes_of(count_); }
  // Size of the compressed tensor. REQUIRES: all blocks are added.
  std::uint64_t bytes() const { return head_bytes() + begin(checksums_.size()); }

  // The offset of a block from the end of the head; begin(blocks()) is the end of the last block.
  std::uint64_t begin(std::size_t block) const {
    return block == 0 ? 0 : std::uint64_t{ends_[block - 1]} * kBlockAlignment;
  }
  std::size_t block_bytes(std::size_t block) const { return begin(block + 1) - begin(block); }
  bool is_raw(std::size_t block) const { return block_bytes(block) == raw_block_bytes(split_, id(block).weights); }
  // The offset of a block's weights in the decoded tensor.
  std::uint64_t weights_begin(std::size_t block) const {
    return std::uint64_t{block} * block_weights(split_) * weight_bytes(split_);
  }
  BlockId id(std::size_t block) const;

  std::span<const std::uint64_t> checksums() const { return checksums_; }
  std::span<const std::uint32_t> ends() const { return ends_; }
  std::vector<std::byte> head() const;  // head_bytes() bytes

 private:
  static std::uint64_t count_of(Split split, std::uint64_t weights) {
    return weights / block_weights(split) + (weights % block_weights(split) != 0 ? 1 : 0);
  }
  static std::size_t head_bytes_of(std::size_t blocks) { return (kFixedBytes + 12 * blocks + 15) / 16 * 16; }

  Split split_ = Split::kBytes;
  std::uint64_t weights_ = 0;
  std::size_t count_ = 0;  // blocks of the whole tensor; an encoder may have added fewer
  std::vector<std::uint64_t> checksums_;
  std::vector<std::uint32_t> ends_;  // offsets from the end of the head, in units of kBlockAlignment
};

// Encoded blocks, one after the other. The constructor does not write the memory, so the threads that encode share the
// page faults.
class EncodedBlocks {
 public:
  EncodedBlocks() = default;
  explicit EncodedBlocks(std::size_t max_bytes) : memory_(std::make_unique_for_overwrite<std::byte[]>(max_bytes)) {}
  std::byte* data() const { return memory_.get(); }
  std::size_t size() const { return size_; }
  void set_size(std::size_t bytes) { size_ = bytes; }
  operator std::span<const std::byte>() const { return {memory_.get(), size_}; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t size_ = 0;
};

// Encodes blocks [first, first + count) on all cores. `weights` has exactly the bytes of their weights. Adds the blocks
// to the table and returns their bytes. Decodes every block again and compares it with its weights. Throws
// kInvalidValue if they differ: then the memory or the encoder is faulty.
EncodedBlocks encode_blocks(BlockTable& table, std::size_t first, std::size_t count, std::span<const std::byte> weights,
                            Here here = Here::at());

// Decodes blocks [first, first + count) into `into`, on all cores. `blocks` has exactly the bytes of these blocks, and
// `into` room for exactly their weights. Throws kParse, which names `what`, the block and its fault.
void decode_blocks(const BlockTable& table, std::size_t first, std::size_t count, std::span<const std::byte> blocks,
                   std::span<std::byte> into, const std::string& what, Here here = Here::at());

}  // namespace slip::model
