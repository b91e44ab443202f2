// Kernels for small floats with two extensions that most 64-bit Arm servers have: f16 arithmetic and bf16 conversion.
// Only this file is compiled for them; reduce.cpp calls one only if the processor has the extensions. The portable
// kernels in reduce_kernels.cpp give the same bits.
#include "comm/reduce/reduce_kernel.hpp"

#if defined(__ARM_FEATURE_FP16_VECTOR_ARITHMETIC) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>

#include "comm/reduce/reduce_loop.hpp"

namespace slip::comm {
namespace {

// f16 arithmetic rounds each op once, which gives the same bits as computing in f32 and rounding to f16.
struct ArmF16 {
  using Stored = uint16x8_t;
  using Carried = float16x8_t;
  using Value = float16x8_t;
  static Carried lift(Stored stored) { return vreinterpretq_f16_u16(stored); }
  static Value open(Carried carried) { return carried; }
  static Carried round(Value value) { return value; }
  static Stored store(Carried carried) { return vreinterpretq_u16_f16(carried); }
  static Value number(float value) { return vdupq_n_f16(static_cast<float16_t>(value)); }
  static Value scale(const ReduceScale& scale) { return number(base::to_float(scale.as<base::F16>())); }
};

// Divides in f32, because not every number of ranks has an f16 value.
struct DivideArmF16 {
  float32x4_t divisor;
  explicit DivideArmF16(const KernelCall& call) : divisor(vdupq_n_f32(static_cast<float>(call.divisor))) {}
  float16x8_t apply(float16x8_t sum) const {
    const float16x4_t low = vcvt_f16_f32(vcvt_f32_f16(vget_low_f16(sum)) / divisor);
    return vcvt_high_f16_f32(low, vcvt_high_f32_f16(sum) / divisor);
  }
};

template <class Vector>
struct Pair {
  Vector low, high;
  friend Pair operator+(Pair a, Pair b) { return {a.low + b.low, a.high + b.high}; }
  friend Pair operator*(Pair a, Pair b) { return {a.low * b.low, a.high * b.high}; }
  friend Pair operator/(Pair a, Pair b) { return {a.low / b.low, a.high / b.high}; }
};

struct ArmBf16 {
  using Stored = uint16x8_t;
  using Carried = uint16x8_t;
  using Value = Pair<float32x4_t>;
  static Carried lift(Stored stored) { return stored; }
  static Value open(Carried carried) {
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(carried), 16)),
            vreinterpretq_f32_u32(vshll_high_n_u16(carried, 16))};
  }
  static Carried round(Value value) {
    return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(value.low), value.high));
  }
  static Stored store(Carried carried) { return carried; }
  static Value number(float value) { return {vdupq_n_f32(value), vdupq_n_f32(value)}; }
  static Value scale(const ReduceScale& scale) { return number(base::to_float(scale.as<base::Bf16>())); }
};

// f8 values are computed as f16. The sum and the product of two f8 values have so few bits that the second rounding,
// from f16 to f8, changes nothing; the tests try all pairs. An e5m2 is the upper byte of an f16. An e4m3 has another
// exponent bias: a factor of 256 corrects it.
template <class T>
struct ArmF8 {
  static constexpr bool kE4M3 = std::is_same_v<T, base::F8E4M3>;
  static constexpr int kShift = kE4M3 ? 7 : 8;
  using Stored = uint8x16_t;
  using Carried = uint8x16_t;
  using Value = Pair<float16x8_t>;

  static Carried lift(Stored stored) { return stored; }
  static Value open(Carried carried) { return {widen(vget_low_u8(carried)), widen(vget_high_u8(carried))}; }
  static Carried round(Value value) { return vcombine_u8(narrow(value.low), narrow(value.high)); }
  static Stored store(Carried carried) { return carried; }
  static Value number(float value) {
    const float16x8_t all = vdupq_n_f16(static_cast<float16_t>(value));
    return {all, all};
  }
  static Value scale(const ReduceScale& scale) { return number(base::to_float(scale.as<T>())); }

 private:
  static float16x8_t widen(uint8x8_t bytes) {
    if constexpr (!kE4M3) return vreinterpretq_f16_u16(vshll_n_u8(bytes, 8));
    const uint16x8_t sign = vshll_n_u8(vand_u8(bytes, vdup_n_u8(0x80)), 8);
    const uint16x8_t magnitude = vshll_n_u8(vand_u8(bytes, vdup_n_u8(0x7f)), 7);
    const float16x8_t number =
        vreinterpretq_f16_u16(vorrq_u16(sign, magnitude)) * vdupq_n_f16(static_cast<float16_t>(256.0F));
    const uint16x8_t is_nan = vceqq_u16(magnitude, vdupq_n_u16(0x7f << 7));
    return vreinterpretq_f16_u16(vorrq_u16(vreinterpretq_u16_f16(number), vandq_u16(is_nan, vdupq_n_u16(0x7e00))));
  }

  static uint8x8_t narrow(float16x8_t value) {
    const float16x8_t max = vdupq_n_f16(static_cast<float16_t>(kE4M3 ? 448.0F : 57344.0F));
    float16x8_t held = vmaxq_f16(vminq_f16(value, max), -max);  // NaN stays NaN
    if constexpr (kE4M3) held = held * vdupq_n_f16(static_cast<float16_t>(1 / 256.0F));
    const uint16x8_t bits = vreinterpretq_u16_f16(held);
    const uint16x8_t odd = vandq_u16(vshrq_n_u16(bits, kShift), vdupq_n_u16(1));
    const uint16x8_t half = vaddq_u16(odd, vdupq_n_u16((1 << (kShift - 1)) - 1));
    uint16x8_t result = vshrq_n_u16(vaddq_u16(vandq_u16(bits, vdupq_n_u16(0x7fff)), half), kShift);
    result = vbslq_u16(vceqq_f16(value, value), result, vdupq_n_u16(base::FloatLayout<T>::kNan));
    return vmovn_u16(vorrq_u16(result, vandq_u16(vshrq_n_u16(bits, 8), vdupq_n_u16(0x80))));
  }
};

// If Divisor is void, this returns null for averages, and the portable kernel is used.
template <class Format, class Divisor = void>
ReduceKernel arm_kernel(ReduceOp op, ReduceExtra extra) {
  using AsIs = Unscaled<Format>;
  using Whole = Undivided<Format>;
  if (op == ReduceOp::kProd) return ReduceLoop<Format, Product, AsIs, Whole>::base;
  if (op == ReduceOp::kMin || op == ReduceOp::kMax) return nullptr;
  switch (extra) {
    case ReduceExtra::kNone: return ReduceLoop<Format, Sum, AsIs, Whole>::base;
    case ReduceExtra::kScales: return ReduceLoop<Format, Sum, Scaled<Format>, Whole>::base;
    case ReduceExtra::kPowerOfTwo: return ReduceLoop<Format, Sum, AsIs, MultiplyByInverse<Format>>::base;
    default: break;
  }
  if constexpr (!std::is_void_v<Divisor>) return ReduceLoop<Format, Sum, AsIs, Divisor>::base;
  return nullptr;
}

}  // namespace

ReduceKernel arm_half_kernel(DataType type, ReduceOp op, ReduceExtra extra) {
  switch (type) {
    case DataType::kF16: return arm_kernel<ArmF16, DivideArmF16>(op, extra);
    case DataType::kBF16: return arm_kernel<ArmBf16, Divide<ArmBf16>>(op, extra);
    case DataType::kF8E4M3: return arm_kernel<ArmF8<base::F8E4M3>>(op, extra);
    case DataType::kF8E5M2: return arm_kernel<ArmF8<base::F8E5M2>>(op, extra);
    default: return nullptr;
  }
}

}  // namespace slip::comm

#else

namespace slip::comm {
ReduceKernel arm_half_kernel(DataType, ReduceOp, ReduceExtra) { return nullptr; }
}  // namespace slip::comm

#endif
