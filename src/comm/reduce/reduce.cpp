#include "comm/reduce/reduce.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/small_floats.hpp"
#include "comm/reduce/reduce_kernel.hpp"

namespace slip {
namespace {

// Of a chunk: what several passes over many sources keep in the nearest cache, with room for the sources beside it.
constexpr std::size_t kChunkBytes = 4096;

constexpr std::uint64_t kMaxPowerOfTwo = 1 << 14;  // its inverse is a number of every float that is computed with

constexpr std::array<const char*, 6> kOpNames = {"sum", "prod", "min", "max", "avg", "premulsum"};

void check(const Reduction& how, std::span<void* const> to, std::span<const void* const> from, Here here) {
  if (!can_reduce(how.type))
    throw Error(Code::kInvalidValue,
                fmt::format("values of type {} cannot be reduced; cast them to one of the other types",
                            data_type_name(how.type)),
                here);
  if (from.empty() || to.empty())
    throw Error(Code::kInvalidValue,
                fmt::format("a reduction from {} sources to {} targets; it needs one of each", from.size(), to.size()),
                here);
  if (!how.scales.empty() && how.scales.size() != from.size())
    throw Error(Code::kInvalidValue,
                fmt::format("{} scales for {} sources; give one for each, or none", how.scales.size(), from.size()),
                here);
  if (how.divisor == 0) throw Error(Code::kInvalidValue, "an average over 0 ranks; the divisor is their number", here);
}

Extra extra_of(const Reduction& how) {
  if (how.op == ReduceOp::kPreMulSum && !how.scales.empty()) return Extra::kScales;
  if (how.op == ReduceOp::kAvg && how.divisor > 1) {
    const bool exact = std::has_single_bit(how.divisor) && how.divisor <= kMaxPowerOfTwo;
    return exact ? Extra::kPowerOfTwo : Extra::kDivisor;
  }
  return Extra::kNone;
}

// The kernels for this processor, found once: finding one takes as long as adding a hundred values.
Kernel kernel_of(DataType type, ReduceOp op, Extra extra) {
  constexpr std::size_t kTypes = static_cast<std::size_t>(DataType::kF64) + 1, kExtras = 4;
  static const auto kKernels = [] {
    std::array<Kernel, kTypes * kOpNames.size()* kExtras> all = {};
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto of = static_cast<DataType>(i / kExtras / kOpNames.size());
      if (can_reduce(of))
        all[i] = reduce_kernel(of, static_cast<ReduceOp>(i / kExtras % kOpNames.size()),
                               static_cast<Extra>(i % kExtras), best_instructions());
    }
    return all;
  }();
  return kKernels[(static_cast<std::size_t>(type) * kOpNames.size() + static_cast<std::size_t>(op)) * kExtras +
                  static_cast<std::size_t>(extra)];
}

// The steps of one reduction over one chunk. More sources than a kernel takes are done in turns, whose results pass
// through `carry_`: they are rounded to the type after each source anyway, so nothing is lost on the way.
class Steps {
 public:
  Steps(const Reduction& how, std::span<const void* const> from)
      : how_(how), from_(from), width_(bytes_of(how.type)), extra_(extra_of(how)) {
    last_ = kernel_of(how.type, how.op, extra_);
    before_last_ = extra_ == Extra::kScales ? last_ : kernel_of(how.type, how.op, Extra::kNone);
  }

  bool is_copy() const { return from_.size() == 1 && extra_ == Extra::kNone; }
  std::size_t width() const { return width_; }

  // Whole blocks of `bytes`, which begin at `offset` in each source.
  void run(std::byte* to, std::size_t offset, std::size_t bytes) {
    KernelCall call{.bytes = bytes, .divisor = how_.divisor};
    std::size_t taken = 0;
    while (taken < from_.size()) {
      call.sources = 0;
      if (taken > 0) add(call, carry_.data(), ReduceScale::one(how_.type));
      while (call.sources < kMaxSources && taken < from_.size()) {
        const auto* source = static_cast<const std::byte*>(from_[taken]) + offset;
        add(call, source, extra_ == Extra::kScales ? how_.scales[taken] : ReduceScale{});
        ++taken;
      }
      const bool last = taken == from_.size();
      call.to = last ? to : carry_.data();
      (last ? last_ : before_last_)(call);
    }
  }

  // Less than a block, in one that is padded.
  void run_rest(std::byte* to, std::size_t offset, std::size_t bytes) {
    KernelCall call{.bytes = kBlockBytes, .divisor = how_.divisor};
    alignas(kBlockBytes) std::array<std::array<std::byte, kBlockBytes>, kMaxSources> padded;
    std::size_t taken = 0;
    while (taken < from_.size()) {
      call.sources = 0;
      if (taken > 0) add(call, padded[0].data(), ReduceScale::one(how_.type));
      while (call.sources < kMaxSources && taken < from_.size()) {
        std::byte* source = padded[call.sources].data();
        padded[call.sources] = {};
        std::memcpy(source, static_cast<const std::byte*>(from_[taken]) + offset, bytes);
        add(call, source, extra_ == Extra::kScales ? how_.scales[taken] : ReduceScale{});
        ++taken;
      }
      call.to = padded[0].data();
      (taken == from_.size() ? last_ : before_last_)(call);
    }
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
  std::size_t width_;
  Extra extra_;
  Kernel last_, before_last_;
  alignas(kBlockBytes) std::array<std::byte, kChunkBytes> carry_;
};

std::byte* at(void* target, std::size_t offset) { return static_cast<std::byte*>(target) + offset; }

}  // namespace

// Signatures of calls come from other processes: an op that does not exist has a name, too.
const char* reduce_op_name(ReduceOp op) {
  const auto index = static_cast<std::size_t>(op);
  return index < kOpNames.size() ? kOpNames[index] : "unknown op";
}

std::optional<ReduceOp> reduce_op_of(std::string_view name) {
  const auto* const found = std::find(kOpNames.begin(), kOpNames.end(), name);
  if (found == kOpNames.end()) return std::nullopt;
  return static_cast<ReduceOp>(found - kOpNames.begin());
}

bool can_reduce(DataType type) { return type != DataType::kBool && type != DataType::kU16 && type != DataType::kI16; }

ReduceScale ReduceScale::one(DataType type) {
  switch (type) {
    case DataType::kF32: return of(1.0F);
    case DataType::kF64: return of(1.0);
    case DataType::kF16: return of(from_float<F16>(1));
    case DataType::kBF16: return of(from_float<Bf16>(1));
    case DataType::kF8E4M3: return of(from_float<F8E4M3>(1));
    case DataType::kF8E5M2: return of(from_float<F8E5M2>(1));
    default: return of(std::uint64_t{1});  // its first bytes are those of any integer
  }
}

void reduce(const Reduction& how, std::span<void* const> to, std::span<const void* const> from, std::size_t elements,
            Here here) {
  check(how, to, from, here);
  if (elements == 0) return;
  Steps steps(how, from);
  const std::size_t bytes = elements * steps.width();
  if (steps.is_copy()) {
    for (void* target : to) copy(target, from[0], bytes);
    return;
  }
  const std::size_t rest = bytes % kBlockBytes, whole = bytes - rest;
  // A single pass needs no chunks.
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

}  // namespace slip
