// The rate of the host-to-device link with plain CUDA calls.
#pragma once

#include <cstddef>

#include "support/cuda_check.hpp"

namespace slip::bench {

// Bytes per second of cudaMemcpyAsync from this pinned memory, in pieces, for about `total_bytes`.
double raw_upload_rate(const void* pinned, std::size_t pinned_bytes, std::size_t piece_bytes, std::size_t total_bytes);

}  // namespace slip::bench
