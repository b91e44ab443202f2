// The functions of the CUDA driver that comm/cuda needs. They are looked up at run time, so that a program also starts
// on a machine without a driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

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
class DeviceScope {
 public:
  explicit DeviceScope(int gpu);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace slip::comm
