// For benchmarks that call CUDA themselves.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace slip::bench {

// Throws std::runtime_error with the call and CUDA's text.
inline void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
}

inline bool has_gpu() {
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  static_cast<void>(cudaGetLastError());
  return found;
}

}  // namespace slip::bench
