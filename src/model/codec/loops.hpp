// The loops of the CPU decoder, one set for each kind of processor. The loops over escapes are the same source for all
// of them, compiled with the instructions of each.
#pragma once

#include <bit>
#include <cstring>

#include "model/codec/block.hpp"

namespace slip::model {

// Positions of the escapes of a block, in the order of their list. The loops write up to 15 too many.
struct EscapePositions {
  std::uint16_t at[kMaxLanes * kLaneWeights + 16];
};

struct LoopSet {
  std::uint64_t (*sum)(const std::byte* block, std::size_t bytes) = nullptr;
  // Returns the number of escapes in the 3-bit plane `codes`.
  std::uint32_t (*find_escapes)(const std::byte* codes, std::uint32_t lanes, EscapePositions& positions) = nullptr;
  // By Split: expands all weights of a full packed block (256 lanes). Escapes get exponent 0. Null: the portable loop.
  using Spread = void(const std::byte* block, const BlockHeader& header, std::byte* into);
  Spread* spread[kSplits] = {};
};

// Null: not for this processor.
const LoopSet* avx512_loops();
const LoopSet* avx2_loops();
const LoopSet* neon_loops();

// Inlined into a function for certain instructions, these compile to them.
#define SLIP_CODEC_LOOP [[gnu::always_inline]] inline

SLIP_CODEC_LOOP std::uint32_t word_at(const std::byte* at) {
  std::uint32_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// The masks of all lanes (escape_mask).
struct EscapeMasks {
  std::uint32_t of[kMaxLanes + 1];
};
SLIP_CODEC_LOOP void find_masks(const std::byte* codes, std::uint32_t first, std::uint32_t lanes, EscapeMasks& masks) {
  for (std::uint32_t lane = first; lane < lanes; ++lane) {
    const std::byte* const at = codes + 4 * lane;
    masks.of[lane] = escape_mask(word_at(at), word_at(at + 4 * lanes), word_at(at + 8 * lanes));
  }
}

// Two lanes at a time. Most of them have at most four escapes: those are written without a branch on their number,
// because the processor cannot predict it.
SLIP_CODEC_LOOP std::uint32_t list_escapes(EscapeMasks& masks, std::uint32_t lanes, EscapePositions& positions) {
  masks.of[lanes] = 0;
  std::uint32_t count = 0;
  const std::uint32_t quarter = 8 * lanes;
  for (std::uint32_t lane = 0; lane < lanes; lane += 2) {
    std::uint64_t mask = masks.of[lane] | std::uint64_t{masks.of[lane + 1]} << 32;
    const auto found = static_cast<std::uint32_t>(std::popcount(mask));
    std::uint16_t* at = positions.at + count;
    const auto next = [&]() __attribute__((always_inline)) {
      const auto bit = static_cast<std::uint32_t>(std::countr_zero(mask)) & 63;  // 64 if none is left: unused
      mask &= mask - 1;
      return static_cast<std::uint16_t>((bit & 3) * quarter + 8 * lane + bit / 4);
    };
    for (int i = 0; i < 4; ++i) at[i] = next();
    for (std::uint32_t i = 4; i < found; ++i) at[i] = next();
    count += found;
  }
  return count;
}

}  // namespace slip::model
