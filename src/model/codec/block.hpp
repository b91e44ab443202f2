// Encodes and decodes one block of weights on the host (codec/layout.hpp has the format). All functions may be called
// from any thread; they allocate nothing.
#pragma once

#include <span>

#include "model/codec/layout.hpp"

namespace slip::model {

Split split_of(DataType type);

// Size of the largest block.
inline std::size_t max_block_bytes(Split split) { return raw_block_bytes(split, block_weights(split)); }

// Encodes `weights` weights (at most block_weights(split)) as one block, and returns its size. `bytes` has
// weights * weight_bytes(split) bytes, and `into` room for max_block_bytes(split). Neither needs an alignment.
std::size_t encode_block(Split split, const std::byte* bytes, std::uint32_t weights, std::byte* into);

enum class BlockFault : std::uint8_t {
  kNone,
  kSize,      // the size contradicts the number of weights and escapes
  kChecksum,  // the bytes were changed
  kEscapes,   // the lists of escapes contradict the codes
};
const char* fault_text(BlockFault fault);

// What decode_block() must know about a block in addition to its bytes.
struct BlockId {
  std::uint64_t index = 0;  // in its tensor
  std::uint32_t weights = 0;
  std::uint64_t checksum = 0;
};

// The implementations of the decoder's loops, one for each instruction set.
enum class CodecLoops : std::uint8_t { kPortable, kAvx2, kAvx512, kNeon };
inline constexpr CodecLoops kAllCodecLoops[] = {CodecLoops::kPortable, CodecLoops::kAvx2, CodecLoops::kAvx512,
                                                CodecLoops::kNeon};
bool has_loops(CodecLoops loops);  // this processor can run them
const char* loops_name(CodecLoops loops);
CodecLoops best_loops();  // the fastest that this processor can run

// The checksum of a block without its seed (codec/layout.hpp). `bytes` is a multiple of 16.
std::uint64_t weighted_sum(const std::byte* block, std::size_t bytes, CodecLoops loops = best_loops());

// How decoded weights are stored. kPastCaches: with non-temporal stores, on a processor that has them. They do not read
// the memory that they overwrite into the cache, which is faster if the decoded weights are larger than a cache.
enum class Stores : std::uint8_t { kCached, kPastCaches };
constexpr Stores stores_for(std::size_t bytes) {
  return bytes < std::size_t{16} << 20 ? Stores::kCached : Stores::kPastCaches;
}

// Writes the weights to `into`, which has room for exactly them. If the block has a fault, writes nothing and returns
// the fault. The block may contain any bytes: no byte outside of it is read. REQUIRES: has_loops(loops).
BlockFault decode_block(Split split, std::span<const std::byte> block, const BlockId& id, std::byte* into,
                        Stores stores = Stores::kCached, CodecLoops loops = best_loops());

}  // namespace slip::model
