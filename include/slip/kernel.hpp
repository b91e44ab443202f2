// Kernel: a named function with one implementation per kind of device. Args: the arguments of one launch.
//
// A kernel is plain data, so plans can refer to it and the same program runs on every device. Its functions get all
// their inputs through Args: the ranges of the launch, in the order given, and the scalars.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <vector>

#include "slip/name.hpp"

struct CUstream_st;  // cudaStream_t is CUstream_st*; declared here so that users need no CUDA header

namespace slip {

// One scalar argument: an integer, a floating-point number or a pointer.
class Scalar {
 public:
  constexpr Scalar() = default;
  template <class T>
  requires std::is_arithmetic_v<T> || std::is_pointer_v<T> Scalar(
      T value) {  // NOLINT(google-explicit-constructor): callers pass the value itself
    if constexpr (std::is_floating_point_v<T>) {
      kind_ = Kind::kReal, bits_ = std::bit_cast<std::uint64_t>(static_cast<double>(value));
    } else if constexpr (std::is_pointer_v<T>) {
      kind_ = Kind::kPointer, bits_ = reinterpret_cast<std::uintptr_t>(value);
    } else if constexpr (std::is_signed_v<T>) {
      kind_ = Kind::kSigned, bits_ = static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
    } else {
      kind_ = Kind::kUnsigned, bits_ = static_cast<std::uint64_t>(value);
    }
  }

  // The value as T. Numbers convert to any number type. A pointer is null if the scalar is not a pointer.
  template <class T>
  T as() const {
    if constexpr (std::is_pointer_v<T>) {
      return kind_ == Kind::kPointer ? reinterpret_cast<T>(static_cast<std::uintptr_t>(bits_)) : nullptr;
    } else {
      if (kind_ == Kind::kReal) return static_cast<T>(std::bit_cast<double>(bits_));
      if (kind_ == Kind::kSigned) return static_cast<T>(static_cast<std::int64_t>(bits_));
      return static_cast<T>(bits_);
    }
  }

 private:
  enum class Kind : std::uint8_t { kUnsigned, kSigned, kReal, kPointer };
  std::uint64_t bits_ = 0;
  Kind kind_ = Kind::kUnsigned;
};

// The memory of one range, as a kernel sees it.
struct ArgBytes {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

// The arguments of one launch, valid during the kernel's call only.
class Args {
 public:
  Args(std::span<const ArgBytes> reads, std::span<const ArgBytes> writes, std::span<const Scalar> scalars)
      : reads_(reads), writes_(writes), scalars_(scalars) {}

  std::size_t reads() const { return reads_.size(); }
  std::size_t writes() const { return writes_.size(); }

  // The i-th range read or written, as elements of T. Throws kInvalidValue if there is none.
  template <class T>
  std::span<const T> in(std::size_t i) const {
    const ArgBytes& piece = at(reads_, i, "in");
    return {reinterpret_cast<const T*>(piece.data), piece.bytes / sizeof(T)};
  }
  template <class T>
  std::span<T> out(std::size_t i) const {
    const ArgBytes& piece = at(writes_, i, "out");
    return {reinterpret_cast<T*>(piece.data), piece.bytes / sizeof(T)};
  }
  template <class T>
  T scalar(std::size_t i) const {
    return scalar_at(i).as<T>();
  }

 private:
  static const ArgBytes& at(std::span<const ArgBytes> pieces, std::size_t i, const char* which);
  const Scalar& scalar_at(std::size_t i) const;

  std::span<const ArgBytes> reads_, writes_;
  std::span<const Scalar> scalars_;
};

// `cpu` runs on cpu and sim devices; `cuda` enqueues work on the native stream that it gets. Either may be null: a
// launch on a device without an implementation throws. REQUIRES: a kernel outlives its launches; make it static.
struct Kernel {
  Name name;
  void (*cpu)(const Args&) = nullptr;
  void (*cuda)(const Args&, CUstream_st*) = nullptr;
};

// A list of scalars as an argument. It refers to the caller's list, like Ranges.
class Scalars {
 public:
  constexpr Scalars() = default;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Winit-list-lifetime"
  constexpr Scalars(std::initializer_list<Scalar> list) : data_(list.begin()), size_(list.size()) {}
#pragma GCC diagnostic pop
  constexpr Scalars(std::span<const Scalar> list) : data_(list.data()), size_(list.size()) {}
  Scalars(const std::vector<Scalar>& list) : data_(list.data()), size_(list.size()) {}

  constexpr const Scalar* begin() const { return data_; }
  constexpr const Scalar* end() const { return data_ + size_; }
  constexpr std::size_t size() const { return size_; }
  constexpr const Scalar& operator[](std::size_t i) const { return data_[i]; }

 private:
  const Scalar* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace slip
