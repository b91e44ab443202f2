// Reductions: how the values of several ranks become one.
//
// The bits of a result depend on the values and on the order of the ranks only. The machine, the vector width and the
// alignment do not matter, nor how many ranks are reduced at a time. After each rank the intermediate value is rounded
// to the data type. So a ring and an algorithm that reads all ranks at once give the same bits for the same rank order.
//
// - Integers wrap around.
// - f32 and f64 round to nearest, ties to even. f16, bf16 and the two f8 types are computed in f32 and rounded the same
//   way. That is the correctly rounded result, except for an average over more than 2048 ranks.
// - f16 and bf16 overflow to infinity. The f8 types saturate: a value that is too large, or an infinity, becomes the
//   largest number (448 for e4m3, 57344 for e5m2), as in CUDA's conversions. A NaN stays a NaN of unspecified payload.
// - kMin, kMax: a NaN is ignored if there is any number, and -0 is less than +0, like fmin and fmax on a GPU. The
//   result is one of the inputs, so an e5m2 infinity stays an infinity.
// - kAvg: the sum, then one division by the number of ranks, rounded as above. Integer averages round towards zero,
//   after the sum has wrapped around. (NCCL multiplies each float by 1/ranks before adding, which rounds more often.)
// - kPreMulSum: each rank's values times that rank's own factor, rounded to the type, then the sum.
// - Calls that SLIP_NCCL hands to NVIDIA's NCCL have NCCL's arithmetic instead (docs/nccl.md).
// - A single rank keeps its bits, unless they are divided or multiplied.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "slip/data_type.hpp"

namespace slip {

enum class ReduceOp : std::uint8_t { kSum, kProd, kMin, kMax, kAvg, kPreMulSum };

const char* reduce_op_name(ReduceOp op);  // "sum", "prod", "min", "max", "avg", "premulsum"
std::optional<ReduceOp> reduce_op_of(std::string_view name);

// What a reducing collective does: an operator, and this rank's factor if the operator is kPreMulSum.
struct ReduceSpec {
  ReduceSpec(ReduceOp kind) : op(kind) {}  // NOLINT(google-explicit-constructor): calls pass the operator itself
  ReduceSpec(ReduceOp kind, double own_factor) : op(kind), factor(own_factor) {}
  ReduceOp op;
  std::optional<double> factor = {};
};

// This rank's values are multiplied by `factor` before they are added. Each rank may pass a different factor. The
// call converts it to its data type, and throws kInvalidValue if it is out of range. NCCL: ncclRedOpCreatePreMulSum.
inline ReduceSpec premul_sum(double factor) { return {ReduceOp::kPreMulSum, factor}; }

// True for NCCL's twelve types: all types except bool, u16 and i16.
bool can_reduce(DataType type);

}  // namespace slip
