#include "comm/reduce/reduce_loop.hpp"

namespace slip {

Kernel reduce_floats(DataType type, ReduceOp op, Extra extra, Instructions instructions) {
  switch (type) {
    case DataType::kF32: return plain_float_kernel<float>(op, extra, instructions);
    case DataType::kF64: return plain_float_kernel<double>(op, extra, instructions);
    default: return nullptr;
  }
}

}  // namespace slip
