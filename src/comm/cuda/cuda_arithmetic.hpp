// The arithmetic of one element on the GPU. It gives the bits that comm/reduce gives on the CPU, as
// include/slip/reduction.hpp defines them: after each rank the value is rounded to the data type. A source that
// includes this header is compiled without fused multiply-add.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

namespace slip::comm {

// A format: the bits of an element in memory (Stored) and the value that is computed with (Value).
template <class T>
struct IntegerElement {
  using Stored = std::make_unsigned_t<T>;
  using Value = Stored;  // unsigned, because unsigned overflow is defined to wrap around
  __device__ static Value open(Stored bits) { return bits; }
  __device__ static Stored close(Value value) { return value; }
  __device__ static bool is_nan(Value) { return false; }
  __device__ static bool less(Value a, Value b) { return static_cast<T>(a) < static_cast<T>(b); }
  __device__ static Stored divide(Stored sum, std::uint64_t divisor) {
    if constexpr (std::is_signed_v<T>) {
      const auto value = static_cast<std::int64_t>(static_cast<T>(sum));
      const auto magnitude = value < 0 ? -static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
      const std::uint64_t quotient = magnitude / divisor;
      return static_cast<Stored>(value < 0 ? -quotient : quotient);
    } else {
      return static_cast<Stored>(sum / divisor);
    }
  }
};

// Conversions of the floating-point types. `Number` is the type that the values are added in.
struct F64Bits {
  using Stored = std::uint64_t;
  using Number = double;
  __device__ static double open(Stored bits) { return __longlong_as_double(static_cast<long long>(bits)); }
  __device__ static Stored close(double value) { return static_cast<Stored>(__double_as_longlong(value)); }
};
struct F32Bits {
  using Stored = std::uint32_t;
  using Number = float;
  __device__ static float open(Stored bits) { return __uint_as_float(bits); }
  __device__ static Stored close(float value) { return __float_as_uint(value); }
};
struct F16Bits {
  using Stored = std::uint16_t;
  using Number = float;
  __device__ static float open(Stored bits) { return __half2float(__ushort_as_half(bits)); }
  __device__ static Stored close(float value) { return __half_as_ushort(__float2half_rn(value)); }
};
struct Bf16Bits {
  using Stored = std::uint16_t;
  using Number = float;
  __device__ static float open(Stored bits) { return __uint_as_float(static_cast<std::uint32_t>(bits) << 16); }
  __device__ static Stored close(float value) { return __bfloat16_as_ushort(__float2bfloat16_rn(value)); }
};
// Before sm_89, a GPU has no instructions for these conversions. They are functions of their own then: inlined for each
// element of each vector, they took most of the time to compile the reductions.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
#define SLIP_F8_CONVERSION __noinline__
#else
#define SLIP_F8_CONVERSION
#endif
template <__nv_fp8_interpretation_t kFormat>
struct F8Bits {
  using Stored = std::uint8_t;
  using Number = float;
  SLIP_F8_CONVERSION __device__ static float open(Stored bits) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, kFormat)));
  }
  SLIP_F8_CONVERSION __device__ static Stored close(float value) {
    return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, kFormat);
  }
};
#undef SLIP_F8_CONVERSION

template <class Bits>
struct FloatElement {
  using Stored = typename Bits::Stored;
  using Value = typename Bits::Number;
  __device__ static Value open(Stored bits) { return Bits::open(bits); }
  __device__ static Stored close(Value value) { return Bits::close(value); }
  __device__ static bool is_nan(Value value) { return value != value; }
  __device__ static bool less(Value a, Value b) { return a < b; }
  // The inverse of a power of two is exact, so the product has the bits of the quotient. A division takes many times as
  // long.
  __device__ static Stored divide(Stored sum, std::uint64_t divisor) {
    if ((divisor & (divisor - 1)) == 0) return close(open(sum) * (Value{1} / static_cast<Value>(divisor)));
    return close(open(sum) / static_cast<Value>(divisor));
  }
};

struct SumOf {
  template <class Element>
  __device__ static typename Element::Stored of(typename Element::Stored a, typename Element::Stored b) {
    return Element::close(Element::open(a) + Element::open(b));
  }
};
struct ProductOf {
  template <class Element>
  __device__ static typename Element::Stored of(typename Element::Stored a, typename Element::Stored b) {
    return Element::close(Element::open(a) * Element::open(b));
  }
};

// A NaN loses against any number. Equal numbers have equal bits, except zeros: -0 is less than +0. So `or` keeps the
// sign bit for the minimum, and `and` drops it for the maximum. Each element is opened once: the conversions of 8-bit
// floats are long where the GPU has no instruction for them, and are inlined for each element of a vector.
struct MinOf {
  template <class Element>
  __device__ static typename Element::Stored of(typename Element::Stored a, typename Element::Stored b) {
    const typename Element::Value x = Element::open(a), y = Element::open(b);
    if (Element::is_nan(x)) return b;
    if (Element::is_nan(y)) return a;
    if (Element::less(y, x)) return b;
    if (Element::less(x, y)) return a;
    return a | b;
  }
};
struct MaxOf {
  template <class Element>
  __device__ static typename Element::Stored of(typename Element::Stored a, typename Element::Stored b) {
    const typename Element::Value x = Element::open(a), y = Element::open(b);
    if (Element::is_nan(x)) return b;
    if (Element::is_nan(y)) return a;
    if (Element::less(x, y)) return b;
    if (Element::less(y, x)) return a;
    return a & b;
  }
};

}  // namespace slip::comm
