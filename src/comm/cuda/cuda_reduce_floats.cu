#include "comm/cuda/cuda_reduce.hpp"

namespace slip::comm {

CallKernel float_kernel(DataType type) {
  switch (type) {
    case DataType::kF32: return reduce_kernel<FloatElement<F32Bits>>;
    case DataType::kF64: return reduce_kernel<FloatElement<F64Bits>>;
    default: return nullptr;
  }
}

}  // namespace slip::comm
