// The built-in ops on a GPU: null functions in a build without CUDA.
#pragma once

#include "slip/kernel.hpp"

namespace slip::cuda {

#if SLIP_HAS_CUDA

void linear(const Args& args, CUstream_st* stream);
void bias(const Args& args, CUstream_st* stream);
void add(const Args& args, CUstream_st* stream);
void multiply(const Args& args, CUstream_st* stream);
void relu(const Args& args, CUstream_st* stream);
void gelu(const Args& args, CUstream_st* stream);
void silu(const Args& args, CUstream_st* stream);
void rms_norm(const Args& args, CUstream_st* stream);
void layer_norm(const Args& args, CUstream_st* stream);

#else

inline constexpr void (*linear)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*bias)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*add)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*multiply)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*relu)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*gelu)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*silu)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*rms_norm)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*layer_norm)(const Args&, CUstream_st*) = nullptr;

#endif

}  // namespace slip::cuda
