// What does the reducing of a few sources, one function for each type, op and instruction set (reduce_loop.hpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "comm/reduce/reduce.hpp"

namespace slip {

constexpr std::size_t kMaxSources = 5;  // of one call; eight take two calls, one of them with a result of the other

struct KernelCall {
  std::byte* to = nullptr;
  std::array<const std::byte*, kMaxSources> from = {};
  std::size_t sources = 0;  // 1 to kMaxSources
  std::size_t bytes = 0;    // of each; whole blocks of kBlockBytes
  std::array<ReduceScale, kMaxSources> scales = {};
  std::uint64_t divisor = 1;
};

// Elements are reduced in whole blocks only; the caller pads the last one. So each element goes through the same
// instructions wherever it lies, and there is no second loop that could round another way or pick another NaN.
constexpr std::size_t kBlockBytes = 64;

// What is done beside adding; kPowerOfTwo: that divisor.
enum class Extra : std::uint8_t { kNone, kScales, kDivisor, kPowerOfTwo };

using Kernel = void (*)(const KernelCall&);

// kArmHalf: f16 arithmetic and bf16 conversion; where they are of no use it is kBase.
enum class Instructions : std::uint8_t { kBase, kAvx2, kAvx512, kArmHalf };
bool has_instructions(Instructions instructions);  // compiled in, and this processor has them
Instructions best_instructions();

// Of instructions that there are. `extra` is for sums only.
Kernel reduce_kernel(DataType type, ReduceOp op, Extra extra, Instructions instructions);
// Its parts; null: not of this part.
Kernel reduce_integers(DataType type, ReduceOp op, Extra extra, Instructions instructions);
Kernel reduce_floats(DataType type, ReduceOp op, Extra extra, Instructions instructions);
Kernel reduce_small_floats(DataType type, ReduceOp op, Extra extra, Instructions instructions);
Kernel reduce_arm(DataType type, ReduceOp op, Extra extra);

}  // namespace slip
