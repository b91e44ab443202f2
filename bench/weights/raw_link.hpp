// What the link gives to plain CUDA calls.
#pragma once

#include <cstddef>

namespace slip::bench {

bool has_gpu();
// Bytes per second of cudaMemcpyAsync from this pinned memory, piece by piece, for about so many bytes in all.
double raw_upload_rate(const void* pinned, std::size_t pinned_bytes, std::size_t piece_bytes, std::size_t total_bytes);

}  // namespace slip::bench
