#include "comm/reduce/reduce_loop.hpp"

namespace slip {
namespace {

template <class T>
Kernel small_kernel(ReduceOp op, Extra extra, Instructions instructions) {
  using Layout = FloatLayout<T>;
  constexpr auto kTop = static_cast<decltype(T::bits)>(Layout::kLargest + (Layout::kHasInfinity ? 1 : 0));
  return small_float_kernel<T, kTop>(op, extra, instructions);
}

}  // namespace

Kernel reduce_small_floats(DataType type, ReduceOp op, Extra extra, Instructions instructions) {
  switch (type) {
    case DataType::kF16: return small_kernel<F16>(op, extra, instructions);
    case DataType::kBF16: return small_float_kernel<Bf16, std::uint16_t{0x7f80}>(op, extra, instructions);
    case DataType::kF8E4M3: return small_kernel<F8E4M3>(op, extra, instructions);
    case DataType::kF8E5M2: return small_kernel<F8E5M2>(op, extra, instructions);
    default: return nullptr;
  }
}

}  // namespace slip
