// How the values of several ranks become one.
//
// The bits of a result depend on the values and on the order in which the ranks are taken, on nothing else: not on the
// machine, the vector width, the place or alignment in memory, nor on how many ranks are taken at a time. After each
// rank the value is rounded to its own type, as if it were passed on and continued by somebody else; so an algorithm
// that goes around a ring and one that takes all ranks at once agree wherever they take the ranks in the same order.
//
// - Integers wrap around.
// - f32 and f64 round to nearest, ties to even. f16, bf16 and the two f8 are computed in f32 and rounded so: the
//   correctly rounded result, but for an average over more than 2048 ranks.
// - f16 and bf16 overflow to infinity. The f8 types do not: what is too large, an infinity among it, becomes the
//   largest number (448 for e4m3, 57344 for e5m2), as in CUDA's conversions. A NaN stays a NaN; which one is not said.
// - kMin, kMax: a NaN is left out as long as there is a number, and -0 is less than +0, as fmin and fmax on a GPU. The
//   result is one of the values, so here an e5m2 infinity stays.
// - kAvg: the sum, then one division by the number of ranks, rounded as above; for integers towards zero, after the sum
//   has wrapped around. (NCCL multiplies each float by 1/ranks before it adds, which rounds more often.)
// - kPreMulSum: each rank's value times that rank's own factor, rounded to the type, then the sum.
// - One rank alone keeps its bits, whatever they are, unless it is divided or multiplied.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "slip/data_type.hpp"

namespace slip {

enum class ReduceOp : std::uint8_t { kSum, kProd, kMin, kMax, kAvg, kPreMulSum };

const char* reduce_op_name(ReduceOp op);  // "sum", "prod", "min", "max", "avg", "premulsum"
std::optional<ReduceOp> reduce_op_of(std::string_view name);

// The twelve types of NCCL: all but bool, u16 and i16.
bool can_reduce(DataType type);

}  // namespace slip
