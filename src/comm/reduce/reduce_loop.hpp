// The loops that reduce elements, as templates. reduce_kernels.cpp and reduce_arm.cpp instantiate them for each data
// type and op. Both files are compiled with -O3 (in release) and without fused multiply-add: the compiler vectorises
// the loops for each instruction set, and all instruction sets give the same bits.
//
// A format defines three types of an element: as it is stored in memory (Stored), as it is kept between two sources
// (Carried), and as it is computed with (Value). A Carried is already rounded to the data type. The functions
// of a format convert between them: lift() from Stored to Carried, open() from Carried to Value, round() from Value to
// Carried, store() from Carried to Stored. scale() makes a Value from a factor, number() from a divisor.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "base/small_floats.hpp"
#include "comm/reduce/reduce_kernel.hpp"

namespace slip::comm {

// Signed integers are added and multiplied as unsigned ones, because unsigned overflow is defined to wrap around.
template <class T>
struct IntegerFormat {
  using Stored = T;
  using Carried = std::make_unsigned_t<T>;
  using Value = Carried;
  static Carried lift(Stored stored) { return static_cast<Carried>(stored); }
  static Value open(Carried carried) { return carried; }
  static Carried round(auto value) { return static_cast<Carried>(value); }
  static Stored store(Carried carried) { return static_cast<Stored>(carried); }
  static Value scale(const ReduceScale& scale) { return scale.as<Value>(); }
  static Value number(std::uint64_t value) { return static_cast<Value>(value); }
};

// f32 and f64; also integers where they are only compared.
template <class T>
struct PlainFormat {
  using Stored = T;
  using Carried = T;
  using Value = T;
  static Carried lift(Stored stored) { return stored; }
  static Value open(Carried carried) { return carried; }
  static Carried round(Value value) { return value; }
  static Stored store(Carried carried) { return carried; }
  static Value scale(const ReduceScale& scale) { return scale.as<Value>(); }
  static Value number(double value) { return static_cast<Value>(value); }
};

template <class T>
struct SmallFormat : PlainFormat<decltype(T::bits)> {
  using Carried = decltype(T::bits);
  using Value = float;
  static Value open(Carried carried) { return base::to_float(T{carried}); }
  static Carried round(Value value) { return base::from_float<T>(value).bits; }
  static Value scale(const ReduceScale& scale) { return base::to_float(scale.as<T>()); }
  static Value number(double value) { return static_cast<Value>(value); }
};

// Maps small floats to integers in the same order, for min and max: -0 is below +0, and every NaN is mapped to the end
// of the order where it loses the comparison. kMaxMagnitude: the bits of infinity, or of the largest number if the type
// has no infinity. A magnitude with larger bits is NaN.
template <class Bits, Bits kMaxMagnitude, bool kIsMin>
struct OrderedFormat {
  using Stored = Bits;
  using Value = std::make_signed_t<Bits>;
  using Carried = Value;
  static constexpr Value kMagnitudeBits = static_cast<Value>(static_cast<Bits>(~Bits{0}) >> 1);
  static constexpr Value kLosingNan = kIsMin ? kMagnitudeBits : static_cast<Value>(~kMagnitudeBits);

  static Carried lift(Stored stored) {
    const auto value = static_cast<Value>(stored);
    const auto magnitude = static_cast<Value>(value & kMagnitudeBits);
    return magnitude > static_cast<Value>(kMaxMagnitude) ? kLosingNan : fold(value);
  }
  static Value open(Carried carried) { return carried; }
  static Carried round(Value value) { return value; }
  static Stored store(Carried carried) { return static_cast<Stored>(fold(carried)); }

 private:
  // Reverses the order of negative numbers. The function is its own inverse.
  static Value fold(Value value) {
    return static_cast<Value>(value ^ (static_cast<Value>(value >> (8 * sizeof(Value) - 1)) & kMagnitudeBits));
  }
};

struct Sum {
  static auto of(auto a, decltype(a) b) { return a + b; }
};
struct Product {
  static auto of(auto a, decltype(a) b) { return a * b; }
};
struct Min {
  static auto of(auto a, decltype(a) b) { return b < a ? b : a; }
};
struct Max {
  static auto of(auto a, decltype(a) b) { return a < b ? b : a; }
};

// Min and max of floats by comparisons, because the min instructions of different processors disagree on zeros and NaN.
// Equal numbers have equal bits except zeros: `or` keeps the sign bit for min, `and` drops it for max. Comparisons with
// NaN are false, so if `a` is NaN the result is `b`.
template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
template <bool kIsMin>
struct MinOrMaxFloat {
  template <class T>
  static T of(T a, T b) {
    const auto x = std::bit_cast<BitsOf<T>>(a), y = std::bit_cast<BitsOf<T>>(b);
    const auto number = a == a ? x : y;  // NOLINT(misc-redundant-expression): false if a is NaN
    const auto other = a == b ? (kIsMin ? x | y : x & y) : number;
    return std::bit_cast<T>((kIsMin ? b < a : a < b) ? y : other);
  }
};

// Divides the complete sum by the number of ranks and rounds once.
template <class Format>
struct Divide {
  using Carried = typename Format::Carried;
  typename Format::Value divisor;
  explicit Divide(const KernelCall& call) : divisor(Format::number(static_cast<double>(call.divisor))) {}
  Carried apply(Carried sum) const { return Format::round(Format::open(sum) / divisor); }
};

// Gives the same bits as Divide if the divisor is a power of two, and is several times as fast.
template <class Format>
struct MultiplyByInverse {
  using Carried = typename Format::Carried;
  typename Format::Value inverse;
  explicit MultiplyByInverse(const KernelCall& call) : inverse(Format::number(1 / static_cast<double>(call.divisor))) {}
  Carried apply(Carried sum) const { return Format::round(Format::open(sum) * inverse); }
};

// Divides integers of up to 32 bits as doubles. (|x| + 1/2) / d is at least 1/(2d) away from any integer, and its
// rounding error is below 2^-18 / d. So truncation is exact, and no integer division is needed.
template <class T>
requires(sizeof(T) <= 4) struct Divide<IntegerFormat<T>> {
  double inverse;
  explicit Divide(const KernelCall& call) : inverse(1.0 / static_cast<double>(call.divisor)) {}
  std::make_unsigned_t<T> apply(std::make_unsigned_t<T> sum) const {
    using Wide = std::conditional_t<std::is_signed_v<T>, std::int32_t, std::int64_t>;
    const auto number = static_cast<T>(sum);
    const double half = std::is_signed_v<T> && number < 0 ? -0.5 : 0.5;
    return static_cast<std::make_unsigned_t<T>>(static_cast<Wide>((static_cast<double>(number) + half) * inverse));
  }
};

template <class T>
requires(sizeof(T) == 8) struct Divide<IntegerFormat<T>> {
  std::uint64_t divisor;
  explicit Divide(const KernelCall& call) : divisor(call.divisor) {}
  std::uint64_t apply(std::uint64_t sum) const {
    const bool negative = std::is_signed_v<T> && sum >> 63;
    const std::uint64_t quotient = (negative ? -sum : sum) / divisor;
    return negative ? -quotient : quotient;
  }
};

// An element at an address of any alignment.
template <class T>
struct __attribute__((packed, may_alias)) Unaligned {
  T value;
};

template <class Format>
struct Unscaled {
  explicit Unscaled(const KernelCall&) {}
  template <std::size_t>
  typename Format::Carried apply(typename Format::Stored stored) const {
    return Format::lift(stored);
  }
};

template <class Format>
struct Scaled {
  typename Format::Value scales[kMaxSources];
  explicit Scaled(const KernelCall& call) {
    for (std::size_t i = 0; i < kMaxSources; ++i) scales[i] = Format::scale(call.scales[i]);
  }
  template <std::size_t kSource>
  typename Format::Carried apply(typename Format::Stored stored) const {
    return Format::round(Format::open(Format::lift(stored)) * scales[kSource]);
  }
};

template <class Format>
struct Undivided {
  explicit Undivided(const KernelCall&) {}
  typename Format::Carried apply(typename Format::Carried sum) const { return sum; }
};

// Op combines two values. Before converts each source (Unscaled or Scaled). After converts the sum (Undivided, Divide
// or MultiplyByInverse).
template <class Format, class Op, class Before, class After>
struct ReduceLoop {
  using Stored = typename Format::Stored;

  // Reduces the sources in order. kRest: the indices of all sources but the first.
  template <std::size_t... kRest>
  [[gnu::always_inline]] static inline void run(const KernelCall& call, std::index_sequence<kRest...>) {
    const Before before(call);
    const After after(call);
    auto* to = reinterpret_cast<Unaligned<Stored>*>(call.to);
    const auto* first = reinterpret_cast<const Unaligned<Stored>*>(call.from[0]);
    [[maybe_unused]] const Unaligned<Stored>* const rest[] = {
        reinterpret_cast<const Unaligned<Stored>*>(call.from[kRest])..., nullptr};
    // This form tells the compiler that the count is a multiple of the vector length, so it emits no tail loop.
    const std::size_t elements = (call.bytes / kBlockBytes) * (kBlockBytes / sizeof(Stored));
#if !defined(__clang__)  // clang vectorises without the pragma: it checks at run time that the ranges do not overlap
#pragma GCC ivdep        // a target that is also a source is read and written at the same element, never at a neighbour
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

  static ReduceKernel with(InstructionSet set) {
#if defined(__x86_64__)
    if (set == InstructionSet::kAvx512) return avx512;
    if (set == InstructionSet::kAvx2) return avx2;
#endif
    (void)set;
    return base;
  }
};

}  // namespace slip::comm
