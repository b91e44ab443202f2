// The kernels of Gradients on a GPU; null pointers in a build without CUDA.
//
// They run at the same time as the kernels of the backward pass, so kernels of a reduction use few blocks. Sums are
// added in an order that depends only on the number of elements: the same gradients give the same bits in every run.
#pragma once

#include "slip/kernel.hpp"

namespace slip::flow::cuda {

// Number of partial sums that square() writes at most; they are doubles.
inline constexpr int kMaxPartialSums = 64;

using Launch = void(const Args& args, CUstream_st* stream);

#if SLIP_HAS_CUDA

// Loads the kernels. Otherwise the first launch may load them, and loading waits until the GPU is idle. If a kernel
// runs there that waits for this rank, that would be a deadlock.
void load_kernels();

// out 0 = in 0, converted from f32 or to f32.
Launch pack_f16, pack_bf16, unpack_f16, unpack_bf16;
// out 0 = the sum of the squares of in 0, as a double. out 1: memory for kMaxPartialSums doubles.
Launch square_f32, square_f64, square_f16, square_bf16;
// out 0 = the sum of the doubles in 0, times scalar 0; added to out 0 if scalar 1 is not 0.
Launch total;
// out 0 = the norm, the root of in 0. out 1 = the factor that makes it at most scalar 0.
Launch factor;
// out 0 *= in 0, a double.
Launch scale_f32, scale_f64, scale_f16, scale_bf16;

#else

inline void load_kernels() {}

inline constexpr Launch *pack_f16 = nullptr, *pack_bf16 = nullptr, *unpack_f16 = nullptr, *unpack_bf16 = nullptr,
                        *square_f32 = nullptr, *square_f64 = nullptr, *square_f16 = nullptr, *square_bf16 = nullptr,
                        *total = nullptr, *factor = nullptr, *scale_f32 = nullptr, *scale_f64 = nullptr,
                        *scale_f16 = nullptr, *scale_bf16 = nullptr;

#endif

}  // namespace slip::flow::cuda
