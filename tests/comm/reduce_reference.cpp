#include "reduce_reference.hpp"

#include <bit>
#include <cmath>
#include <limits>

namespace slip {
namespace {

struct Layout {
  int exponent_bits = 0, mantissa_bits = 0;
  bool infinity = true, saturates = false;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  std::uint64_t sign() const { return std::uint64_t{1} << (exponent_bits + mantissa_bits); }
  std::uint64_t largest() const { return infinity ? infinity_bits() - 1 : sign() - 2; }
  std::uint64_t infinity_bits() const { return ((std::uint64_t{1} << exponent_bits) - 1) << mantissa_bits; }
};

Layout layout_of(DataType type) {
  switch (type) {
    case DataType::kF8E4M3: return {4, 3, false, true};
    case DataType::kF8E5M2: return {5, 2, true, true};
    case DataType::kF16: return {5, 10, true, false};
    case DataType::kBF16: return {8, 7, true, false};
    case DataType::kF32: return {8, 23, true, false};
    default: return {11, 52, true, false};
  }
}

bool is_signed(DataType type) { return type == DataType::kI8 || type == DataType::kI32 || type == DataType::kI64; }

__extension__ using Wide = __int128;
__extension__ using Unsigned = unsigned __int128;

Wide integer(DataType type, std::uint64_t bits) {
  const int width = 8 * static_cast<int>(bytes_of(type));
  const Wide value = static_cast<Wide>(bits) & ((static_cast<Wide>(1) << width) - 1);
  return is_signed(type) && (value >> (width - 1)) ? value - (static_cast<Wide>(1) << width) : value;
}

std::uint64_t wrapped(DataType type, Wide value) {
  const int width = 8 * static_cast<int>(bytes_of(type));
  return static_cast<std::uint64_t>(static_cast<Unsigned>(value) & ((static_cast<Unsigned>(1) << width) - 1));
}

std::uint64_t combine_integers(const comm::Reduction& how, std::uint64_t a, std::uint64_t b) {
  const Wide x = integer(how.type, a), y = integer(how.type, b);
  switch (how.op) {
    case ReduceOp::kProd: {
      // 64-bit products need more than 127 bits only where they are cut off anyway.
      return wrapped(how.type, static_cast<Wide>(static_cast<Unsigned>(x) * static_cast<Unsigned>(y)));
    }
    case ReduceOp::kMin: return x < y ? a : b;
    case ReduceOp::kMax: return x > y ? a : b;
    default: return wrapped(how.type, x + y);
  }
}

std::uint64_t combine_floats(const comm::Reduction& how, std::uint64_t a, std::uint64_t b) {
  if (how.op == ReduceOp::kMin || how.op == ReduceOp::kMax) {
    if (is_nan_bits(how.type, a)) return b;
    if (is_nan_bits(how.type, b)) return a;
    const double x = decode(how.type, a), y = decode(how.type, b);
    const bool a_is_less = x < y || (x == y && std::signbit(x) && !std::signbit(y));
    return a_is_less == (how.op == ReduceOp::kMin) ? a : b;
  }
  const double x = decode(how.type, a), y = decode(how.type, b);
  return encode(how.type, how.op == ReduceOp::kProd ? x * y : x + y);
}

}  // namespace

bool is_float(DataType type) {
  return type == DataType::kF8E4M3 || type == DataType::kF8E5M2 || type == DataType::kF16 || type == DataType::kBF16 ||
         type == DataType::kF32 || type == DataType::kF64;
}

bool is_nan_bits(DataType type, std::uint64_t bits) {
  const Layout layout = layout_of(type);
  return (bits & (layout.sign() - 1)) > layout.largest() + (layout.infinity ? 1 : 0);
}

double decode(DataType type, std::uint64_t bits) {
  const Layout layout = layout_of(type);
  const double sign = bits & layout.sign() ? -1 : 1;
  const std::uint64_t magnitude = bits & (layout.sign() - 1);
  if (is_nan_bits(type, bits)) return std::numeric_limits<double>::quiet_NaN();
  if (magnitude > layout.largest()) return sign * std::numeric_limits<double>::infinity();
  const std::uint64_t one = std::uint64_t{1} << layout.mantissa_bits;
  const auto exponent = static_cast<int>(magnitude >> layout.mantissa_bits);
  const std::uint64_t mantissa = magnitude & (one - 1);
  const int scale = std::max(exponent, 1) - layout.bias() - layout.mantissa_bits;
  return sign * std::ldexp(static_cast<double>(exponent == 0 ? mantissa : mantissa + one), scale);
}

std::uint64_t encode(DataType type, double value) {
  if (type == DataType::kF64) return std::bit_cast<std::uint64_t>(value);
  const Layout layout = layout_of(type);
  const std::uint64_t sign = std::signbit(value) ? layout.sign() : 0;
  if (std::isnan(value)) return sign | (layout.sign() - 1);
  const double magnitude = std::fabs(value);
  const std::uint64_t overflow = layout.saturates ? layout.largest() : layout.infinity_bits();
  if (std::isinf(magnitude)) return sign | overflow;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), 1 - layout.bias());
  const double steps = std::nearbyint(std::ldexp(magnitude, layout.mantissa_bits - exponent));
  // A mantissa that rounds up to the next power of two carries into the exponent by itself.
  const auto bits = static_cast<std::uint64_t>(steps) +
                    (static_cast<std::uint64_t>(exponent + layout.bias() - 1) << layout.mantissa_bits);
  return sign | (bits > layout.largest() ? overflow : bits);
}

bool same_bits(DataType type, std::uint64_t a, std::uint64_t b) {
  return a == b || (is_float(type) && is_nan_bits(type, a) && is_nan_bits(type, b));
}

std::uint64_t reference(const comm::Reduction& how, const std::vector<std::uint64_t>& ranks) {
  const bool floats = is_float(how.type);
  std::uint64_t result = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    std::uint64_t value = ranks[i];
    if (how.op == ReduceOp::kPreMulSum && !how.scales.empty()) {
      const auto scale = how.scales[i].as<std::uint64_t>();
      value = floats ? encode(how.type, decode(how.type, value) * decode(how.type, scale))
                     : wrapped(how.type, static_cast<Wide>(static_cast<Unsigned>(integer(how.type, value)) *
                                                           static_cast<Unsigned>(integer(how.type, scale))));
    }
    if (i == 0) result = value;
    else result = floats ? combine_floats(how, result, value) : combine_integers(how, result, value);
  }
  if (how.op != ReduceOp::kAvg || how.divisor == 1) return result;
  if (floats && bytes_of(how.type) < 4) {  // divided in f32: with more than 2048 ranks not the same as in double
    const float quotient = static_cast<float>(decode(how.type, result)) / static_cast<float>(how.divisor);
    return encode(how.type, static_cast<double>(quotient));
  }
  if (floats) return encode(how.type, decode(how.type, result) / static_cast<double>(how.divisor));
  return wrapped(how.type, integer(how.type, result) / static_cast<Wide>(how.divisor));
}

}  // namespace slip
