#include "comm/cuda/cuda_reduce.hpp"

namespace slip::comm {

CallKernel integer_kernel(DataType type) {
  switch (type) {
    case DataType::kU8: return reduce_kernel<IntegerElement<std::uint8_t>>;
    case DataType::kI8: return reduce_kernel<IntegerElement<std::int8_t>>;
    case DataType::kU32: return reduce_kernel<IntegerElement<std::uint32_t>>;
    case DataType::kI32: return reduce_kernel<IntegerElement<std::int32_t>>;
    case DataType::kU64: return reduce_kernel<IntegerElement<std::uint64_t>>;
    case DataType::kI64: return reduce_kernel<IntegerElement<std::int64_t>>;
    default: return nullptr;
  }
}

}  // namespace slip::comm
