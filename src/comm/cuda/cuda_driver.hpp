// The functions of the CUDA driver that comm/cuda needs. They are looked up at run time, so that a program also starts
// on a machine without a driver. ReusedMemory, StagingBuffers: the memory of communicators on GPUs.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/sync.hpp"
#include "base/thread.hpp"

namespace slip::comm {

using MemoryOperation = CUstreamBatchMemOpParams;

MemoryOperation write_32(const std::uint32_t* flag, std::uint32_t value);
MemoryOperation write_64(const std::uint64_t* flag, std::uint64_t value);
MemoryOperation wait_for_32(const std::uint32_t* flag, std::uint32_t value);  // until the flag has this value
MemoryOperation wait_for_64(const std::uint64_t* flag, std::uint64_t value);

// Enqueues the operations in this order. Each write is visible to the system before the next one.
void put_memory_operations(cudaStream_t stream, std::span<MemoryOperation> operations, int gpu);

// The allocation that contains an address.
struct Allocation {
  std::uint64_t base = 0;
  std::uint64_t id = 0;     // unique in the process: a later allocation at the same address has another one
  bool has_handle = false;  // other processes can map it by a CUDA IPC handle
};
Allocation find_allocation(const void* address, int gpu);

// Makes `gpu` current in this thread and allows calls that a stream capture of another thread would forbid. Restores
// both.
class DeviceScope : base::NoCopy {
 public:
  explicit DeviceScope(int gpu);
  ~DeviceScope();

 private:
  int before_ = 0;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Memory of a communicator that is not freed but reused: cudaFree and cudaHostUnregister may wait for kernels of other
// communicators, and these kernels may wait for the rank that frees the memory. Any thread may use it.
template <class Memory>
class ReusedMemory {
 public:
  // Idle memory for which `fits` holds, otherwise new memory of `make`. It is idle again when its last owner has gone,
  // unless it is `retired` then.
  template <class Fits, class Make>
  static std::shared_ptr<Memory> take(const Fits& fits, const Make& make) {
    std::unique_ptr<Memory> found = find(fits);
    if (!found) found = make();
    return {found.release(), [](Memory* memory) {
              if (memory->retired) return;
              const base::LockGuard lock(idle().mutex);
              idle().memory.emplace_back(memory);
            }};
  }

 private:
  struct Idle {
    base::Mutex mutex;
    std::vector<std::unique_ptr<Memory>> memory SLIP_GUARDED_BY(mutex);
  };
  static Idle& idle() { return base::process_wide<Idle>(); }
  template <class Fits>
  static std::unique_ptr<Memory> find(const Fits& fits) {
    Idle& all = idle();
    const base::LockGuard lock(all.mutex);
    const auto place = std::find_if(all.memory.begin(), all.memory.end(), [&](const auto& one) { return fits(*one); });
    if (place == all.memory.end()) return nullptr;
    std::unique_ptr<Memory> result = std::move(*place);
    all.memory.erase(place);
    return result;
  }
};

// Device memory for calls that cannot use the buffers of the program directly. A larger buffer does not replace the
// smaller ones, because enqueued calls may use them.
class StagingBuffers {
 public:
  std::byte* at_least(std::uint64_t bytes, int gpu);  // the current buffer, or a new one if it is smaller
  void free() noexcept;                               // REQUIRES: the GPU is current

 private:
  std::vector<std::byte*> buffers_;  // the last one is the largest
  std::uint64_t bytes_ = 0;          // of the last one
};

}  // namespace slip::comm
