// The calls of the CUDA runtime; compiled only with CUDA (SLIP_HAS_CUDA).
#include <cuda_runtime_api.h>

#include "nccl/api.hpp"
#include "nccl/gpus.hpp"

namespace slip::nccl {
namespace {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) [[likely]]
    return;
  static_cast<void>(cudaGetLastError());  // the caller's next CUDA call must not find this error
  throw ApiError(ncclUnhandledCudaError,
                 fmt::format("{}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status)));
}

}  // namespace

int cuda_gpu_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  static_cast<void>(cudaGetLastError());
  return 0;
}

int cuda_current_gpu() {
  int gpu = 0;
  check(cudaGetDevice(&gpu), "cudaGetDevice");
  return gpu;
}

void cuda_set_current_gpu(int gpu) noexcept {
  // The GPU was current before, so this fails only if the GPU is lost. The program's next CUDA call reports that.
  if (cudaSetDevice(gpu) != cudaSuccess) static_cast<void>(cudaGetLastError());
}

std::uint64_t cuda_stream_id(CUstream_st* stream) {
  unsigned long long id = 0;
#if CUDART_VERSION >= 12000
  // While a stream captures, CUDA refuses some queries of it, and a refused query invalidates the capture.
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess || status != cudaStreamCaptureStatusNone ||
      cudaStreamGetId(stream, &id) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return 0;
  }
#else
  static_cast<void>(stream);
#endif
  return id;
}

PointerOwner cuda_owner_of(const void* pointer) {
  cudaPointerAttributes attributes{};
  check(cudaPointerGetAttributes(&attributes, pointer), "cudaPointerGetAttributes");
  switch (attributes.type) {
    case cudaMemoryTypeDevice: return {true, attributes.device};
    case cudaMemoryTypeManaged:
    case cudaMemoryTypeHost: return {true, -1};
    case cudaMemoryTypeUnregistered: break;
  }
  return {};
}

}  // namespace slip::nccl
