// The kernel of the random programs on a GPU; null in a build without CUDA.
#pragma once

#include "slip/kernel.hpp"

namespace slip::stress::cuda {

#if SLIP_HAS_CUDA
void mix(const Args& args, CUstream_st* stream);
#else
inline constexpr void (*mix)(const Args&, CUstream_st*) = nullptr;
#endif

}  // namespace slip::stress::cuda
