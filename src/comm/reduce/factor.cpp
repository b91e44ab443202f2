#include "comm/reduce/factor.hpp"

#include <fmt/format.h>

#include <limits>

#include "base/small_floats.hpp"

namespace slip {
namespace {

template <class T>
ReduceScale whole_scale(double factor, DataType type, Here here) {
  // Compared as doubles: 2^63 and 2^64, which the largest 64-bit numbers round to, do not fit.
  constexpr double kMin = static_cast<double>(std::numeric_limits<T>::min());
  constexpr double kTooLarge = 2.0 * static_cast<double>(T{1} << (std::numeric_limits<T>::digits - 1));
  if (!(factor >= kMin && factor < kTooLarge))
    throw Error(Code::kInvalidValue,
                fmt::format("a factor of {} is no number of type {}", factor, data_type_name(type)), here);
  return ReduceScale::of(static_cast<T>(factor));
}

}  // namespace

ReduceScale scale_of(DataType type, double factor, Here here) {
  switch (type) {
    case DataType::kU8: return whole_scale<std::uint8_t>(factor, type, here);
    case DataType::kI8: return whole_scale<std::int8_t>(factor, type, here);
    case DataType::kU32: return whole_scale<std::uint32_t>(factor, type, here);
    case DataType::kI32: return whole_scale<std::int32_t>(factor, type, here);
    case DataType::kU64: return whole_scale<std::uint64_t>(factor, type, here);
    case DataType::kI64: return whole_scale<std::int64_t>(factor, type, here);
    case DataType::kF16: return ReduceScale::of(from_float<F16>(static_cast<float>(factor)));
    case DataType::kBF16: return ReduceScale::of(from_float<Bf16>(static_cast<float>(factor)));
    case DataType::kF8E4M3: return ReduceScale::of(from_float<F8E4M3>(static_cast<float>(factor)));
    case DataType::kF8E5M2: return ReduceScale::of(from_float<F8E5M2>(static_cast<float>(factor)));
    case DataType::kF32: return ReduceScale::of(static_cast<float>(factor));
    case DataType::kF64: return ReduceScale::of(factor);
    case DataType::kBool:
    case DataType::kU16:
    case DataType::kI16: break;
  }
  throw Error(Code::kInvalidValue, fmt::format("values of {} cannot be reduced", data_type_name(type)), here);
}

}  // namespace slip
