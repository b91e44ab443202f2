// Converts a cudaError_t to slip::Error. The error names the CUDA call, the device and the op. Used by the CUDA
// backend.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "slip/error.hpp"

namespace slip::backend {

// The error code for a CUDA status.
ErrorCode code_of(cudaError_t status);
// Whether the device is lost: no later call in this process can succeed.
bool is_sticky(cudaError_t status);

[[noreturn]] void raise_cuda(cudaError_t status, const char* call, int device, std::string_view op, Here here);

// Out of memory, with the requested, free and total bytes.
[[noreturn]] void raise_out_of_memory(std::size_t bytes, int device, std::string_view what, Here here);

// Throws unless `status` is success. `call` names the CUDA function.
inline void check(cudaError_t status, const char* call, int device, std::string_view op = {}, Here here = {}) {
  if (status != cudaSuccess) [[unlikely]]
    raise_cuda(status, call, device, op, here);
}

// A function of the CUDA driver, looked up at run time, so that the program starts without a driver. Throws
// kUnsupported if the driver has no such function.
void* find_driver_function(const char* name);
template <class Function>
Function* driver_function(const char* name) {
  return reinterpret_cast<Function*>(find_driver_function(name));
}

}  // namespace slip::backend
