// The loops of the CPU decoder for x86 processors with AVX2. avx2_loops() returns them only if CPUID reports AVX2.
#include "model/codec/loops.hpp"

#if defined(__x86_64__)

#include <immintrin.h>

namespace slip::model {
namespace {

#define SLIP_AVX2 [[gnu::target("avx2,bmi,popcnt")]]
#define SLIP_AVX2_INLINE [[gnu::target("avx2,bmi,popcnt"), gnu::always_inline]] inline

constexpr std::size_t kPlane = std::size_t{4} * kMaxLanes;    // bytes of P0, P1 or P2 in a full block
constexpr std::size_t kQuarter = std::size_t{8} * kMaxLanes;  // weights

SLIP_AVX2_INLINE __m256i load(const std::byte* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
SLIP_AVX2_INLINE void store(std::byte* at, __m256i value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), value);
}
SLIP_AVX2_INLINE __m256i splat(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
SLIP_AVX2_INLINE __m256i choose(__m256i mask, __m256i a, __m256i b) {
  return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}

SLIP_AVX2 std::uint64_t sum(const std::byte* block, std::size_t bytes) {
  __m256i factors = _mm256_add_epi32(
      _mm256_set1_epi32(static_cast<int>(kFirstFactor)),
      _mm256_mullo_epi32(_mm256_set1_epi32(static_cast<int>(kFactorStep)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
  const __m256i step = _mm256_set1_epi32(static_cast<int>(8 * kFactorStep));
  __m256i even = _mm256_setzero_si256(), odd = even;
  std::size_t at = 0;
  for (; at + 32 <= bytes; at += 32) {
    const __m256i words = load(block + at);
    even = _mm256_add_epi64(even, _mm256_mul_epu32(words, factors));
    odd = _mm256_add_epi64(odd, _mm256_mul_epu32(_mm256_srli_epi64(words, 32), _mm256_srli_epi64(factors, 32)));
    factors = _mm256_add_epi32(factors, step);
  }
  alignas(32) std::uint64_t sums[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(sums), _mm256_add_epi64(even, odd));
  std::uint64_t result = sums[0] + sums[1] + sums[2] + sums[3];
  for (; at < bytes; at += 4) {
    std::uint32_t word = 0;
    __builtin_memcpy(&word, block + at, sizeof word);
    result += std::uint64_t{word} * checksum_factor(static_cast<std::uint32_t>(at / 4));
  }
  return result;
}

// Bit 4 * i is set if the low 3 bits of digit i are all set; the other bits are undefined.
SLIP_AVX2_INLINE __m256i sevens(__m256i digits) {
  return _mm256_and_si256(_mm256_and_si256(digits, _mm256_srli_epi32(digits, 1)), _mm256_srli_epi32(digits, 2));
}

SLIP_AVX2 std::uint32_t find_escapes(const std::byte* codes, std::uint32_t lanes, EscapePositions& positions) {
  EscapeMasks masks;
  std::uint32_t lane = 0;
  const __m256i ones = splat(0x11);
  for (; lane + 8 <= lanes; lane += 8) {
    const std::byte* const at = codes + 4 * lane;
    const __m256i p0 = load(at), p1 = load(at + 4 * lanes), p2 = load(at + 8 * lanes);
    const __m256i x0 = sevens(p0), x1 = sevens(p1), x2 = sevens(p2);
    const __m256i x3 = _mm256_srli_epi32(_mm256_and_si256(_mm256_and_si256(p0, p1), p2), 3);
    const __m256i low = _mm256_or_si256(_mm256_and_si256(x0, ones), _mm256_slli_epi32(_mm256_and_si256(x1, ones), 1));
    const __m256i high = _mm256_or_si256(_mm256_slli_epi32(_mm256_and_si256(x2, ones), 2),
                                         _mm256_slli_epi32(_mm256_and_si256(x3, ones), 3));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(masks.of + lane), _mm256_or_si256(low, high));
  }
  find_masks(codes, lane, lanes, masks);
  return list_escapes(masks, lanes, positions);
}

// The 3-bit values of 64 weights, one in each byte: of weights 0, 2, 4, ... and of weights 1, 3, 5, ...
struct Digits {
  __m256i even, odd;
};
SLIP_AVX2_INLINE Digits split_digits(__m256i digits) {
  const __m256i seven = splat(7);
  return {_mm256_and_si256(digits, seven), _mm256_and_si256(_mm256_srli_epi16(digits, 4), seven)};
}

// The digits of a quarter for eight lanes. The top bits of the digits of quarters 0 to 2 belong to quarter 3.
template <int kIndex>
SLIP_AVX2_INLINE __m256i load_digits(const std::byte* plane, std::size_t at) {
  if constexpr (kIndex < 3) {
    return load(plane + kIndex * kPlane + at);
  } else {
    const __m256i p0 = load(plane + at), p1 = load(plane + kPlane + at), p2 = load(plane + 2 * kPlane + at);
    return _mm256_or_si256(_mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(p0, 3), splat(0x11)),
                                           _mm256_and_si256(_mm256_srli_epi32(p1, 2), splat(0x22))),
                           _mm256_and_si256(_mm256_srli_epi32(p2, 1), splat(0x44)));
  }
}

// Looks up 64 digits in a table of 8 bytes, which each half of `table` has twice. The results are in the order of the
// weights: unpack works within 128-bit halves, and the permutations put the halves in order.
SLIP_AVX2_INLINE void look_up(__m256i table, __m256i digits, __m256i& low, __m256i& high) {
  const Digits d = split_digits(digits);
  const __m256i even = _mm256_shuffle_epi8(table, d.even), odd = _mm256_shuffle_epi8(table, d.odd);
  const __m256i a = _mm256_unpacklo_epi8(even, odd), b = _mm256_unpackhi_epi8(even, odd);
  low = _mm256_permute2x128_si256(a, b, 0x20);
  high = _mm256_permute2x128_si256(a, b, 0x31);
}

SLIP_AVX2_INLINE __m256i table_of(const std::uint8_t* eight) {
  long long value = 0;
  __builtin_memcpy(&value, eight, sizeof value);
  return _mm256_set1_epi64x(value);
}

// The low and the high bytes of 32 bf16, or of the upper halves of 32 f32.
struct Bytes {
  __m256i low, high;
};
SLIP_AVX2_INLINE Bytes join_bytes(__m256i exponents, __m256i rest) {
  const __m256i sign = splat(0x80);
  return {choose(sign, _mm256_slli_epi16(exponents, 7), rest), choose(sign, rest, _mm256_srli_epi16(exponents, 1))};
}

// 32 numbers of 16 bits, in order, from their low and high bytes.
struct Halves {
  __m256i first, second;
};
SLIP_AVX2_INLINE Halves interleave(const Bytes& bytes) {
  const __m256i a = _mm256_unpacklo_epi8(bytes.low, bytes.high), b = _mm256_unpackhi_epi8(bytes.low, bytes.high);
  return {_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31)};
}

template <Split kSplit, int kIndex>
SLIP_AVX2_INLINE void expand_quarter(const std::byte* block, const BlockHeader& header, std::byte* into) {
  constexpr BlockLayout kLayout = layout_of(kSplit, kMaxLanes * kLaneWeights);
  constexpr bool kHalf = kSplit == Split::kF16;  // the exponent's place in the high byte of an f16
  const std::byte* const rest = block + sizeof(BlockHeader);
  const std::byte* const more = block + kLayout.more;
  std::uint8_t first[8];
  for (int i = 0; i < 8; ++i)
    first[i] = static_cast<std::uint8_t>(kHalf ? (header.first[i] & 0x1F) << 2 : header.first[i]);
  const __m256i table = table_of(first);
  const __m256i sign_and_mantissa = _mm256_set1_epi64x(static_cast<long long>(0x8382818003020100ULL));
  for (std::size_t at = 0; at < kPlane; at += 32) {
    __m256i exponents[2], others[2];
    look_up(table, load_digits<kIndex>(block + kLayout.codes, at), exponents[0], exponents[1]);
    if constexpr (kHalf) look_up(sign_and_mantissa, load_digits<kIndex>(more, at), others[0], others[1]);
    for (std::size_t half = 0; half < 2; ++half) {
      const std::size_t weight = kIndex * kQuarter + 2 * at + 32 * half;
      Bytes bytes{load(rest + weight), {}};
      if constexpr (kHalf) bytes.high = _mm256_or_si256(exponents[half], others[half]);
      else bytes = join_bytes(exponents[half], bytes.low);
      const Halves words = interleave(bytes);
      for (std::size_t part = 0; part < 2; ++part) {
        const __m256i upper = part == 0 ? words.first : words.second;
        const std::size_t from = weight + 16 * part;
        if constexpr (kSplit == Split::kF32) {
          const __m256i lower = load(more + 2 * from);
          const __m256i a = _mm256_unpacklo_epi16(lower, upper), b = _mm256_unpackhi_epi16(lower, upper);
          store(into + 4 * from, _mm256_permute2x128_si256(a, b, 0x20));
          store(into + 4 * from + 32, _mm256_permute2x128_si256(a, b, 0x31));
        } else {
          store(into + 2 * from, upper);
        }
      }
    }
  }
}

// Decodes the quarters one after the other. Stores to all four at once would be a multiple of 4096 bytes apart, and so
// compete for the same sets of the cache.
template <Split kSplit>
SLIP_AVX2 void expand(const std::byte* block, const BlockHeader& header, std::byte* into) {
  expand_quarter<kSplit, 0>(block, header, into);
  expand_quarter<kSplit, 1>(block, header, into);
  expand_quarter<kSplit, 2>(block, header, into);
  expand_quarter<kSplit, 3>(block, header, into);
}

}  // namespace

const LoopSet* avx2_loops() {
  static constexpr LoopSet kLoops{
      sum, find_escapes, {nullptr, expand<Split::kBf16>, expand<Split::kF16>, expand<Split::kF32>}};
  const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt");
  return has ? &kLoops : nullptr;
}

}  // namespace slip::model

#else

namespace slip::model {
const LoopSet* avx2_loops() { return nullptr; }
}  // namespace slip::model

#endif
