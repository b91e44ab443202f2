// The calls of the CUDA runtime that libnccl.so.2 makes itself. All other CUDA work is done by the cuda backend.
// Compiled only with CUDA (SLIP_HAS_CUDA); gpus.cpp is the only user.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace slip::nccl {

int cuda_gpu_count() noexcept;  // 0 without a GPU or driver
int cuda_current_gpu();         // of this thread; throws ApiError
void cuda_set_current_gpu(int gpu) noexcept;

struct PointerOwner {
  bool is_accessible = false;  // device, managed or pinned memory
  int gpu = -1;                // device memory: its GPU; -1: any GPU can access it
};
std::uint64_t cuda_stream_id(CUstream_st* stream);  // 0: not known, for instance while it captures
PointerOwner cuda_owner_of(const void* pointer);

}  // namespace slip::nccl
