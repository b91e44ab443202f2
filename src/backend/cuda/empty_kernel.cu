#include "backend/cuda/empty_kernel.hpp"

namespace slip {
namespace {

__global__ void empty_kernel() {}

}  // namespace

cudaError_t launch_empty_kernel(cudaStream_t stream) {
  return cudaLaunchKernel(reinterpret_cast<const void*>(empty_kernel), dim3(1), dim3(1), nullptr, 0, stream);
}

}  // namespace slip
