// The kernel of a reducing collective for one data type. The sources cuda_reduce_*.cu instantiate it, each for some
// types, because nvcc then compiles them at the same time.
//
// The arithmetic of one element gives the bits that comm/reduce gives on the CPU, as include/slip/reduction.hpp defines
// them: after each rank the value is rounded to the data type. A source that includes this header is compiled without
// fused multiply-add.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "comm/cuda/cuda_copy.hpp"
#include "comm/cuda/cuda_kernels.hpp"
#include "comm/cuda/cuda_meeting.hpp"
#include "slip/reduction.hpp"

namespace slip::comm {

// --- the arithmetic of one element ---

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

// Conversions of the floating-point types.
struct F64Bits {
  using Stored = std::uint64_t;
  using Value = double;
  __device__ static double open(Stored bits) { return __longlong_as_double(static_cast<long long>(bits)); }
  __device__ static Stored close(double value) { return static_cast<Stored>(__double_as_longlong(value)); }
};
struct F32Bits {
  using Stored = std::uint32_t;
  using Value = float;
  __device__ static float open(Stored bits) { return __uint_as_float(bits); }
  __device__ static Stored close(float value) { return __float_as_uint(value); }
};
struct F16Bits {
  using Stored = std::uint16_t;
  using Value = float;
  __device__ static float open(Stored bits) { return __half2float(__ushort_as_half(bits)); }
  __device__ static Stored close(float value) { return __half_as_ushort(__float2half_rn(value)); }
};
struct Bf16Bits {
  using Stored = std::uint16_t;
  using Value = float;
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
  using Value = float;
  SLIP_F8_CONVERSION __device__ static float open(Stored bits) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, kFormat)));
  }
  SLIP_F8_CONVERSION __device__ static Stored close(float value) {
    return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, kFormat);
  }
};
#undef SLIP_F8_CONVERSION

template <class Bits>
struct FloatElement : Bits {
  using typename Bits::Stored;
  using typename Bits::Value;
  __device__ static bool is_nan(Value value) { return value != value; }
  __device__ static bool less(Value a, Value b) { return a < b; }
  // The inverse of a power of two is exact, so the product has the bits of the quotient. A division takes many times as
  // long.
  __device__ static Stored divide(Stored sum, std::uint64_t divisor) {
    if ((divisor & (divisor - 1)) == 0) return Bits::close(Bits::open(sum) * (Value{1} / static_cast<Value>(divisor)));
    return Bits::close(Bits::open(sum) / static_cast<Value>(divisor));
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
template <bool kIsMin>
struct MinOrMaxOf {
  template <class Element>
  __device__ static typename Element::Stored of(typename Element::Stored a, typename Element::Stored b) {
    const typename Element::Value x = Element::open(a), y = Element::open(b);
    if (Element::is_nan(x)) return b;
    if (Element::is_nan(y)) return a;
    if (kIsMin ? Element::less(y, x) : Element::less(x, y)) return b;
    if (kIsMin ? Element::less(x, y) : Element::less(y, x)) return a;
    return kIsMin ? a | b : a & b;
  }
};

// --- the kernel ---

template <class Element>
union Pack {
  static constexpr int kCount = 16 / sizeof(typename Element::Stored);
  uint4 all;
  typename Element::Stored one[kCount];
};

template <class Stored>
struct Single {
  Stored one[1];
};

// Vectors of each source that a thread loads before it adds. On an H200 with two ranks 4 were not faster (64 and 256
// MiB), and need more registers.
constexpr int kVectorsInFlight = 2;

// How a call reduces: Op combines two values; each source may be scaled before, and the result divided after.
enum class Extra { kNone, kScale, kDivide };

template <class Element, class Op, Extra kExtra>
class Reducer {
 public:
  using Stored = typename Element::Stored;
  __device__ Reducer(const CallParameters& p, const BlockState& state, const DeviceStep& step)
      : state_(state), targets_(step.targets), sources_(step.sources), divisor_(p.divisor) {}

  __device__ void run(std::uint64_t bytes, BlockShare share) const {
    const std::uint64_t shift = state_.targets[0] % 16;
    bool same = true;
    for (int i = 0; i < targets_; ++i) same = same && state_.targets[i] % 16 == shift;
    for (int i = 0; i < sources_; ++i) same = same && state_.sources[i] % 16 == shift;
    const std::uint64_t before = (16 - shift) % 16;
    const std::uint64_t head = !same || before > bytes ? bytes : before;
    const std::uint64_t vectors = (bytes - head) / 16, tail = head + vectors * 16;
    loop<Pack<Element>, kVectorsInFlight>(head, vectors, share);
    // The elements before and after the vectors, in one loop: two calls would be inlined and compiled twice.
#pragma unroll 1
    for (int end = 0; end < 2; ++end) {
      const std::uint64_t count = (end == 0 ? head : bytes - tail) / sizeof(Stored);
      if (count > 0) loop<Single<Stored>, 4>(end == 0 ? 0 : tail, count, share);
    }
  }

 private:
  // Calls `body(element, k, e)` for element e of each unit k.
  template <class Unit, int kInFlight, class Body>
  __device__ static void each_element(Unit (&units)[kInFlight], const Body& body) {
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
#pragma unroll
      for (int e = 0; e < static_cast<int>(sizeof(Unit) / sizeof(Stored)); ++e) body(units[k].one[e], k, e);
    }
  }

  template <class Unit, int kInFlight>
  __device__ void loop(std::uint64_t offset, std::uint64_t count, BlockShare share) const {
    for_each_tile<kInFlight>(
        count, share, [&](std::uint64_t first) { reduce<Unit, kInFlight>(offset, first); },
        [&](std::uint64_t i) { reduce<Unit, 1>(offset, i); });
  }

  template <class Unit, int kInFlight>
  __device__ void reduce(std::uint64_t offset, std::uint64_t index) const {
    Unit sum[kInFlight];
    load<Unit, kInFlight>(0, offset, index, sum);
    for (int source = 1; source < sources_; ++source) {
      Unit next[kInFlight];
      load<Unit, kInFlight>(source, offset, index, next);
      each_element(sum, [&](Stored& one, int k, int e) { one = Op::template of<Element>(one, next[k].one[e]); });
    }
    if constexpr (kExtra == Extra::kDivide)
      each_element(sum, [&](Stored& one, int, int) { one = Element::divide(one, divisor_); });
    for (int target = 0; target < targets_; ++target) {
      auto* const to = reinterpret_cast<Unit*>(state_.targets[target] + offset);
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if constexpr (sizeof(Unit) == 16) __stcs(&to[index + k * kThreads].all, sum[k].all);
        else to[index + k * kThreads] = sum[k];
      }
    }
  }

  template <class Unit, int kInFlight>
  __device__ void load(int source, std::uint64_t offset, std::uint64_t index, Unit (&into)[kInFlight]) const {
    const auto* const from = reinterpret_cast<const Unit*>(state_.sources[source] + offset);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      // Plain loads: on an H200 they are 1.5 % faster than __ldcs for 64 and 256 MiB.
      if constexpr (sizeof(Unit) == 16) into[k].all = from[index + k * kThreads].all;
      else into[k] = from[index + k * kThreads];
    }
    if constexpr (kExtra == Extra::kScale) {
      const auto factor = static_cast<Stored>(state_.source_scales[source]);
      each_element(into, [&](Stored& one, int, int) { one = ProductOf::template of<Element>(one, factor); });
    }
  }

  const BlockState& state_;
  const int targets_, sources_;
  const std::uint64_t divisor_;
};

template <class Element, class Op, Extra kExtra = Extra::kNone>
__device__ void reduce_steps(const CallParameters& p, BlockState& state) {
  const std::byte* const program = p.program ? p.program : p.inline_program;
  const auto* const steps = reinterpret_cast<const DeviceStep*>(program);
  const auto* const locations = reinterpret_cast<const DeviceLocation*>(steps + p.steps);
  for (std::uint32_t i = 0; i < p.steps; ++i) {
    const DeviceStep step = steps[i];
    bind_step(step, locations, state);
    Reducer<Element, Op, kExtra>(p, state, step).run(step.bytes, {blockIdx.x, gridDim.x});
  }
}

// Two blocks fit on a multiprocessor, so that the kernels of several ranks run on one GPU at the same time.
template <class Element>
__global__ void __launch_bounds__(kThreads, 2) reduce_kernel(const __grid_constant__ CallParameters p) {
  __shared__ BlockState state;
  if (join_call(p, state)) {
    switch (static_cast<ReduceOp>(p.op)) {
      case ReduceOp::kSum: reduce_steps<Element, SumOf>(p, state); break;
      case ReduceOp::kProd: reduce_steps<Element, ProductOf>(p, state); break;
      case ReduceOp::kMin: reduce_steps<Element, MinOrMaxOf<true>>(p, state); break;
      case ReduceOp::kMax: reduce_steps<Element, MinOrMaxOf<false>>(p, state); break;
      case ReduceOp::kAvg: reduce_steps<Element, SumOf, Extra::kDivide>(p, state); break;
      case ReduceOp::kPreMulSum: reduce_steps<Element, SumOf, Extra::kScale>(p, state); break;
    }
  }
  leave_call(p, state);
}

}  // namespace slip::comm
