#include "comm/cuda/cuda_reduce.hpp"

namespace slip::comm {

CallKernel small_float_kernel(DataType type) {
  switch (type) {
    case DataType::kF16: return reduce_kernel<FloatElement<F16Bits>>;
    case DataType::kBF16: return reduce_kernel<FloatElement<Bf16Bits>>;
    case DataType::kF8E4M3: return reduce_kernel<FloatElement<F8Bits<__NV_E4M3>>>;
    case DataType::kF8E5M2: return reduce_kernel<FloatElement<F8Bits<__NV_E5M2>>>;
    default: return nullptr;
  }
}

}  // namespace slip::comm
