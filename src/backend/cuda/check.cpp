#include "backend/cuda/check.hpp"

#include "base/fail.hpp"

namespace slip::backend {

Code code_of(cudaError_t status) {
  switch (status) {
    case cudaSuccess: return Code::kOk;
    case cudaErrorInvalidValue: return Code::kInvalidValue;
    case cudaErrorInvalidResourceHandle: return Code::kInvalidHandle;
    case cudaErrorInvalidDevice:
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver: return Code::kInvalidDevice;
    case cudaErrorNotReady: return Code::kNotReady;
    case cudaErrorNotPermitted: return Code::kNotPermitted;
    case cudaErrorMemoryAllocation: return Code::kOutOfMemory;
    case cudaErrorNotSupported: return Code::kUnsupported;
    case cudaErrorPeerAccessAlreadyEnabled: return Code::kPeerAccessAlreadyEnabled;
    case cudaErrorPeerAccessNotEnabled: return Code::kPeerAccessNotEnabled;
    case cudaErrorStreamCaptureUnsupported: return Code::kCaptureUnsupported;
    case cudaErrorStreamCaptureInvalidated: return Code::kCaptureInvalidated;
    case cudaErrorStreamCaptureMerge: return Code::kCaptureMerge;
    case cudaErrorStreamCaptureUnmatched: return Code::kCaptureUnmatched;
    case cudaErrorStreamCaptureUnjoined: return Code::kCaptureUnjoined;
    case cudaErrorStreamCaptureIsolation: return Code::kCaptureIsolation;
    case cudaErrorStreamCaptureImplicit: return Code::kCaptureImplicit;
    case cudaErrorStreamCaptureWrongThread: return Code::kCaptureWrongThread;
    default: return is_sticky(status) ? Code::kDeviceFault : Code::kLaunchFailed;
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
  base::fail(Code::kOutOfMemory, here, "cuda:{}: asked for {} bytes ({}): {} free of {}", device, bytes, what, free,
             total);
}

void* find_driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  if (cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result) != cudaSuccess || !found)
    base::fail(Code::kUnsupported, {}, "the CUDA driver has no {}", name);
  return found;
}

}  // namespace slip::backend
