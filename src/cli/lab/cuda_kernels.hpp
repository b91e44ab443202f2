// The kernels of the labs and of `slip devices` on a GPU: null functions in a build without CUDA.
//
// A kernel with a pace (pace.hpp) does its arithmetic and then keeps its share of the GPU until its time is over: its
// blocks take that part of all places for threads, so that kernels run side by side exactly if their shares fit.
#pragma once

#include "slip/kernel.hpp"

namespace slip::cli::cuda {

#if SLIP_HAS_CUDA

// Loads the kernels: a first launch may have to, and would then wait for streams that a lab holds back.
void load_kernels();
// Threads of the flops kernel on the GPU in use, each of which does what the whole kernel does on cpu.
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

inline constexpr void (*vector_add)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*saxpy)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*scale)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*busy)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*add_first)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*flops)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*nothing)(const Args&, CUstream_st*) = nullptr;

#endif

}  // namespace slip::cli::cuda
