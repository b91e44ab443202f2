// driver_function(): a function of the CUDA driver, looked up at run time, so that the program starts without a driver.
#pragma once

#include <cuda_runtime_api.h>

#include "base/fail.hpp"

namespace slip::backend {

template <class Function>
Function* driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  if (cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result) != cudaSuccess || !found)
    base::fail(Code::kUnsupported, {}, "the CUDA driver has no {}", name);
  return reinterpret_cast<Function*>(found);
}

}  // namespace slip::backend
