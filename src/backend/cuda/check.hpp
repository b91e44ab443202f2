// CUDA statuses as errors: every call is checked, and the error says which call, on which device, for which op.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "slip/error.hpp"

namespace slip {

// The code that stands for a CUDA status.
Code code_of(cudaError_t status);
// Whether the device is lost after it: no later call can succeed in this process.
bool is_sticky(cudaError_t status);

[[noreturn]] void raise_cuda(cudaError_t status, const char* call, int device, std::string_view op, Here here);

// Out of memory, with what was asked for, what is free and what there is.
[[noreturn]] void raise_out_of_memory(std::size_t bytes, int device, std::string_view what, Here here);

// Throws unless `status` is success. `call` names the CUDA function.
inline void check(cudaError_t status, const char* call, int device, std::string_view op = {}, Here here = {}) {
  if (status != cudaSuccess) [[unlikely]]
    raise_cuda(status, call, device, op, here);
}

}  // namespace slip
