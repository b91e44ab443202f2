// ReduceKernel: a function that reduces a few sources into one target. There is one for each data type, op, extra step
// and instruction set; reduce.cpp chooses among them. The loops themselves are in reduce_loop.hpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "comm/reduce/reduce.hpp"

namespace slip::comm {

// The maximum number of sources of one kernel call. Eight sources take two calls: the second call reads the result of
// the first.
constexpr std::size_t kMaxSources = 5;

struct KernelCall {
  std::byte* to = nullptr;
  std::array<const std::byte*, kMaxSources> from = {};
  std::size_t sources = 0;  // 1 to kMaxSources
  std::size_t bytes = 0;    // of each source; a multiple of kBlockBytes
  std::array<ReduceScale, kMaxSources> scales = {};
  std::uint64_t divisor = 1;
};

// Kernels reduce whole blocks only; the caller pads the last one. So each element goes through the same instructions at
// any index: there is no second loop for the tail that could round differently or pick another NaN.
constexpr std::size_t kBlockBytes = 64;

// What a kernel does besides adding. kScales: it multiplies each source by its factor. kDivisor: it divides the sum.
// kPowerOfTwo: the same for a power of two, so a kernel for floats multiplies by the inverse.
enum class ReduceExtra : std::uint8_t { kNone, kScales, kDivisor, kPowerOfTwo };

using ReduceKernel = void (*)(const KernelCall&);

// kBase: the instructions that every processor of the architecture has. kArmHalf: Arm's f16 arithmetic and bf16
// conversion; types that these do not make faster use kBase.
enum class InstructionSet : std::uint8_t { kBase, kAvx2, kAvx512, kArmHalf };
bool has_instructions(InstructionSet set);  // they are compiled in, and this processor has them

// REQUIRES: has_instructions(set). `extra` is for sums only. Returns null if the type cannot be reduced.
ReduceKernel reduce_kernel(DataType type, ReduceOp op, ReduceExtra extra, InstructionSet set);
// reduce_kernel() chooses between these two functions. They return null if they have no kernel for the type and op.
ReduceKernel portable_kernel(DataType type, ReduceOp op, ReduceExtra extra, InstructionSet set);
ReduceKernel arm_half_kernel(DataType type, ReduceOp op, ReduceExtra extra);

}  // namespace slip::comm
