// The kernels of the labs and of `slip devices` on a GPU; null pointers in a build without CUDA.
//
// A kernel with a pace (pace.hpp) computes, then occupies its share of the GPU until its time is over. Its blocks take
// that share of all resident threads, so kernels run concurrently exactly if their shares fit together.
#pragma once

#include "slip/kernel.hpp"

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
