// The driver sets up a stream's hardware channels when the stream is first used. The channel of kernels: the driver
// waits until no kernel runs on the GPU. The channel of a copy engine: the first copy of a stream may wait until
// a cuStreamWaitValue of another stream has ended. If that kernel or flag waited for this stream's rank, both would
// wait for ever. So CudaBackend calls set_up_stream() when it opens a stream.
#pragma once

#include <cuda_runtime_api.h>

namespace slip::backend {

// Enqueues an empty kernel and one small copy in each direction.
cudaError_t set_up_stream(cudaStream_t stream);

}  // namespace slip::backend
