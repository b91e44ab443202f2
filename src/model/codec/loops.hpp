// The loops of the CPU decoder, one set for each instruction set. The loops over escapes have one source, which is
// compiled with the instructions of each set.
#pragma once

#include <bit>
#include <cstring>

#include "model/codec/block.hpp"

namespace slip::model {

// Positions of the escapes of a block, in the order of their list (codec/block.hpp defines lanes and escapes).
// find_escapes() may write up to 16 entries more than there are escapes.
struct EscapePositions {
  std::uint16_t at[kMaxLanes * kLaneWeights + 16];
};

struct LoopSet {
  std::uint64_t (*sum)(const std::byte* block, std::size_t bytes) = nullptr;
  // Returns the number of escapes in the 3-bit plane `codes`.
  std::uint32_t (*find_escapes)(const std::byte* codes, std::uint32_t lanes, EscapePositions& positions) = nullptr;
  // By Split: expands all weights of a full packed block (256 lanes). Escapes get exponent 0. Null: the portable loop.
  using Expand = void(const std::byte* block, const BlockHeader& header, std::byte* into);
  Expand* expand[kSplits] = {};
};

// Null: this processor lacks the instructions.
const LoopSet* avx512_loops();
const LoopSet* avx2_loops();
const LoopSet* neon_loops();

// Inlined, so that these functions are compiled with the instructions of the function that calls them.
#define SLIP_CODEC_LOOP [[gnu::always_inline]] inline

SLIP_CODEC_LOOP std::uint32_t word_at(const std::byte* at) {
  std::uint32_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}

// escape_mask() of each lane; list_escapes() also uses one entry more.
struct EscapeMasks {
  std::uint32_t of[kMaxLanes + 1];
};
SLIP_CODEC_LOOP void find_masks(const std::byte* codes, std::uint32_t first, std::uint32_t lanes, EscapeMasks& masks) {
  for (std::uint32_t lane = first; lane < lanes; ++lane) {
    const std::byte* const at = codes + 4 * lane;
    masks.of[lane] = escape_mask(word_at(at), word_at(at + 4 * lanes), word_at(at + 8 * lanes));
  }
}

// Fills `positions` and returns the number of escapes. Takes two lanes at a time, which mostly have at most four
// escapes. It writes four without a branch on their number: the processor could not predict that branch.
SLIP_CODEC_LOOP std::uint32_t list_escapes(EscapeMasks& masks, std::uint32_t lanes, EscapePositions& positions) {
  masks.of[lanes] = 0;
  std::uint32_t count = 0;
  const std::uint32_t quarter = 8 * lanes;
  for (std::uint32_t lane = 0; lane < lanes; lane += 2) {
    std::uint64_t mask = masks.of[lane] | std::uint64_t{masks.of[lane + 1]} << 32;
    const auto found = static_cast<std::uint32_t>(std::popcount(mask));
    std::uint16_t* at = positions.at + count;
    const auto next = [&]() __attribute__((always_inline)) {
      const auto bit = static_cast<std::uint32_t>(std::countr_zero(mask)) &
                       63;  // without an escape left: 64 & 63, and the entry is not used
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
