// The arithmetic of collectives on the CPU, as include/slip/reduction.hpp defines it. ProgramRunner uses it. Reductions
// are so fast that memory bandwidth limits them.
//
// The functions have no state: any thread may call them, and they allocate nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "slip/error.hpp"
#include "slip/reduction.hpp"

namespace slip::comm {

// A factor of kPreMulSum: the bytes of one value of the data type.
struct ReduceScale {
  std::array<std::byte, 8> bytes{};

  template <class T>
  static ReduceScale of(T value) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
    ReduceScale scale;
    std::memcpy(scale.bytes.data(), &value, sizeof(T));
    return scale;
  }
  template <class T>
  T as() const {
    T value;
    std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  static ReduceScale one(DataType type);  // the factor 1, for a source that is already a scaled sum
  friend bool operator==(const ReduceScale& a, const ReduceScale& b) {
    return a.as<std::uint64_t>() == b.as<std::uint64_t>();  // one comparison: each collective call compares factors
  }
};

// The factor of kPreMulSum, converted to the type: rounded for floats, truncated for integers. Throws kInvalidValue if
// it is out of range of an integer type, or if the type cannot be reduced.
ReduceScale scale_of(DataType type, double factor, Here here);

// One step of a reduction. The sources are inputs of ranks or results of earlier steps.
struct Reduction {
  DataType type = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;
  // kAvg: in the last step the number of ranks, in all earlier steps 1. Never 0.
  std::uint64_t divisor = 1;
  // kPreMulSum: one factor for each source, or none if all sources are already scaled.
  std::span<const ReduceScale> scales = {};
};

// Computes to = from[0] op from[1] op ..., in this order, and reads each source from memory once. Any alignment.
// Every target gets the result, which costs less than copying it afterwards.
// REQUIRES: can_reduce(how.type); at least one source and one target; each target is one of the sources, or disjoint
// from all sources and all other targets.
void reduce(const Reduction& how, std::span<void* const> to, std::span<const void* const> from, std::size_t elements);

inline void reduce(const Reduction& how, void* to, std::span<const void* const> from, std::size_t elements) {
  reduce(how, std::span<void* const>(&to, 1), from, elements);
}

// Copies less than 64 bytes as two parts of the same fixed size, which may overlap. A call of memcpy would take longer
// than the copy.
inline void copy_few(void* to, const void* from, std::size_t bytes) {
  const auto copy_ends = [&]<std::size_t kSize>(std::integral_constant<std::size_t, kSize>) {
    std::array<std::byte, kSize> first, last;
    std::memcpy(first.data(), from, kSize);
    std::memcpy(last.data(), static_cast<const std::byte*>(from) + bytes - kSize, kSize);
    std::memcpy(to, first.data(), kSize);
    std::memcpy(static_cast<std::byte*>(to) + bytes - kSize, last.data(), kSize);
  };
  if (bytes >= 32) copy_ends(std::integral_constant<std::size_t, 32>());
  else if (bytes >= 16) copy_ends(std::integral_constant<std::size_t, 16>());
  else if (bytes >= 8) copy_ends(std::integral_constant<std::size_t, 8>());
  else if (bytes >= 4) copy_ends(std::integral_constant<std::size_t, 4>());
  else if (bytes >= 2) copy_ends(std::integral_constant<std::size_t, 2>());
  else if (bytes == 1) *static_cast<std::byte*>(to) = *static_cast<const std::byte*>(from);
}

// REQUIRES: `to` equals `from`, or the ranges are disjoint. memcpy, because non-temporal stores (stnp) were not faster
// on a Neoverse V1 (4 to 128 MiB).
inline void copy(void* to, const void* from, std::size_t bytes) {
  if (to == from) return;
  if (bytes < 64) return copy_few(to, from, bytes);
  std::memcpy(to, from, bytes);
}

}  // namespace slip::comm
