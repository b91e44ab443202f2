// A block of compressed weights: its layout, which the GPU decoder uses, too, and its encoder and decoder on the host.
// docs/compression.md explains why the layout is so. All functions may be called from any thread; they allocate
// nothing.
//
// The exponents of trained weights have about 2.6 bits of information in 8. So a weight is split: its exponent becomes
// a code of 3 bits, and all other bits are kept as they are. Codes 0 to 6 stand for the 7 most frequent exponents of
// the block. Code 7 is an escape: the exponent is one of the next 15, and a list in the block has 4 bits that name it.
// If those 4 bits are 15, it is a far escape: a second list has the exponent itself, 8 bits.
//
// All codes have the same size, so all weights of a block are decoded in parallel. Only an escape needs to know how
// many escapes come before it: that is its index in the list.
//
// A block has up to 8192 weights. 32 of them form a lane, which one GPU thread decodes. With `lanes` lanes, lane t has
// weights q * 8 * lanes + 8 * t + i for quarters q = 0 to 3 and i = 0 to 7. So neighbouring threads access neighbouring
// bytes. The last lane is padded with zero bits and code 0. All numbers are little-endian. A packed block:
//
//   32 bytes          BlockHeader
//   32 * lanes bytes  `rest`: 8 bits of each weight, in the order of the weights
//   `more`            bf16: nothing; f16: a 3-bit plane (12 * lanes bytes); f32: the 16 low bits of each weight
//   12 * lanes bytes  the 3-bit plane of the exponent codes
//   4 bits / escape   the digits of the escapes, lane by lane, within a lane in the order of escape_mask()
//   1 byte / far      exponents of the far escapes, in the same order; then zero bytes up to a multiple of 16
//
// A 3-bit plane has three 32-bit words for each lane: P0 of all lanes, then P1, then P2. Digit i (4 bits) of Pq has the
// code of weight i in quarter q in its low 3 bits. Its top bit is bit q of the code of weight i in quarter 3. So a GPU
// gets eight codes with one AND and looks up four of them with one byte permutation.
//
// A block that packing would not make smaller is stored raw. Its size shows which: a packed block is smaller than
// raw_block_bytes().
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "slip/data_type.hpp"

#if defined(__CUDACC__)
#define SLIP_CODEC_INLINE __host__ __device__ constexpr
#else
#define SLIP_CODEC_INLINE constexpr
#endif

namespace slip::model {

inline constexpr std::uint32_t kCodecMagic = 0x43504C53;  // "SLPC"
inline constexpr std::uint8_t kCodecVersion = 1;

// The parts into which a weight of a type is divided.
enum class Split : std::uint8_t {
  kBytes,  // none: every block is stored raw
  kBf16,   // rest: sign, 7 mantissa bits
  kF16,    // rest: 8 low mantissa bits; the 3-bit plane: sign, 2 high mantissa bits
  kF32,    // rest: sign, 7 high mantissa bits; 16 low mantissa bits
};
inline constexpr std::uint8_t kSplits = 4;  // number of enumerators

inline constexpr std::uint32_t kLaneWeights = 32;
inline constexpr std::uint32_t kMaxLanes = 256;
inline constexpr std::uint32_t kTableExponents = 7;    // codes 0 to 6
inline constexpr std::uint32_t kEscape = 7;            // the code of an escape
inline constexpr std::uint32_t kSecondExponents = 15;  // 4-bit values 0 to 14
inline constexpr std::uint32_t kFarEscape = 15;        // the 4-bit value of a far escape
inline constexpr std::uint32_t kBlockAlignment = 16;   // sizes and offsets of blocks

struct BlockHeader {
  std::uint8_t first[8];    // exponents of codes 0 to 6, and a zero
  std::uint8_t second[16];  // exponents of 4-bit values 0 to 14, and a zero
  std::uint16_t escapes;    // their number
  std::uint16_t far;        // number of far escapes
  std::uint32_t zero;
};
static_assert(sizeof(BlockHeader) == 32);

SLIP_CODEC_INLINE std::uint32_t weight_bytes(Split split) {
  return split == Split::kBytes ? 1 : split == Split::kF32 ? 4 : 2;
}
SLIP_CODEC_INLINE std::uint32_t block_weights(Split split) { return split == Split::kBytes ? 16384 : 8192; }
SLIP_CODEC_INLINE std::uint32_t lanes_of(std::uint32_t weights) { return (weights + kLaneWeights - 1) / kLaneWeights; }
SLIP_CODEC_INLINE std::uint32_t padded(std::uint32_t bytes) {
  return (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
}

// Size of a raw block.
SLIP_CODEC_INLINE std::uint32_t raw_block_bytes(Split split, std::uint32_t weights) {
  return padded(weights * weight_bytes(split));
}

// A packed block: its number of lanes, and the offsets of its parts.
struct BlockLayout {
  std::uint32_t lanes, more, codes, escapes;
};
SLIP_CODEC_INLINE BlockLayout layout_of(Split split, std::uint32_t weights) {
  const std::uint32_t lanes = lanes_of(weights);
  const std::uint32_t more = static_cast<std::uint32_t>(sizeof(BlockHeader)) + 32 * lanes;
  const std::uint32_t codes = more + (split == Split::kF16 ? 12 * lanes : split == Split::kF32 ? 64 * lanes : 0);
  return {lanes, more, codes, codes + 12 * lanes};
}
SLIP_CODEC_INLINE std::uint32_t packed_block_bytes(const BlockLayout& layout, std::uint32_t escapes,
                                                   std::uint32_t far) {
  return padded(layout.escapes + (escapes + 1) / 2 + far);
}

// The escapes of a lane, from its three words of the plane: bit 4 * i + q is set if weight i of quarter q is an escape.
// The lists have the escapes of a lane in the order of these bits, lowest first.
SLIP_CODEC_INLINE std::uint32_t escape_mask(std::uint32_t p0, std::uint32_t p1, std::uint32_t p2) {
  constexpr std::uint32_t kOnes = 0x11111111;
  const std::uint32_t x0 = p0 & p0 >> 1 & p0 >> 2 & kOnes, x1 = p1 & p1 >> 1 & p1 >> 2 & kOnes;
  const std::uint32_t x2 = p2 & p2 >> 1 & p2 >> 2 & kOnes, x3 = (p0 & p1 & p2) >> 3 & kOnes;
  return x0 | x1 << 1 | x2 << 2 | x3 << 3;
}
// The eight codes of a lane in quarter 3, 4 bits each.
SLIP_CODEC_INLINE std::uint32_t fourth_word(std::uint32_t p0, std::uint32_t p1, std::uint32_t p2) {
  return (p0 >> 3 & 0x11111111U) | (p1 >> 2 & 0x22222222U) | (p2 >> 1 & 0x44444444U);
}

// A weight from its parts. `more`: f16: the value of its 3-bit plane; f32: its 16 low bits.
SLIP_CODEC_INLINE std::uint32_t join_bf16(std::uint32_t exponent, std::uint32_t rest) {
  return (rest & 0x80U) << 8 | exponent << 7 | (rest & 0x7FU);
}
SLIP_CODEC_INLINE std::uint32_t join_f16(std::uint32_t exponent, std::uint32_t rest, std::uint32_t more) {
  return (more & 4U) << 13 | (exponent & 0x1FU) << 10 | (more & 3U) << 8 | rest;
}
SLIP_CODEC_INLINE std::uint32_t join_f32(std::uint32_t exponent, std::uint32_t rest, std::uint32_t more) {
  return join_bf16(exponent, rest) << 16 | more;
}

// The checksum of a block is the sum of word[i] * checksum_factor(i) modulo 2^64 over its 32-bit words, plus
// checksum_seed(). Factors are odd, distinct and below 2^32. So one changed word always changes the sum, and so do two
// flipped bits anywhere. Other damage is missed with a probability of about 2^-32 or less. Threads may add up the words
// in any order.
inline constexpr std::uint32_t kFirstFactor = 0x9E3779B1, kFactorStep = 0x85EBCA6E;  // odd; twice an odd number
SLIP_CODEC_INLINE std::uint32_t checksum_factor(std::uint32_t word) { return kFirstFactor + kFactorStep * word; }
// Makes a checksum depend on the position of the block and its number of weights.
SLIP_CODEC_INLINE std::uint64_t checksum_seed(std::uint64_t block, std::uint32_t weights) {
  return (block + 1) * 0x9E3779B97F4A7C15U + weights * 0xC2B2AE3D27D4EB4FU;
}

// The encoder and the decoder on the host.

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

// The checksum of a block without its seed (checksum_seed()). `bytes` is a multiple of 16.
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
