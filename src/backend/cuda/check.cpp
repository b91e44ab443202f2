#include "backend/cuda/check.hpp"

#include "base/fail.hpp"

namespace slip::backend {

ErrorCode code_of(cudaError_t status) {
  switch (status) {
    case cudaSuccess: return ErrorCode::kOk;
    case cudaErrorInvalidValue: return ErrorCode::kInvalidValue;
    case cudaErrorInvalidResourceHandle: return ErrorCode::kInvalidHandle;
    case cudaErrorInvalidDevice:
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver: return ErrorCode::kInvalidDevice;
    case cudaErrorNotReady: return ErrorCode::kNotReady;
    case cudaErrorNotPermitted: return ErrorCode::kNotPermitted;
    case cudaErrorMemoryAllocation: return ErrorCode::kOutOfMemory;
    case cudaErrorNotSupported: return ErrorCode::kUnsupported;
    case cudaErrorPeerAccessAlreadyEnabled: return ErrorCode::kPeerAccessAlreadyEnabled;
    case cudaErrorPeerAccessNotEnabled: return ErrorCode::kPeerAccessNotEnabled;
    case cudaErrorStreamCaptureUnsupported: return ErrorCode::kCaptureUnsupported;
    case cudaErrorStreamCaptureInvalidated: return ErrorCode::kCaptureInvalidated;
    case cudaErrorStreamCaptureMerge: return ErrorCode::kCaptureMerge;
    case cudaErrorStreamCaptureUnmatched: return ErrorCode::kCaptureUnmatched;
    case cudaErrorStreamCaptureUnjoined: return ErrorCode::kCaptureUnjoined;
    case cudaErrorStreamCaptureIsolation: return ErrorCode::kCaptureIsolation;
    case cudaErrorStreamCaptureImplicit: return ErrorCode::kCaptureImplicit;
    case cudaErrorStreamCaptureWrongThread: return ErrorCode::kCaptureWrongThread;
    default: return is_sticky(status) ? ErrorCode::kDeviceFault : ErrorCode::kLaunchFailed;
  }
}

bool is_sticky(cudaError_t status) {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorUnknown: return true;
    default: return false;
  }
}

void raise_cuda(cudaError_t status, const char* call, int device, std::string_view op, Here here) {
  static_cast<void>(cudaGetLastError());  // clears the status, so that a later call does not report it again
  const std::string whose = op.empty() ? std::string() : fmt::format(" for op '{}'", op);
  base::fail(code_of(status), here, "{} on cuda:{}{}: {} ({})", call, device, whose, cudaGetErrorString(status),
             cudaGetErrorName(status));
}

void raise_out_of_memory(std::size_t bytes, int device, std::string_view what, Here here) {
  static_cast<void>(cudaGetLastError());
  std::size_t free = 0, total = 0;
  static_cast<void>(cudaMemGetInfo(&free, &total));
  base::fail(ErrorCode::kOutOfMemory, here, "cuda:{}: asked for {} bytes ({}): {} free of {}", device, bytes, what,
             free, total);
}

void* find_driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  if (cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result) != cudaSuccess || !found)
    base::fail(ErrorCode::kUnsupported, {}, "the CUDA driver has no {}", name);
  return found;
}

}  // namespace slip::backend
