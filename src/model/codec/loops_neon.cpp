// The loops of the CPU decoder for aarch64 processors, all of which have NEON.
#include "model/codec/loops.hpp"

#if defined(__aarch64__)

#include <arm_neon.h>

namespace slip::model {
namespace {

constexpr std::size_t kPlane = std::size_t{4} * kMaxLanes;    // bytes of P0, P1 or P2 in a full block
constexpr std::size_t kQuarter = std::size_t{8} * kMaxLanes;  // weights

uint8x16_t load(const std::byte* at) { return vld1q_u8(reinterpret_cast<const std::uint8_t*>(at)); }
void store(std::byte* at, uint8x16_t value) { vst1q_u8(reinterpret_cast<std::uint8_t*>(at), value); }

std::uint64_t sum(const std::byte* block, std::size_t bytes) {
  const std::uint32_t first[4] = {checksum_factor(0), checksum_factor(1), checksum_factor(2), checksum_factor(3)};
  uint32x4_t factors = vld1q_u32(first);
  const uint32x4_t step = vdupq_n_u32(4 * kFactorStep);
  uint64x2_t low = vdupq_n_u64(0), high = low;
  for (std::size_t at = 0; at < bytes; at += 16) {
    const uint32x4_t words = vreinterpretq_u32_u8(load(block + at));
    low = vmlal_u32(low, vget_low_u32(words), vget_low_u32(factors));
    high = vmlal_high_u32(high, words, factors);
    factors = vaddq_u32(factors, step);
  }
  return vaddvq_u64(vaddq_u64(low, high));
}

std::uint32_t find_escapes(const std::byte* codes, std::uint32_t lanes, EscapePositions& positions) {
  EscapeMasks masks;
  std::uint32_t lane = 0;
  const uint32x4_t ones = vdupq_n_u32(0x11111111);
  for (; lane + 4 <= lanes; lane += 4) {
    const auto word = [&](std::uint32_t q) { return vreinterpretq_u32_u8(load(codes + 4 * (q * lanes + lane))); };
    const auto sevens = [&](uint32x4_t p) {
      return vandq_u32(vandq_u32(p, vshrq_n_u32(p, 1)), vandq_u32(vshrq_n_u32(p, 2), ones));
    };
    const uint32x4_t p0 = word(0), p1 = word(1), p2 = word(2);
    const uint32x4_t x3 = vandq_u32(vshrq_n_u32(vandq_u32(vandq_u32(p0, p1), p2), 3), ones);
    const uint32x4_t low = vorrq_u32(sevens(p0), vshlq_n_u32(sevens(p1), 1));
    vst1q_u32(masks.of + lane, vorrq_u32(low, vorrq_u32(vshlq_n_u32(sevens(p2), 2), vshlq_n_u32(x3, 3))));
  }
  find_masks(codes, lane, lanes, masks);
  return list_escapes(masks, lanes, positions);
}

// The digits of all four quarters for four lanes.
struct Planes {
  uint8x16_t quarter[4];
};
Planes load_planes(const std::byte* plane, std::size_t at) {
  const uint8x16_t p0 = load(plane + at), p1 = load(plane + kPlane + at), p2 = load(plane + 2 * kPlane + at);
  const uint8x16_t last =
      vorrq_u8(vorrq_u8(vandq_u8(vshrq_n_u8(p0, 3), vdupq_n_u8(0x11)), vandq_u8(vshrq_n_u8(p1, 2), vdupq_n_u8(0x22))),
               vandq_u8(vshrq_n_u8(p2, 1), vdupq_n_u8(0x44)));
  return {{p0, p1, p2, last}};
}

// Looks up 32 digits in a table of 8 bytes and puts the results in the order of the weights.
uint8x16x2_t look_up(uint8x16_t table, uint8x16_t digits) {
  const uint8x16_t seven = vdupq_n_u8(7);
  return vzipq_u8(vqtbl1q_u8(table, vandq_u8(digits, seven)),
                  vqtbl1q_u8(table, vandq_u8(vshrq_n_u8(digits, 4), seven)));
}

uint8x16_t table_of(const std::uint8_t* eight) {
  const uint8x8_t half = vld1_u8(eight);
  return vcombine_u8(half, half);
}

// 16 bf16, or the upper halves of 16 f32: the low 8 and the high 8 of them.
uint8x16x2_t join_bytes(uint8x16_t exponents, uint8x16_t rest) {
  const uint8x16_t sign = vdupq_n_u8(0x80);
  return vzipq_u8(vbslq_u8(sign, vshlq_n_u8(exponents, 7), rest), vbslq_u8(sign, rest, vshrq_n_u8(exponents, 1)));
}

template <Split kSplit>
void expand(const std::byte* block, const BlockHeader& header, std::byte* into) {
  constexpr BlockLayout kLayout = layout_of(kSplit, kMaxLanes * kLaneWeights);
  constexpr bool kHalf = kSplit == Split::kF16;  // the exponent's place in the high byte of an f16
  const std::byte* const rest = block + sizeof(BlockHeader);
  const std::byte* const more = block + kLayout.more;
  constexpr std::uint8_t kSignAndMantissa[8] = {0, 1, 2, 3, 0x80, 0x81, 0x82, 0x83};
  std::uint8_t first[8];
  for (int i = 0; i < 8; ++i)
    first[i] = static_cast<std::uint8_t>(kHalf ? (header.first[i] & 0x1F) << 2 : header.first[i]);
  const uint8x16_t table = table_of(first), sign_and_mantissa = table_of(kSignAndMantissa);
  for (std::size_t at = 0; at < kPlane; at += 16) {
    const Planes codes = load_planes(block + kLayout.codes, at);
    Planes planes{};
    if constexpr (kHalf) planes = load_planes(more, at);
    for (std::size_t q = 0; q < 4; ++q) {
      const uint8x16x2_t exponents = look_up(table, codes.quarter[q]);
      const uint8x16x2_t others = look_up(sign_and_mantissa, planes.quarter[q]);
      for (std::size_t half = 0; half < 2; ++half) {
        const std::size_t weight = q * kQuarter + 2 * at + 16 * half;
        const uint8x16_t low = load(rest + weight);
        const uint8x16x2_t words = kHalf ? vzipq_u8(low, vorrq_u8(exponents.val[half], others.val[half]))
                                         : join_bytes(exponents.val[half], low);
        for (std::size_t part = 0; part < 2; ++part) {
          const std::size_t from = weight + 8 * part;
          if constexpr (kSplit == Split::kF32) {
            const uint16x8x2_t whole =
                vzipq_u16(vreinterpretq_u16_u8(load(more + 2 * from)), vreinterpretq_u16_u8(words.val[part]));
            store(into + 4 * from, vreinterpretq_u8_u16(whole.val[0]));
            store(into + 4 * from + 16, vreinterpretq_u8_u16(whole.val[1]));
          } else {
            store(into + 2 * from, words.val[part]);
          }
        }
      }
    }
  }
}

}  // namespace

const LoopSet* neon_loops() {
  static constexpr LoopSet kLoops{
      sum, find_escapes, {nullptr, expand<Split::kBf16>, expand<Split::kF16>, expand<Split::kF32>}};
  return &kLoops;
}

}  // namespace slip::model

#else

namespace slip::model {
const LoopSet* neon_loops() { return nullptr; }
}  // namespace slip::model

#endif
