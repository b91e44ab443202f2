// Reductions as include/slip/reduction.hpp words them, one element at a time in double and 128-bit integers. Shares no
// code with what is tested: floats are taken apart and put together by powers of two.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/reduce/reduce.hpp"

namespace slip {

bool is_float(DataType type);
bool is_nan_bits(DataType type, std::uint64_t bits);
double decode(DataType type, std::uint64_t bits);                 // floats
std::uint64_t encode(DataType type, double value);                // floats: rounded, ties to even
bool same_bits(DataType type, std::uint64_t a, std::uint64_t b);  // any NaN is any other

// The result for one element of each rank, in order.
std::uint64_t reference(const comm::Reduction& how, const std::vector<std::uint64_t>& ranks);

constexpr DataType kReducedTypes[] = {DataType::kI8,  DataType::kU8,  DataType::kI32,    DataType::kU32,
                                      DataType::kI64, DataType::kU64, DataType::kF16,    DataType::kBF16,
                                      DataType::kF32, DataType::kF64, DataType::kF8E4M3, DataType::kF8E5M2};
constexpr ReduceOp kReduceOps[] = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin,
                                   ReduceOp::kMax, ReduceOp::kAvg,  ReduceOp::kPreMulSum};

}  // namespace slip
