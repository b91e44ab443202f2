#include "comm/reduce/reduce_loop.hpp"

namespace slip {

Kernel reduce_integers(DataType type, ReduceOp op, Extra extra, Instructions instructions) {
  switch (type) {
    case DataType::kI8: return integer_kernel<std::int8_t>(op, extra, instructions);
    case DataType::kU8: return integer_kernel<std::uint8_t>(op, extra, instructions);
    case DataType::kI32: return integer_kernel<std::int32_t>(op, extra, instructions);
    case DataType::kU32: return integer_kernel<std::uint32_t>(op, extra, instructions);
    case DataType::kI64: return integer_kernel<std::int64_t>(op, extra, instructions);
    case DataType::kU64: return integer_kernel<std::uint64_t>(op, extra, instructions);
    default: return nullptr;
  }
}

}  // namespace slip
