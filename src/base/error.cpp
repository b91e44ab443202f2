#include "slip/error.hpp"

#include <fmt/format.h>

namespace slip {
namespace {
thread_local Code t_last_error = Code::kOk;
}

const char* code_name(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kInvalidValue: return "invalid value";
    case Code::kInvalidHandle: return "invalid handle";
    case Code::kInvalidDevice: return "invalid device";
    case Code::kNotReady: return "not ready";
    case Code::kNotPermitted: return "not permitted";
    case Code::kOutOfMemory: return "out of memory";
    case Code::kLaunchFailed: return "launch failed";
    case Code::kDeviceFault: return "device fault";
    case Code::kUndeclaredAccess: return "undeclared access";
    case Code::kPeerAccessAlreadyEnabled: return "peer access already enabled";
    case Code::kPeerAccessNotEnabled: return "peer access not enabled";
    case Code::kCaptureUnsupported: return "not supported while capturing";
    case Code::kCaptureInvalidated: return "capture invalidated";
    case Code::kCaptureMerge: return "captures would merge";
    case Code::kCaptureUnmatched: return "capture ended on another stream";
    case Code::kCaptureUnjoined: return "forked stream not joined";
    case Code::kCaptureIsolation: return "edge across the capture's border";
    case Code::kCaptureImplicit: return "implicit dependency on the legacy stream while capturing";
    case Code::kCaptureWrongThread: return "capture ended on another thread";
    case Code::kTimeout: return "timeout";
    case Code::kIo: return "input/output error";
    case Code::kParse: return "parse error";
    case Code::kUnsupported: return "unsupported";
    case Code::kRankLost: return "rank lost";
    case Code::kMismatch: return "mismatch between ranks";
    case Code::kAborted: return "aborted";
  }
  return "unknown";
}

Error::Error(Code code, const std::string& text, Here here)
    : std::runtime_error(here.line > 0 ? fmt::format("{}: {} ({}:{})", code_name(code), text, here.file, here.line)
                                       : fmt::format("{}: {}", code_name(code), text)),
      code_(code),
      here_(here) {
  if (code != Code::kNotReady) t_last_error = code;
}

Code last_error() {
  const Code code = t_last_error;
  t_last_error = Code::kOk;
  return code;
}

Code peek_last_error() { return t_last_error; }

}  // namespace slip
