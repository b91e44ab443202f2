#include "comm/reduce/reduce.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/fail.hpp"
#include "base/small_floats.hpp"
#include "comm/reduce/reduce_kernel.hpp"

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace slip::comm {
namespace {

// With many sources the kernel reads and writes each chunk several times, so a chunk and its sources must fit into the
// L1 cache.
constexpr std::size_t kChunkBytes = 4096;

constexpr std::uint64_t kMaxPowerOfTwo = 1 << 14;  // every float type that kernels compute with holds its inverse

constexpr std::array<const char*, 6> kOpNames = {"sum", "prod", "min", "max", "avg", "premulsum"};

ReduceExtra extra_of(const Reduction& how) {
  if (how.op == ReduceOp::kPreMulSum && !how.scales.empty()) return ReduceExtra::kScales;
  if (how.op == ReduceOp::kAvg && how.divisor > 1) {
    const bool exact = std::has_single_bit(how.divisor) && how.divisor <= kMaxPowerOfTwo;
    return exact ? ReduceExtra::kPowerOfTwo : ReduceExtra::kDivisor;
  }
  return ReduceExtra::kNone;
}

InstructionSet best_instructions() {
  for (const InstructionSet some : {InstructionSet::kAvx512, InstructionSet::kAvx2, InstructionSet::kArmHalf}) {
    if (has_instructions(some)) return some;
  }
  return InstructionSet::kBase;
}

// A table of the kernels for this processor, filled once, because choosing a kernel takes as long as adding a hundred
// values.
ReduceKernel kernel_of(DataType type, ReduceOp op, ReduceExtra extra) {
  constexpr std::size_t kTypes = static_cast<std::size_t>(DataType::kF64) + 1, kExtras = 4;
  static const auto kKernels = [] {
    std::array<ReduceKernel, kTypes * kOpNames.size()* kExtras> all = {};
    const InstructionSet best = best_instructions();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto of = static_cast<DataType>(i / kExtras / kOpNames.size());
      if (can_reduce(of))
        all[i] = reduce_kernel(of, static_cast<ReduceOp>(i / kExtras % kOpNames.size()),
                               static_cast<ReduceExtra>(i % kExtras), best);
    }
    return all;
  }();
  return kKernels[(static_cast<std::size_t>(type) * kOpNames.size() + static_cast<std::size_t>(op)) * kExtras +
                  static_cast<std::size_t>(extra)];
}

std::byte* at(void* target, std::size_t offset) { return static_cast<std::byte*>(target) + offset; }
const std::byte* at(const void* source, std::size_t offset) { return static_cast<const std::byte*>(source) + offset; }

// Reduces one chunk after the other. A kernel takes at most kMaxSources sources, so more sources take several passes.
// Each pass leaves its result in `carry_` for the next. A kernel rounds to the type after each source anyway, so passes
// lose no precision.
class Steps {
 public:
  Steps(const Reduction& how, std::span<const void* const> from) : how_(how), from_(from), extra_(extra_of(how)) {
    last_ = kernel_of(how.type, how.op, extra_);
    before_last_ = extra_ == ReduceExtra::kScales ? last_ : kernel_of(how.type, how.op, ReduceExtra::kNone);
  }

  bool is_copy() const { return from_.size() == 1 && extra_ == ReduceExtra::kNone; }

  // Reduces `bytes` (whole blocks), pass by pass. `take`: returns the bytes of a source, which is the kernel's source
  // `index`.
  void run(std::byte* to, std::byte* carry, std::size_t bytes, auto&& take) {
    KernelCall call{.bytes = bytes, .divisor = how_.divisor};
    std::size_t taken = 0;
    while (taken < from_.size()) {
      call.sources = 0;
      if (taken > 0) add(call, carry, ReduceScale::one(how_.type));
      for (; call.sources < kMaxSources && taken < from_.size(); ++taken)
        add(call, take(taken, call.sources), extra_ == ReduceExtra::kScales ? how_.scales[taken] : ReduceScale{});
      const bool last = taken == from_.size();
      call.to = last ? to : carry;
      (last ? last_ : before_last_)(call);
    }
  }

  // Reduces `bytes` (whole blocks) that begin at `offset` in each source.
  void run(std::byte* to, std::size_t offset, std::size_t bytes) {
    run(to, carry_.data(), bytes, [&](std::size_t source, std::size_t) { return at(from_[source], offset); });
  }

  // Reduces the last bytes, less than a block, in padded copies.
  void run_rest(std::byte* to, std::size_t offset, std::size_t bytes) {
    alignas(kBlockBytes) std::array<std::array<std::byte, kBlockBytes>, kMaxSources> padded;
    run(padded[0].data(), padded[0].data(), kBlockBytes, [&](std::size_t source, std::size_t index) {
      padded[index] = {};
      std::memcpy(padded[index].data(), at(from_[source], offset), bytes);
      return padded[index].data();
    });
    std::memcpy(to, padded[0].data(), bytes);
  }

 private:
  static void add(KernelCall& call, const std::byte* source, const ReduceScale& scale) {
    call.from[call.sources] = source;
    call.scales[call.sources] = scale;
    ++call.sources;
  }

  const Reduction& how_;
  std::span<const void* const> from_;
  ReduceExtra extra_;
  ReduceKernel last_, before_last_;
  alignas(kBlockBytes) std::array<std::byte, kChunkBytes> carry_;
};

// Less than a block from few sources: one call of the kernel, with padded copies. Steps would take several times as
// long.
void reduce_few(const Reduction& how, std::span<void* const> to, std::span<const void* const> from, std::size_t bytes) {
  const ReduceExtra extra = extra_of(how);
  alignas(kBlockBytes) std::array<std::array<std::byte, kBlockBytes>, kMaxSources> padded;
  KernelCall call{.to = padded[0].data(), .sources = from.size(), .bytes = kBlockBytes, .divisor = how.divisor};
  for (std::size_t i = 0; i < from.size(); ++i) {
    padded[i] = {};
    copy_few(padded[i].data(), from[i], bytes);
    call.from[i] = padded[i].data();
    if (extra == ReduceExtra::kScales) call.scales[i] = how.scales[i];
  }
  kernel_of(how.type, how.op, extra)(call);
  for (void* target : to) copy_few(target, padded[0].data(), bytes);
}

template <class T>
ReduceScale whole_scale(double factor, DataType type, Here here) {
  // Compared as doubles. The largest 64-bit numbers round up to 2^63 and 2^64, which do not fit the type, so the upper
  // bound is exclusive.
  constexpr double kMin = static_cast<double>(std::numeric_limits<T>::min());
  constexpr double kTooLarge = 2.0 * static_cast<double>(T{1} << (std::numeric_limits<T>::digits - 1));
  if (!(factor >= kMin && factor < kTooLarge))
    base::fail(ErrorCode::kInvalidValue, here, "the factor {} is out of range for type {}", factor,
               data_type_name(type));
  return ReduceScale::of(static_cast<T>(factor));
}

}  // namespace

ReduceScale ReduceScale::one(DataType type) { return scale_of(type, 1, {}); }

ReduceScale scale_of(DataType type, double factor, Here here) {
  switch (type) {
    case DataType::kU8: return whole_scale<std::uint8_t>(factor, type, here);
    case DataType::kI8: return whole_scale<std::int8_t>(factor, type, here);
    case DataType::kU32: return whole_scale<std::uint32_t>(factor, type, here);
    case DataType::kI32: return whole_scale<std::int32_t>(factor, type, here);
    case DataType::kU64: return whole_scale<std::uint64_t>(factor, type, here);
    case DataType::kI64: return whole_scale<std::int64_t>(factor, type, here);
    case DataType::kF16: return ReduceScale::of(base::from_float<base::F16>(static_cast<float>(factor)));
    case DataType::kBF16: return ReduceScale::of(base::from_float<base::Bf16>(static_cast<float>(factor)));
    case DataType::kF8E4M3: return ReduceScale::of(base::from_float<base::F8E4M3>(static_cast<float>(factor)));
    case DataType::kF8E5M2: return ReduceScale::of(base::from_float<base::F8E5M2>(static_cast<float>(factor)));
    case DataType::kF32: return ReduceScale::of(static_cast<float>(factor));
    case DataType::kF64: return ReduceScale::of(factor);
    case DataType::kBool:
    case DataType::kU16:
    case DataType::kI16: break;
  }
  base::fail(ErrorCode::kInvalidValue, here, "values of {} cannot be reduced", data_type_name(type));
}

bool has_instructions(InstructionSet set) {
  switch (set) {
    case InstructionSet::kBase: return true;
#if defined(__x86_64__)
    case InstructionSet::kAvx2: return __builtin_cpu_supports("avx2");
    case InstructionSet::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
#if defined(__aarch64__) && defined(__linux__)
    case InstructionSet::kArmHalf:
      return (getauxval(AT_HWCAP) & HWCAP_ASIMDHP) != 0 && (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0 &&
             arm_half_kernel(DataType::kF16, ReduceOp::kSum, ReduceExtra::kNone) != nullptr;
#endif
    default: return false;
  }
}

ReduceKernel reduce_kernel(DataType type, ReduceOp op, ReduceExtra extra, InstructionSet set) {
  if (set == InstructionSet::kArmHalf) {
    if (const ReduceKernel kernel = arm_half_kernel(type, op, extra)) return kernel;
  }
  return portable_kernel(type, op, extra, set);
}

void reduce(const Reduction& how, std::span<void* const> to, std::span<const void* const> from, std::size_t elements) {
  if (elements == 0) return;
  const std::size_t bytes = elements * bytes_of(how.type);
  if (bytes < kBlockBytes && from.size() > 1 && from.size() <= kMaxSources) return reduce_few(how, to, from, bytes);
  Steps steps(how, from);
  if (steps.is_copy()) {
    for (void* target : to) copy(target, from[0], bytes);
    return;
  }
  const std::size_t rest = bytes % kBlockBytes, whole = bytes - rest;
  // A single pass over each source needs no chunks.
  const std::size_t chunk = to.size() == 1 && from.size() <= kMaxSources ? whole : kChunkBytes;
  for (std::size_t offset = 0; offset < whole; offset += chunk) {
    const std::size_t part = std::min(chunk, whole - offset);
    steps.run(at(to[0], offset), offset, part);
    for (void* target : to.subspan(1)) std::memcpy(at(target, offset), at(to[0], offset), part);
  }
  if (rest == 0) return;
  steps.run_rest(at(to[0], whole), whole, rest);
  for (void* target : to.subspan(1)) std::memcpy(at(target, whole), at(to[0], whole), rest);
}

}  // namespace slip::comm

namespace slip {

// Call signatures come from other processes, so the op may be out of range.
const char* reduce_op_name(ReduceOp op) {
  const auto index = static_cast<std::size_t>(op);
  return index < comm::kOpNames.size() ? comm::kOpNames[index] : "unknown op";
}

std::optional<ReduceOp> reduce_op_of(std::string_view name) {
  const auto* const found = std::ranges::find(comm::kOpNames, name);
  if (found == comm::kOpNames.end()) return std::nullopt;
  return static_cast<ReduceOp>(found - comm::kOpNames.begin());
}

bool can_reduce(DataType type) { return type != DataType::kBool && type != DataType::kU16 && type != DataType::kI16; }

}  // namespace slip
