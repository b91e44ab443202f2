// Floating-point formats of 8 and 16 bits: they are only stored; computations use f32. Rounding is to nearest, ties to
// even.
//
// The code has no branches and no tables, so that loops over it vectorise on every machine. No intermediate result is
// an f32 subnormal, so that a processor that flushes subnormals to zero gives the same bits.
#pragma once

#include <bit>
#include <cstdint>

namespace slip::base {

// bf16: the upper half of a float.
struct Bf16 {
  std::uint16_t bits;
};

inline float to_float(float value) { return value; }
inline float to_float(Bf16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

template <class T>
T from_float(float value);
template <>
inline float from_float<float>(float value) {
  return value;
}
// A NaN stays a NaN: rounding could turn its bits into an infinity.
template <>
inline Bf16 from_float<Bf16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const std::uint32_t quiet = bits | 0x400000;
  return {static_cast<std::uint16_t>((value == value ? rounded : quiet) >> 16)};
}

// Formats with fewer exponent bits than a float.
template <class Bits, int kExponentBits, int kMantissaBits>
struct SmallFloat {
  Bits bits;
};
using F16 = SmallFloat<std::uint16_t, 5, 10>;
using F8E5M2 = SmallFloat<std::uint8_t, 5, 2>;
// E4M3 has no infinity: if all bits but the sign are set, it is a NaN; all other patterns are numbers.
using F8E4M3 = SmallFloat<std::uint8_t, 4, 3>;

template <class T>
struct FloatLayout;
template <class Bits, int kExponentBits, int kMantissaBits>
struct FloatLayout<SmallFloat<Bits, kExponentBits, kMantissaBits>> {
  static constexpr bool kHasInfinity = kExponentBits != 4;
  static constexpr bool kSaturates = sizeof(Bits) == 1;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kShift = 23 - kMantissaBits;  // difference of the mantissa widths: float minus this format
  static constexpr std::uint32_t kSign = 1U << (kExponentBits + kMantissaBits);
  static constexpr std::uint32_t kRebias = static_cast<std::uint32_t>(127 - kBias) << 23;
  static constexpr std::uint32_t kSmallestNormal = kRebias + (1U << 23);  // as the bits of a float
  // kLargest: the largest finite number. kOverflow: the result of rounding anything larger.
  static constexpr std::uint32_t kLargest =
      kHasInfinity ? (((1U << kExponentBits) - 1) << kMantissaBits) - 1 : kSign - 2;
  static constexpr std::uint32_t kOverflow = kSaturates ? kLargest : kLargest + 1;
  static constexpr std::uint32_t kNan = kHasInfinity ? kLargest + 1 + (1U << (kMantissaBits - 1)) : kSign - 1;
  // A float whose last mantissa bit has the value of this format's smallest subnormal: adding it makes the FPU round a
  // subnormal result correctly.
  static constexpr std::uint32_t kSubnormalMagic = static_cast<std::uint32_t>(127 - kBias + kShift + 1) << 23;
};

template <class Bits, int kExponentBits, int kMantissaBits>
inline float to_float(SmallFloat<Bits, kExponentBits, kMantissaBits> value) {
  using Layout = FloatLayout<SmallFloat<Bits, kExponentBits, kMantissaBits>>;
  const std::uint32_t magnitude = value.bits & (Layout::kSign - 1);
  const std::uint32_t normal = (magnitude << Layout::kShift) + Layout::kRebias;
  // Reading a subnormal's mantissa with the exponent of the smallest normal number gives a value that is too large by
  // exactly that number.
  const float subnormal = std::bit_cast<float>((magnitude << Layout::kShift) + Layout::kSmallestNormal) -
                          std::bit_cast<float>(Layout::kSmallestNormal);
  std::uint32_t result = magnitude < (1U << kMantissaBits) ? std::bit_cast<std::uint32_t>(subnormal) : normal;
  const std::uint32_t special = Layout::kHasInfinity ? 0x7f800000 | (magnitude << Layout::kShift) : 0x7fc00000;
  result = magnitude > Layout::kLargest ? special : result;
  const std::uint32_t sign = (static_cast<std::uint32_t>(value.bits) & Layout::kSign)
                             << (31 - kExponentBits - kMantissaBits);
  return std::bit_cast<float>(result | sign);
}

template <class T>
T from_float(float value) {
  using Layout = FloatLayout<T>;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  const std::uint32_t half = (1U << (Layout::kShift - 1)) - 1 + ((magnitude >> Layout::kShift) & 1);
  std::uint32_t result = (magnitude - Layout::kRebias + half) >> Layout::kShift;
  const float magic = std::bit_cast<float>(Layout::kSubnormalMagic);
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + magic) - Layout::kSubnormalMagic;
  result = magnitude < Layout::kSmallestNormal ? subnormal : result;
  result = magnitude >= (((Layout::kLargest + 1) << Layout::kShift) + Layout::kRebias) ? Layout::kOverflow : result;
  result = result > Layout::kLargest ? Layout::kOverflow : result;  // rounding up exceeded the largest number
  result = magnitude > 0x7f800000 ? Layout::kNan : result;
  const std::uint32_t sign = (bits >> 31) * Layout::kSign;
  return {static_cast<decltype(T::bits)>(result | sign)};
}

}  // namespace slip::base
