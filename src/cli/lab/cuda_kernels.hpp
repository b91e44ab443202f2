// The kernels of the labs and of `slip devices` on a GPU; null pointers in a build without CUDA.
//
// A kernel with a pace computes, then occupies its share of the GPU until its time is over. Its blocks take that share
// of all resident threads, so kernels run concurrently exactly if their shares fit together.
#pragma once

#include <algorithm>
#include <cstdint>

#include "slip/kernel.hpp"

namespace slip::cli {

// Pace: scalar 0 of the labs' kernels. It packs the kernel's duration and its share of the device into one number. The
// share matters on a GPU only, where kernels occupy parts of the device. A kernel of the cpu device takes one core.
//
// Low 48 bits: nanoseconds. High bits: the unused share of the device, in units of 1/256. They are 0 in a plain number
// of nanoseconds, so such a kernel uses the whole device.
inline constexpr int kPaceBits = 48;

constexpr std::int64_t pace_of(std::int64_t nanoseconds, double width) {
  const auto used = std::clamp<std::int64_t>(static_cast<std::int64_t>(width * 256 + 0.5), 1, 256);
  return nanoseconds | ((256 - used) << kPaceBits);
}
constexpr std::int64_t pace_nanoseconds(std::int64_t pace) { return pace & ((std::int64_t{1} << kPaceBits) - 1); }
constexpr double pace_width(std::int64_t pace) { return static_cast<double>(256 - (pace >> kPaceBits)) / 256; }

static_assert(pace_nanoseconds(pace_of(1'000'000, 0.25)) == 1'000'000 && pace_width(pace_of(0, 0.25)) == 0.25);
static_assert(pace_of(5, 1.0) == 5 && pace_width(5) == 1.0);

}  // namespace slip::cli

namespace slip::cli::cuda {

#if SLIP_HAS_CUDA

// Loads the kernels. Otherwise the first launch may load them and wait for streams that a lab blocks: a deadlock.
void load_kernels();
// Number of threads of the flops kernel on this GPU. Each thread does the work of the whole cpu kernel.
double flops_threads();

void vector_add(const Args& args, CUstream_st* stream);
void saxpy(const Args& args, CUstream_st* stream);
void scale(const Args& args, CUstream_st* stream);
void busy(const Args& args, CUstream_st* stream);
void add_first(const Args& args, CUstream_st* stream);
void flops(const Args& args, CUstream_st* stream);
void nothing(const Args& args, CUstream_st* stream);

#else

inline void load_kernels() {}
inline double flops_threads() { return 1; }

using Launcher = void (*)(const Args&, CUstream_st*);
inline constexpr Launcher vector_add = nullptr, saxpy = nullptr, scale = nullptr, busy = nullptr, add_first = nullptr,
                          flops = nullptr, nothing = nullptr;

#endif

}  // namespace slip::cli::cuda
