// The element types of the cpu kernels: values are float or bf16 in memory, and float in computations.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "base/small_floats.hpp"
#include "slip/kernel.hpp"
#include "slip/tensors.hpp"

namespace slip::model::cpu {

// Vectors of four and of eight floats, by a compiler extension that works on all machines.
using Floats = float __attribute__((vector_size(16)));
struct Eight {
  Floats low, high;
};

inline Floats load_four(const void* from) {
  Floats result;
  std::memcpy(&result, from, sizeof(result));
  return result;
}
inline Eight load(const float* from) { return {load_four(from), load_four(from + 4)}; }
// A bf16 is the upper half of a float: a shuffle with zeros converts four of them.
inline Eight load(const base::Bf16* from) {
  static_assert(std::endian::native == std::endian::little);
  using Halves = std::uint16_t __attribute__((vector_size(16)));
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  const Halves zeros = {};
  const Halves low = __builtin_shufflevector(zeros, halves, 0, 8, 1, 9, 2, 10, 3, 11);
  const Halves high = __builtin_shufflevector(zeros, halves, 4, 12, 5, 13, 6, 14, 7, 15);
  return {std::bit_cast<Floats>(low), std::bit_cast<Floats>(high)};
}

// Calls `function` with a value of the element type; graphs allow only these two.
template <class Function>
void with_type(DataType type, Function&& function) {
  if (type == DataType::kBF16) function(base::Bf16{});
  else function(float{});
}

}  // namespace slip::model::cpu
