// How elements are combined. A format says what a stored element becomes (Carried), as what it is computed with (Value)
// and how a result is rounded and stored again. What is carried from one source to the next is rounded already. All of
// it is inlined into the loops of reduce_loop.hpp.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "base/small_floats.hpp"
#include "comm/reduce/reduce_kernel.hpp"

namespace slip {

// Signed integers are added and multiplied as unsigned ones: these wrap around by definition.
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

// f32 and f64; also integers that are only compared.
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
struct SmallFormat {
  using Stored = decltype(T::bits);
  using Carried = Stored;
  using Value = float;
  static Carried lift(Stored stored) { return stored; }
  static Value open(Carried carried) { return to_float(T{carried}); }
  static Carried round(Value value) { return from_float<T>(value).bits; }
  static Stored store(Carried carried) { return carried; }
  static Value scale(const ReduceScale& scale) { return to_float(scale.as<T>()); }
  static Value number(double value) { return static_cast<Value>(value); }
};

// Small floats as integers of the same order: -0 below +0, and every NaN at the end where it loses.
// kInfinity: the bits above which a magnitude is NaN.
template <class Bits, Bits kInfinity, bool kIsMin>
struct OrderedFormat {
  using Stored = Bits;
  using Value = std::make_signed_t<Bits>;
  using Carried = Value;
  static constexpr Value kMagnitude = static_cast<Value>(static_cast<Bits>(~Bits{0}) >> 1);
  static constexpr Value kLoser = kIsMin ? kMagnitude : static_cast<Value>(~kMagnitude);

  static Carried lift(Stored stored) {
    const auto value = static_cast<Value>(stored);
    const auto magnitude = static_cast<Value>(value & kMagnitude);
    return magnitude > static_cast<Value>(kInfinity) ? kLoser : fold(value);
  }
  static Value open(Carried carried) { return carried; }
  static Carried round(Value value) { return value; }
  static Stored store(Carried carried) { return static_cast<Stored>(fold(carried)); }

 private:
  // Negative numbers in the opposite order; its own inverse.
  static Value fold(Value value) {
    return static_cast<Value>(value ^ (static_cast<Value>(value >> (8 * sizeof(Value) - 1)) & kMagnitude));
  }
};

struct Sum {
  template <class T>
  static auto of(T a, T b) {
    return a + b;
  }
};
struct Product {
  template <class T>
  static auto of(T a, T b) {
    return a * b;
  }
};
struct Least {
  template <class T>
  static T of(T a, T b) {
    return b < a ? b : a;
  }
};
struct Greatest {
  template <class T>
  static T of(T a, T b) {
    return a < b ? b : a;
  }
};

// Numbers that are equal have equal bits but for zeros, whose signs the `or` and the `and` decide. A comparison with
// NaN is false, so `a` goes if it is one. Min instructions are not the same on all machines in both.
template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
struct MinFloat {
  template <class T>
  static T of(T a, T b) {
    const auto x = std::bit_cast<BitsOf<T>>(a), y = std::bit_cast<BitsOf<T>>(b);
    const auto number = a == a ? x : y;
    const auto other = a == b ? x | y : number;
    return std::bit_cast<T>(b < a ? y : other);
  }
};
struct GreatestFloat {
  template <class T>
  static T of(T a, T b) {
    const auto x = std::bit_cast<BitsOf<T>>(a), y = std::bit_cast<BitsOf<T>>(b);
    const auto number = a == a ? x : y;
    const auto other = a == b ? x & y : number;
    return std::bit_cast<T>(a < b ? y : other);
  }
};

// Division of a whole sum by the number of ranks, rounded once.
template <class Format>
class Divide {
 public:
  explicit Divide(const KernelCall& call) : divisor_(Format::number(static_cast<double>(call.divisor))) {}
  typename Format::Carried apply(typename Format::Carried sum) const {
    return Format::round(Format::open(sum) / divisor_);
  }

 private:
  using Value = typename Format::Value;
  Value divisor_;
};

// The same bits where the divisor is a power of two, and several times as fast.
template <class Format>
class MultiplyByInverse {
 public:
  explicit MultiplyByInverse(const KernelCall& call)
      : inverse_(Format::number(1 / static_cast<double>(call.divisor))) {}
  typename Format::Carried apply(typename Format::Carried sum) const {
    return Format::round(Format::open(sum) * inverse_);
  }

 private:
  using Value = typename Format::Value;
  Value inverse_;
};

// Integers of up to 32 bits in doubles: (|x| + 1/2) / d is never within 1/2d of an integer, while its rounding error is
// less than 2^-18 / d; so cutting it off is exact, and no division is needed.
template <class T>
requires(sizeof(T) <= 4) class Divide<IntegerFormat<T>> {
 public:
  explicit Divide(const KernelCall& call) : inverse_(1.0 / static_cast<double>(call.divisor)) {}
  std::make_unsigned_t<T> apply(std::make_unsigned_t<T> sum) const {
    using Wide = std::conditional_t<std::is_signed_v<T>, std::int32_t, std::int64_t>;
    const auto number = static_cast<T>(sum);
    const double half = std::is_signed_v<T> && number < 0 ? -0.5 : 0.5;
    return static_cast<std::make_unsigned_t<T>>(static_cast<Wide>((static_cast<double>(number) + half) * inverse_));
  }

 private:
  double inverse_;
};

template <class T>
requires(sizeof(T) == 8) class Divide<IntegerFormat<T>> {
 public:
  explicit Divide(const KernelCall& call) : divisor_(call.divisor) {}
  std::uint64_t apply(std::uint64_t sum) const {
    const bool negative = std::is_signed_v<T> && sum >> 63;
    const std::uint64_t quotient = (negative ? -sum : sum) / divisor_;
    return negative ? -quotient : quotient;
  }

 private:
  std::uint64_t divisor_;
};

}  // namespace slip
