// HostMemory: a cpu device, and the memory of tensors as its ranges.
#pragma once

#include <limits>

#include "slip/device.hpp"
#include "torch_api.hpp"

namespace slip::distributed {

class HostMemory {
 public:
  HostMemory()
      : device_(Device::open("cpu", {.compute_workers = 1})),  // it runs collectives and copies of their results
        addresses_(device_.wrap(reinterpret_cast<void*>(kFirst), kBytes, MemoryKind::kPinned, Name("tensors"))) {}

  const Device& device() const { return device_; }
  // REQUIRES: the tensor is contiguous.
  Range range(const at::Tensor& tensor) const { return range(tensor.data_ptr(), tensor.nbytes()); }
  Range range(const void* data, std::size_t bytes) const {
    if (bytes == 0) return addresses_.slice(0, 0);
    return addresses_.slice(reinterpret_cast<std::uintptr_t>(data) - kFirst, bytes);
  }

 private:
  // One buffer covers the whole address space except for the first page, which is never mapped. A Buffer for each call
  // would be slow, because closing a Buffer waits for the device.
  static constexpr std::uintptr_t kFirst = 4096;
  static constexpr std::size_t kBytes = std::numeric_limits<std::ptrdiff_t>::max() - kFirst;
  Device device_;
  Buffer addresses_;
};

}  // namespace slip::distributed
