// The rate of the host-to-device link with plain CUDA calls.
#pragma once

#include <cstddef>

#if SLIP_HAS_CUDA
#include "support/cuda_check.hpp"
#endif

namespace slip::bench {

#if SLIP_HAS_CUDA
// Bytes per second of cudaMemcpyAsync from this pinned memory, in pieces, for about `total_bytes`.
double raw_upload_rate(const void* pinned, std::size_t pinned_bytes, std::size_t piece_bytes, std::size_t total_bytes);
#else
inline bool has_gpu() { return false; }
inline double raw_upload_rate(const void*, std::size_t, std::size_t, std::size_t) { return 0; }
#endif

}  // namespace slip::bench
