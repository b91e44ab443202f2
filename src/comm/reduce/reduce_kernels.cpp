// The kernels of all data types without intrinsics, for each instruction set: instances of the loops in
// reduce_loop.hpp.
#include "comm/reduce/reduce_loop.hpp"

namespace slip::comm {
namespace {

// The kernel of one type for an op and an extra step. PowerOfTwo: the `After` of ReduceExtra::kPowerOfTwo.
template <class Format, class MinLoop, class MaxLoop, class PowerOfTwo = Divide<Format>>
ReduceKernel kernel_of(ReduceOp op, ReduceExtra extra, InstructionSet set) {
  using None = Undivided<Format>;
  switch (op) {
    case ReduceOp::kProd: return ReduceLoop<Format, Product, Unscaled<Format>, None>::with(set);
    case ReduceOp::kMin: return MinLoop::with(set);
    case ReduceOp::kMax: return MaxLoop::with(set);
    default: break;
  }
  switch (extra) {
    case ReduceExtra::kScales: return ReduceLoop<Format, Sum, Scaled<Format>, None>::with(set);
    case ReduceExtra::kDivisor: return ReduceLoop<Format, Sum, Unscaled<Format>, Divide<Format>>::with(set);
    case ReduceExtra::kPowerOfTwo: return ReduceLoop<Format, Sum, Unscaled<Format>, PowerOfTwo>::with(set);
    default: return ReduceLoop<Format, Sum, Unscaled<Format>, None>::with(set);
  }
}

template <class Format, class Op>
using Compare = ReduceLoop<Format, Op, Unscaled<Format>, Undivided<Format>>;

template <class T>
ReduceKernel integer_kernel(ReduceOp op, ReduceExtra extra, InstructionSet set) {
  return kernel_of<IntegerFormat<T>, Compare<PlainFormat<T>, Min>, Compare<PlainFormat<T>, Max>>(op, extra, set);
}

template <class T>
ReduceKernel plain_float_kernel(ReduceOp op, ReduceExtra extra, InstructionSet set) {
  using Format = PlainFormat<T>;
  return kernel_of<Format, Compare<Format, MinOrMaxFloat<true>>, Compare<Format, MinOrMaxFloat<false>>,
                   MultiplyByInverse<Format>>(op, extra, set);
}

// kMaxMagnitude: see OrderedFormat.
template <class T, auto kMaxMagnitude>
ReduceKernel small_float_kernel(ReduceOp op, ReduceExtra extra, InstructionSet set) {
  using Format = SmallFormat<T>;
  using Bits = decltype(T::bits);
  return kernel_of<Format, Compare<OrderedFormat<Bits, kMaxMagnitude, true>, Min>,
                   Compare<OrderedFormat<Bits, kMaxMagnitude, false>, Max>, MultiplyByInverse<Format>>(op, extra, set);
}

template <class T>
ReduceKernel small_kernel(ReduceOp op, ReduceExtra extra, InstructionSet set) {
  using Layout = base::FloatLayout<T>;
  constexpr auto kMaxMagnitude = static_cast<decltype(T::bits)>(Layout::kLargest + (Layout::kHasInfinity ? 1 : 0));
  return small_float_kernel<T, kMaxMagnitude>(op, extra, set);
}

}  // namespace

ReduceKernel portable_kernel(DataType type, ReduceOp op, ReduceExtra extra, InstructionSet set) {
  switch (type) {
    case DataType::kF32: return plain_float_kernel<float>(op, extra, set);
    case DataType::kF64: return plain_float_kernel<double>(op, extra, set);
    case DataType::kF16: return small_kernel<base::F16>(op, extra, set);
    case DataType::kBF16: return small_float_kernel<base::Bf16, std::uint16_t{0x7f80}>(op, extra, set);
    case DataType::kF8E4M3: return small_kernel<base::F8E4M3>(op, extra, set);
    case DataType::kF8E5M2: return small_kernel<base::F8E5M2>(op, extra, set);
    case DataType::kI8: return integer_kernel<std::int8_t>(op, extra, set);
    case DataType::kU8: return integer_kernel<std::uint8_t>(op, extra, set);
    case DataType::kI32: return integer_kernel<std::int32_t>(op, extra, set);
    case DataType::kU32: return integer_kernel<std::uint32_t>(op, extra, set);
    case DataType::kI64: return integer_kernel<std::int64_t>(op, extra, set);
    case DataType::kU64: return integer_kernel<std::uint64_t>(op, extra, set);
    default: return nullptr;
  }
}

}  // namespace slip::comm
