// What the kernels of models share: errors as the backend makes them, and the element types.
#pragma once

#include "backend/cuda/check.hpp"
#include "slip/tensors.hpp"

namespace slip::cuda {

inline int current_gpu() {
  int gpu = 0;
  check(cudaGetDevice(&gpu), "cudaGetDevice", -1);
  return gpu;
}

}  // namespace slip::cuda
