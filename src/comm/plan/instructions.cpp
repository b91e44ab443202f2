#include "comm/reduce/reduce_kernel.hpp"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace slip {

bool has_instructions(Instructions instructions) {
  switch (instructions) {
    case Instructions::kBase: return true;
#if defined(__x86_64__)
    case Instructions::kAvx2: return __builtin_cpu_supports("avx2");
    case Instructions::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
#if defined(__aarch64__) && defined(__linux__)
    case Instructions::kArmHalf:
      return (getauxval(AT_HWCAP) & HWCAP_ASIMDHP) != 0 && (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0 &&
             reduce_arm(DataType::kF16, ReduceOp::kSum, Extra::kNone) != nullptr;
#endif
    default: return false;
  }
}

Instructions best_instructions() {
  static const Instructions kBest = [] {
    for (const Instructions some : {Instructions::kAvx512, Instructions::kAvx2, Instructions::kArmHalf}) {
      if (has_instructions(some)) return some;
    }
    return Instructions::kBase;
  }();
  return kBest;
}

Kernel reduce_kernel(DataType type, ReduceOp op, Extra extra, Instructions instructions) {
  if (instructions == Instructions::kArmHalf) {
    if (const Kernel kernel = reduce_arm(type, op, extra)) return kernel;
  }
  for (auto* const part : {reduce_floats, reduce_small_floats, reduce_integers}) {
    if (const Kernel kernel = part(type, op, extra, instructions)) return kernel;
  }
  return nullptr;
}

}  // namespace slip
