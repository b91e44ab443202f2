// The element types of the cpu's kernels: computed in float, stored as float or bf16.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "slip/kernel.hpp"
#include "slip/tensors.hpp"

namespace slip::cpu {

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
// To nearest, ties to even. A NaN stays one: rounding could carry its bits into an infinity.
template <>
inline Bf16 from_float<Bf16>(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const std::uint32_t quiet = (bits >> 16) | 0x40;
  return {static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded)};
}

// Four floats, as compilers for all machines know them.
using Floats = float __attribute__((vector_size(16)));
inline constexpr std::size_t kLanes = 4;

inline Floats load(const float* from) {
  Floats result;
  std::memcpy(&result, from, sizeof(result));
  return result;
}
inline Floats load(const Bf16* from) {
  using Halves = std::uint16_t __attribute__((vector_size(8)));
  using Words = std::uint32_t __attribute__((vector_size(16)));
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  const Words words = __builtin_convertvector(halves, Words) << 16;
  Floats result;
  std::memcpy(&result, &words, sizeof(result));
  return result;
}

// Calls `function` with a value of the element type; graphs allow no third.
template <class Function>
void with_type(DataType type, Function&& function) {
  if (type == DataType::kBF16) function(Bf16{});
  else function(float{});
}

}  // namespace slip::cpu
