// A kernel that does nothing. CudaBackend launches it as the first kernel of each stream.
#pragma once

#include <cuda_runtime_api.h>

namespace slip {

cudaError_t launch_empty_kernel(cudaStream_t stream);

}  // namespace slip
