// The devices of the ranks. With a GPU a rank is on cuda:N: the caller's current GPU, or the GPU that ncclCommInitAll
// assigns. Without a GPU, ranks are on the cpu device, and buffers are host memory: this is host mode (docs/nccl.md).
// SLIP_NCCL_DEVICE=cpu selects host mode on a machine with GPUs, too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/sync.hpp"
#include "slip/device.hpp"

namespace slip::nccl {

bool uses_gpus();   // false: host mode; decided once per process
int gpu_count();    // 0 in host mode
int current_gpu();  // of this thread; 0 in host mode
// The id of a CUDA stream; no other stream of this process ever has the same id. 0: not known, in host mode, before
// CUDA 12 or while the stream captures.
std::uint64_t stream_id(CUstream_st* native);

// The destructor restores the thread's current GPU, which the cuda backend changes. With one GPU it does nothing.
class KeepCurrentGpu : base::NoCopy {
 public:
  KeepCurrentGpu() noexcept;
  ~KeepCurrentGpu() {
    if (gpu_ >= 0) restore();
  }

 private:
  void restore() const noexcept;
  int gpu_;  // -1: nothing to restore
};

// The device of a rank; range() describes memory of the caller as a Range. Each init opens its own device: several
// ranks of a process may use one GPU, and a wait for all work of a device must not include the calls of another rank.
// Split and shrink use the device of the parent communicator.
class RankDevice {
 public:
  explicit RankDevice(int gpu);  // of GPU `gpu`, or the cpu device in host mode
  const Device& device() const { return device_; }
  int gpu() const { return gpu_; }

  // The caller's memory. All calls share one wrapped Buffer that covers all addresses. A Buffer for each call would be
  // destroyed while the call runs, and its destructor would wait for the device. Throws ApiError if the pointer is
  // null, or if the GPU cannot access the memory.
  Range range(const void* pointer, std::size_t bytes, const char* name) const;

 private:
  void require_accessible(const void* pointer, const char* name) const;
  int gpu_;
  Device device_;
  Buffer addresses_;  // the wrapped Buffer
};

// The calls of the CUDA runtime that this library makes itself, in cuda_calls.cpp. Only gpus.cpp uses these functions.
// The cuda backend does all other CUDA work. Without a GPU only cuda_gpu_count() is called.
struct PointerOwner {
  bool is_accessible = false;  // device, managed or pinned memory
  int gpu = -1;                // device memory: its GPU; -1: any GPU can access it
};
int cuda_gpu_count() noexcept;  // 0 without a GPU or driver
int cuda_current_gpu();         // of this thread; throws ApiError
void cuda_set_current_gpu(int gpu) noexcept;
std::uint64_t cuda_stream_id(CUstream_st* stream);  // 0: not known, see stream_id()
PointerOwner cuda_owner_of(const void* pointer);

}  // namespace slip::nccl
