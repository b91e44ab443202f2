// The loops, and the table of them for one type. Included by the reduce_*.cpp, which are compiled with -O3 and without
// fused multiply-add: the compiler vectorises them for each instruction set.
#pragma once

#include <utility>

#include "comm/reduce/reduce_formats.hpp"

namespace slip {

// An element at any address.
template <class T>
struct __attribute__((packed, may_alias)) Loose {
  T value;
};

template <class Format>
struct AsTheyAre {
  explicit AsTheyAre(const KernelCall&) {}
  template <std::size_t>
  typename Format::Carried apply(typename Format::Stored stored) const {
    return Format::lift(stored);
  }
};

template <class Format>
class Scaled {
 public:
  explicit Scaled(const KernelCall& call) {
    for (std::size_t i = 0; i < kMaxSources; ++i) scales_[i] = Format::scale(call.scales[i]);
  }
  template <std::size_t kSource>
  typename Format::Carried apply(typename Format::Stored stored) const {
    return Format::round(Format::open(Format::lift(stored)) * scales_[kSource]);
  }

 private:
  typename Format::Value scales_[kMaxSources];
};

template <class Format>
struct Undivided {
  explicit Undivided(const KernelCall&) {}
  typename Format::Carried apply(typename Format::Carried sum) const { return sum; }
};

template <class Format, class Op, class Before, class After>
struct Loop {
  using Stored = typename Format::Stored;

  // The sources in order; kRest are the indices after the first.
  template <std::size_t... kRest>
  [[gnu::always_inline]] static inline void run(const KernelCall& call, std::index_sequence<kRest...>) {
    const Before before(call);
    const After after(call);
    auto* to = reinterpret_cast<Loose<Stored>*>(call.to);
    const auto* first = reinterpret_cast<const Loose<Stored>*>(call.from[0]);
    [[maybe_unused]] const Loose<Stored>* const rest[] = {reinterpret_cast<const Loose<Stored>*>(call.from[kRest])...,
                                                          nullptr};
    // So the compiler knows that nothing is left over.
    const std::size_t elements = (call.bytes / kBlockBytes) * (kBlockBytes / sizeof(Stored));
#if !defined(__clang__)  // which compares the addresses first
#pragma GCC ivdep        // a target that is a source is the same element, never a neighbour
#endif
    for (std::size_t i = 0; i < elements; ++i) {
      typename Format::Carried sum = before.template apply<0>(first[i].value);
      ((sum = Format::round(
            Op::of(Format::open(sum), Format::open(before.template apply<kRest>(rest[kRest - 1][i].value))))),
       ...);
      to[i].value = Format::store(after.apply(sum));
    }
  }

  [[gnu::always_inline]] static inline void run_any(const KernelCall& call) {
    switch (call.sources) {
      case 1: return run(call, std::index_sequence<>());
      case 2: return run(call, std::index_sequence<1>());
      case 3: return run(call, std::index_sequence<1, 2>());
      case 4: return run(call, std::index_sequence<1, 2, 3>());
      default: return run(call, std::index_sequence<1, 2, 3, 4>());
    }
  }

  static void base(const KernelCall& call) { run_any(call); }
#if defined(__x86_64__)
  [[gnu::target("avx2")]] static void avx2(const KernelCall& call) { run_any(call); }
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl")]] static void avx512(const KernelCall& call) { run_any(call); }
#endif

  static Kernel with(Instructions instructions) {
#if defined(__x86_64__)
    if (instructions == Instructions::kAvx512) return avx512;
    if (instructions == Instructions::kAvx2) return avx2;
#endif
    (void)instructions;
    return base;
  }
};

// All that a type can be asked for.
template <class Format, class MinLoop, class GreatestLoop, class PowerOfTwo = Divide<Format>>
Kernel kernel_of(ReduceOp op, Extra extra, Instructions instructions) {
  using None = Undivided<Format>;
  switch (op) {
    case ReduceOp::kProd: return Loop<Format, Product, AsTheyAre<Format>, None>::with(instructions);
    case ReduceOp::kMin: return MinLoop::with(instructions);
    case ReduceOp::kMax: return GreatestLoop::with(instructions);
    default: break;
  }
  switch (extra) {
    case Extra::kScales: return Loop<Format, Sum, Scaled<Format>, None>::with(instructions);
    case Extra::kDivisor: return Loop<Format, Sum, AsTheyAre<Format>, Divide<Format>>::with(instructions);
    case Extra::kPowerOfTwo: return Loop<Format, Sum, AsTheyAre<Format>, PowerOfTwo>::with(instructions);
    default: return Loop<Format, Sum, AsTheyAre<Format>, None>::with(instructions);
  }
}

template <class Format, class Op>
using Compare = Loop<Format, Op, AsTheyAre<Format>, Undivided<Format>>;

template <class T>
Kernel integer_kernel(ReduceOp op, Extra extra, Instructions instructions) {
  return kernel_of<IntegerFormat<T>, Compare<PlainFormat<T>, Least>, Compare<PlainFormat<T>, Greatest>>(op, extra,
                                                                                                        instructions);
}

template <class T>
Kernel plain_float_kernel(ReduceOp op, Extra extra, Instructions instructions) {
  using Format = PlainFormat<T>;
  return kernel_of<Format, Compare<Format, MinFloat>, Compare<Format, GreatestFloat>, MultiplyByInverse<Format>>(
      op, extra, instructions);
}

// kInfinity: see OrderedFormat.
template <class T, auto kInfinity>
Kernel small_float_kernel(ReduceOp op, Extra extra, Instructions instructions) {
  using Format = SmallFormat<T>;
  using Bits = decltype(T::bits);
  return kernel_of<Format, Compare<OrderedFormat<Bits, kInfinity, true>, Least>,
                   Compare<OrderedFormat<Bits, kInfinity, false>, Greatest>, MultiplyByInverse<Format>>(op, extra,
                                                                                                        instructions);
}

}  // namespace slip
