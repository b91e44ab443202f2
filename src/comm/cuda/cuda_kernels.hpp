// The kernels of collectives and messages, as CudaRanks launches them.
#pragma once

#include <cuda_runtime_api.h>

#include "comm/cuda/cuda_layout.hpp"
#include "slip/data_type.hpp"

namespace slip::comm {

using CallKernel = void (*)(CallParameters);

// The kernel that reduces values of this type; null: they cannot be reduced.
CallKernel integer_kernel(DataType type);
CallKernel float_kernel(DataType type);
CallKernel small_float_kernel(DataType type);
CallKernel reduce_kernel_of(DataType type);
// The kernel of collectives that only move data.
CallKernel copy_kernel();

// Loads all kernels into the current context. With lazy loading, the first launch could wait until the GPU is idle. It
// would then wait for a kernel that itself waits for this rank: a deadlock.
cudaError_t load_kernels();

cudaError_t launch(CallKernel kernel, const CallParameters& parameters, int blocks, cudaStream_t stream);
// A kernel of one warp that ends when all ranks have reached the collective of these parameters.
cudaError_t launch_arrival(const CallParameters& parameters, cudaStream_t stream);
cudaError_t launch_messages(const MessageParameters& parameters, int blocks, cudaStream_t stream);

}  // namespace slip::comm
