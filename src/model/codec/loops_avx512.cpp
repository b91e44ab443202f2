// The loops of the CPU decoder for x86 processors with AVX-512 VBMI and VBMI2 (Ice Lake, Zen 4 and later).
// codec/block.hpp defines the layout: quarters, lanes, planes and digits.
//
// One VPMULTISHIFTQB moves the eight digits of each lane to bytes, for 8 lanes at once. One VPERMB then looks up 64
// codes. VPERMB uses the low 6 bits of an index. The table of 8 entries is repeated eight times, so the bits above a
// 3-bit code need no mask.
#include "model/codec/loops.hpp"

#if defined(__x86_64__)

// g++ 12 warns of uninitialised values in its own functions for AVX-512 (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

namespace slip::model {
namespace {

#define SLIP_AVX512_TARGET "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,bmi,popcnt"
#define SLIP_AVX512 [[gnu::target(SLIP_AVX512_TARGET)]]
#define SLIP_AVX512_INLINE [[gnu::target(SLIP_AVX512_TARGET), gnu::always_inline]] inline

constexpr std::size_t kPlaneBytes = std::size_t{4} * kMaxLanes;      // P0, P1 or P2 of a full block
constexpr std::size_t kQuarterWeights = std::size_t{8} * kMaxLanes;  // of a full block
constexpr int kSelect = 0xCA;  // of VPTERNLOG: the bits of b where a has ones, else the bits of c

SLIP_AVX512_INLINE __m512i load(const void* at) { return _mm512_loadu_si512(at); }
SLIP_AVX512_INLINE __m512i every_byte(int byte) { return _mm512_set1_epi8(static_cast<char>(byte)); }
SLIP_AVX512_INLINE __m512i select(__m512i mask, __m512i a, __m512i b) {
  return _mm512_ternarylogic_epi64(mask, a, b, kSelect);
}

SLIP_AVX512 std::uint64_t sum(const std::byte* block, std::size_t bytes) {
  __m512i even_factors =
      _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(kFirstFactor)),
                       _mm512_mullo_epi32(_mm512_set1_epi32(static_cast<int>(kFactorStep)),
                                          _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
  __m512i odd_factors = _mm512_srli_epi64(even_factors, 32);
  const __m512i step = _mm512_set1_epi32(static_cast<int>(16 * kFactorStep));
  __m512i even = _mm512_setzero_si512(), odd = even;
  for (std::size_t at = 0; at < bytes; at += 64) {
    const std::size_t words = (bytes - at) / 4;
    const __m512i some = words >= 16 ? load(block + at)
                                     : _mm512_maskz_loadu_epi32(static_cast<__mmask16>((1U << words) - 1), block + at);
    even = _mm512_add_epi64(even, _mm512_mul_epu32(some, even_factors));
    odd = _mm512_add_epi64(odd, _mm512_mul_epu32(_mm512_srli_epi64(some, 32), odd_factors));
    even_factors = _mm512_add_epi32(even_factors, step);
    odd_factors = _mm512_add_epi32(odd_factors, step);
  }
  // Not _mm512_reduce_add_epi64(): it adds signed numbers, whose overflow is undefined.
  alignas(64) std::uint64_t sums[8];
  _mm512_store_si512(sums, _mm512_add_epi64(even, odd));
  std::uint64_t result = 0;
  for (const std::uint64_t part : sums) result += part;
  return result;
}

// escape_mask() of 16 lanes.
SLIP_AVX512_INLINE __m512i masks_of(__m512i p0, __m512i p1, __m512i p2) {
  constexpr int kAnd = 0x80;  // a & b & c
  const __m512i x0 = _mm512_ternarylogic_epi32(p0, _mm512_srli_epi32(p0, 1), _mm512_srli_epi32(p0, 2), kAnd);
  const __m512i x1 = _mm512_ternarylogic_epi32(p1, _mm512_srli_epi32(p1, 1), _mm512_srli_epi32(p1, 2), kAnd);
  const __m512i x2 = _mm512_ternarylogic_epi32(p2, _mm512_srli_epi32(p2, 1), _mm512_srli_epi32(p2, 2), kAnd);
  const __m512i x3 = _mm512_ternarylogic_epi32(p0, p1, p2, kAnd);
  const __m512i low = select(every_byte(0x11), x0, _mm512_slli_epi32(x1, 1));
  const __m512i high = select(every_byte(0x44), _mm512_slli_epi32(x2, 2), x3);
  return select(every_byte(0x33), low, high);
}

// Takes two lanes at a time: VPCOMPRESSB lists the set bits of their 64-bit mask. Most pairs of lanes have at most 16
// escapes, which one store writes.
SLIP_AVX512 std::uint32_t find_escapes(const std::byte* codes, std::uint32_t lanes, EscapePositions& positions) {
  EscapeMasks masks;
  for (std::uint32_t lane = 0; lane < lanes; lane += 16) {
    const auto some = static_cast<__mmask16>(lanes - lane >= 16 ? 0xFFFFU : (1U << (lanes - lane)) - 1);
    const std::byte* const at = codes + std::size_t{4} * lane;
    const __m512i found =
        masks_of(_mm512_maskz_loadu_epi32(some, at), _mm512_maskz_loadu_epi32(some, at + std::size_t{4} * lanes),
                 _mm512_maskz_loadu_epi32(some, at + std::size_t{8} * lanes));
    _mm512_mask_storeu_epi32(masks.of + lane, some, found);
  }
  masks.of[lanes] = 0;
  alignas(64) std::uint8_t bits[64];
  for (std::uint32_t i = 0; i < 64; ++i) bits[i] = static_cast<std::uint8_t>(i);
  const __m512i all_bits = load(bits);
  const __m256i quarter = _mm256_set1_epi16(static_cast<short>(8 * lanes)), three = _mm256_set1_epi16(3);
  std::uint32_t count = 0;
  for (std::uint32_t lane = 0; lane < lanes; lane += 2) {
    std::uint64_t mask = masks.of[lane] | std::uint64_t{masks.of[lane + 1]} << 32;
    const auto found = static_cast<std::uint32_t>(__builtin_popcountll(mask));
    for (std::uint32_t done = 0;; done += 16) {
      const __m256i bit = _mm256_cvtepu8_epi16(_mm512_castsi512_si128(_mm512_maskz_compress_epi8(mask, all_bits)));
      const __m256i weight =
          _mm256_add_epi16(_mm256_srli_epi16(bit, 2), _mm256_set1_epi16(static_cast<short>(8 * lane)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(positions.at + count + done),
                          _mm256_add_epi16(weight, _mm256_mullo_epi16(_mm256_and_si256(bit, three), quarter)));
      if (done + 16 >= found) [[likely]]
        break;
      for (int i = 0; i < 16; ++i) mask &= mask - 1;
    }
    count += found;
  }
  return count;
}

// The digits of a quarter for 16 lanes. `at`: the offset of these lanes in P0, P1 and P2. The low 3 bits of a digit are
// the value; its top bit is arbitrary.
template <int kQuarter>
SLIP_AVX512_INLINE __m512i load_digits(const std::byte* plane, std::size_t at) {
  if constexpr (kQuarter < 3) {
    return load(plane + kQuarter * kPlaneBytes + at);
  } else {
    const __m512i p0 = _mm512_srli_epi32(load(plane + at), 3);
    const __m512i p1 = _mm512_srli_epi32(load(plane + kPlaneBytes + at), 2);
    const __m512i p2 = _mm512_srli_epi32(load(plane + 2 * kPlaneBytes + at), 1);
    return select(every_byte(0x44), p2, select(every_byte(0x22), p1, p0));
  }
}

// An unpacklo instruction interleaves the low 64 bits of each 128, an unpackhi instruction the high ones. If both get
// the eight 64-bit parts of `numbers` in this order, their results are in the original order.
SLIP_AVX512_INLINE __m512i unpack_order(__m512i numbers) {
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), numbers);
}
SLIP_AVX512_INLINE __m512i in_unpack_order(const std::byte* at) { return unpack_order(load(at)); }

// The digits of eight lanes, one in each byte, in unpack order. The 3-bit value begins at bit `kAt` of the byte; the
// other bits are arbitrary. `half`: 0 for lanes 0 to 7, 1 for lanes 8 to 15.
template <int kAt>
SLIP_AVX512_INLINE __m512i spread_digits(__m512i digits, int half) {
  const __m512i order = _mm512_setr_epi32(0, 0, 4, 4, 1, 1, 5, 5, 2, 2, 6, 6, 3, 3, 7, 7);
  const __m512i lanes = _mm512_permutexvar_epi32(_mm512_add_epi32(order, _mm512_set1_epi32(8 * half)), digits);
  constexpr std::uint64_t kShifts = 0x1C1814100C080400;  // digit i begins at bit 4 * i
  return _mm512_multishift_epi64_epi8(
      _mm512_set1_epi64(
          static_cast<long long>((kShifts + 0x4040404040404040 - kAt * 0x0101010101010101) & 0x3F3F3F3F3F3F3F3F)),
      lanes);
}

// The table of 8 entries, eight times.
SLIP_AVX512_INLINE __m512i repeat_table(const std::uint8_t* eight) {
  long long value = 0;
  __builtin_memcpy(&value, eight, sizeof value);
  return _mm512_set1_epi64(value);
}

// The low and high bytes of 64 bf16, or of the upper halves of 64 f32.
struct Bytes {
  __m512i low, high;
};
SLIP_AVX512_INLINE Bytes join_bytes(__m512i exponents, __m512i rest) {
  const __m512i sign = every_byte(0x80);
  return {select(sign, _mm512_slli_epi16(exponents, 7), rest), select(sign, rest, _mm512_srli_epi16(exponents, 1))};
}

// The table to look up exponents; for f16, the high byte of a weight by code (bits 0 to 2 of the index) and the 3-bit
// field (bits 3 to 5).
template <Split kSplit>
SLIP_AVX512_INLINE __m512i exponent_table(const BlockHeader& header) {
  const __m512i table = repeat_table(header.first);
  if constexpr (kSplit != Split::kF16) return table;
  const __m512i exponents = _mm512_slli_epi16(_mm512_and_si512(table, every_byte(0x1F)), 2);
  const __m512i fields =
      _mm512_setr_epi64(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303,
                        static_cast<long long>(0x8080808080808080), static_cast<long long>(0x8181818181818181),
                        static_cast<long long>(0x8282828282828282), static_cast<long long>(0x8383838383838383));
  return _mm512_or_si512(exponents, fields);
}

template <Split kSplit, int kQuarter>
SLIP_AVX512_INLINE void expand_quarter(const std::byte* block, const BlockHeader& header, std::byte* into) {
  constexpr BlockLayout kLayout = layout_of(kSplit, kMaxLanes * kLaneWeights);
  const std::byte* const rest = block + sizeof(BlockHeader);
  const std::byte* const more = block + kLayout.more;
  const __m512i table = exponent_table<kSplit>(header);
  for (std::size_t at = 0; at < kPlaneBytes; at += 64) {
    const __m512i codes = load_digits<kQuarter>(block + kLayout.codes, at);
    const __m512i fields = kSplit == Split::kF16 ? load_digits<kQuarter>(more, at) : codes;
    for (int half = 0; half < 2; ++half) {
      const std::size_t weight = kQuarter * kQuarterWeights + 2 * at + 64 * static_cast<std::size_t>(half);
      __m512i index = spread_digits<0>(codes, half);
      if constexpr (kSplit == Split::kF16) index = select(every_byte(7), index, spread_digits<3>(fields, half));
      Bytes bytes{in_unpack_order(rest + weight), _mm512_permutexvar_epi8(index, table)};
      if constexpr (kSplit != Split::kF16) bytes = join_bytes(bytes.high, bytes.low);
      const __m512i words[2] = {_mm512_unpacklo_epi8(bytes.low, bytes.high),
                                _mm512_unpackhi_epi8(bytes.low, bytes.high)};
      for (std::size_t part = 0; part < 2; ++part) {
        const std::size_t from = weight + 32 * part;
        if constexpr (kSplit == Split::kF32) {
          const __m512i lower = in_unpack_order(more + 2 * from), upper = unpack_order(words[part]);
          _mm512_storeu_si512(into + 4 * from, _mm512_unpacklo_epi16(lower, upper));
          _mm512_storeu_si512(into + 4 * from + 64, _mm512_unpackhi_epi16(lower, upper));
        } else {
          _mm512_storeu_si512(into + 2 * from, words[part]);
        }
      }
    }
  }
}

// One quarter after the other: the quarters are a multiple of 4096 bytes apart, so interleaved stores to all four would
// compete for the same cache sets.
template <Split kSplit>
SLIP_AVX512 void expand(const std::byte* block, const BlockHeader& header, std::byte* into) {
  expand_quarter<kSplit, 0>(block, header, into);
  expand_quarter<kSplit, 1>(block, header, into);
  expand_quarter<kSplit, 2>(block, header, into);
  expand_quarter<kSplit, 3>(block, header, into);
}

}  // namespace

const LoopSet* avx512_loops() {
  static constexpr LoopSet kLoops{
      sum, find_escapes, {nullptr, expand<Split::kBf16>, expand<Split::kF16>, expand<Split::kF32>}};
  const bool supported = __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2") &&
                         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt");
  return supported ? &kLoops : nullptr;
}

}  // namespace slip::model

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#else

namespace slip::model {
const LoopSet* avx512_loops() { return nullptr; }
}  // namespace slip::model

#endif
