#include "comm/cuda/cuda_driver.hpp"

#include "backend/cuda/check.hpp"

namespace slip::comm {
namespace {

// The numbers of CUresult are those of cudaError_t.
void check_driver(CUresult status, const char* call, int gpu) {
  backend::check(static_cast<cudaError_t>(status), call, gpu);
}

CUdeviceptr pointer(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

// The driver reads the lower half of `value` in an operation on 32 bits.
MemoryOperation write_of(CUstreamBatchMemOpType kind, const void* flag, std::uint64_t value) {
  MemoryOperation operation{};
  operation.operation = kind;
  operation.writeValue.address = pointer(flag);
  operation.writeValue.value64 = value;
  return operation;
}

MemoryOperation wait_of(CUstreamBatchMemOpType kind, const void* flag, std::uint64_t value) {
  MemoryOperation operation{};
  operation.operation = kind;
  operation.waitValue.address = pointer(flag);
  operation.waitValue.value64 = value;
  operation.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  return operation;
}

}  // namespace

MemoryOperation write_32(const std::uint32_t* flag, std::uint32_t value) {
  return write_of(CU_STREAM_MEM_OP_WRITE_VALUE_32, flag, value);
}
MemoryOperation write_64(const std::uint64_t* flag, std::uint64_t value) {
  return write_of(CU_STREAM_MEM_OP_WRITE_VALUE_64, flag, value);
}
MemoryOperation wait_for_32(const std::uint32_t* flag, std::uint32_t value) {
  return wait_of(CU_STREAM_MEM_OP_WAIT_VALUE_32, flag, value);
}
MemoryOperation wait_for_64(const std::uint64_t* flag, std::uint64_t value) {
  return wait_of(CU_STREAM_MEM_OP_WAIT_VALUE_64, flag, value);
}

void put_memory_operations(cudaStream_t stream, std::span<MemoryOperation> operations, int gpu) {
  static auto* const kBatch = backend::driver_function<decltype(cuStreamBatchMemOp)>("cuStreamBatchMemOp");
  constexpr std::size_t kMax = 256;  // the driver's limit for one call
  for (std::size_t begin = 0; begin < operations.size(); begin += kMax) {
    const std::size_t count = std::min(operations.size() - begin, kMax);
    check_driver(kBatch(stream, static_cast<unsigned>(count), operations.data() + begin, 0), "cuStreamBatchMemOp", gpu);
  }
}

Allocation find_allocation(const void* address, int gpu) {
  static auto* const kAttributes = backend::driver_function<decltype(cuPointerGetAttributes)>("cuPointerGetAttributes");
  CUdeviceptr base = 0;
  unsigned long long id = 0;
  unsigned type = 0;
  int legacy = 0;
  CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                  CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
  void* values[] = {&base, &id, &type, &legacy};
  check_driver(kAttributes(std::size(wanted), wanted, values, pointer(address)), "cuPointerGetAttributes", gpu);
  return {base, id, type == CU_MEMORYTYPE_DEVICE && legacy != 0};
}

DeviceScope::DeviceScope(int gpu) {
  static_cast<void>(cudaGetDevice(&before_));
  if (before_ != gpu) backend::check(cudaSetDevice(gpu), "cudaSetDevice", gpu);
  backend::check(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode", gpu);
}

DeviceScope::~DeviceScope() {
  static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_));
  static_cast<void>(cudaSetDevice(before_));
}

std::byte* StagingBuffers::at_least(std::uint64_t bytes, int gpu) {
  if (bytes_ < bytes) {
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, bytes);
    if (status == cudaErrorMemoryAllocation)
      backend::raise_out_of_memory(bytes, gpu, "staging memory of a collective", {});
    backend::check(status, "cudaMalloc", gpu);
    buffers_.push_back(static_cast<std::byte*>(memory));
    bytes_ = bytes;
  }
  return buffers_.back();
}

void StagingBuffers::free() noexcept {
  for (std::byte* buffer : buffers_) static_cast<void>(cudaFree(buffer));
}

}  // namespace slip::comm
