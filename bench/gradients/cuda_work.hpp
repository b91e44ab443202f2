// The backward pass of a layer on a GPU, for the bars of bench/gradients/gpu.cpp; without CUDA there is no GPU.
#pragma once

#include "slip/kernel.hpp"
#if SLIP_HAS_CUDA
#include "support/cuda_check.hpp"
#endif

namespace slip::bench {

#if SLIP_HAS_CUDA
int multiprocessors();
// Loads the kernel before any other kernel waits on the GPU.
void load_work();
// Fused multiply-adds with operands in shared memory, then out 0 = scalar 2 as floats. Scalars: the number of blocks,
// of which one fits on a multiprocessor, and the number of rounds.
void work(const Args& args, CUstream_st* stream);
#else
inline bool has_gpu() { return false; }
inline int multiprocessors() { return 1; }
inline void load_work() {}
inline constexpr void (*work)(const Args&, CUstream_st*) = nullptr;
#endif

}  // namespace slip::bench
