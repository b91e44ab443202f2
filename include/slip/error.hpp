// Error: the library's one exception type, with an error code and the position in the user's source.
//
// A call with wrong arguments throws at once. Work that fails later, on a stream, stores its error in that stream, or
// in the whole device if it is a DeviceFault. The next call that uses the stream or device throws it.
#pragma once

#include <stdexcept>
#include <string>

namespace slip {

// A position in the user's source. It uses compiler built-ins because clang 14 has no std::source_location.
struct Here {
  const char* file = "";
  int line = 0;
  static constexpr Here at(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

enum class ErrorCode {
  kOk,
  kInvalidValue,   // an impossible size, range, flag or name
  kInvalidHandle,  // a destroyed or freed stream, event or buffer, or one of another device
  kInvalidDevice,  // no such device, or a device that does not support the call
  kNotReady,       // the result does not exist yet
  kNotPermitted,   // a runtime call inside a host function or a kernel
  kOutOfMemory,
  kLaunchFailed,      // a kernel or host function threw; every later use of its stream reports this
  kDeviceFault,       // the device is lost: every later call reports this
  kUndeclaredAccess,  // strict mode: an op accessed memory that it had not declared
  kPeerAccessAlreadyEnabled,
  kPeerAccessNotEnabled,
  kCaptureUnsupported,  // not allowed while a stream captures
  kCaptureInvalidated,  // an earlier error invalidated this capture
  kCaptureMerge,        // a wait would merge two captures
  kCaptureUnmatched,    // end_capture on a stream other than the one that began it
  kCaptureUnjoined,     // a forked stream was not joined to the origin stream
  kCaptureIsolation,    // a dependency between captured and uncaptured work
  kCaptureImplicit,     // use of the legacy stream while a blocking stream captures
  kCaptureWrongThread,
  kTimeout,
  kIo,
  kParse,
  kUnsupported,
  kRankLost,  // a rank died, was stopped, became unreachable or left before its work was done
  kMismatch,  // ranks made different calls
  kAborted,   // another thread or another rank ended the wait
};
using Code [[deprecated("use ErrorCode")]] = ErrorCode;

const char* code_name(ErrorCode code);

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text, Here here = Here::at());
  ErrorCode code() const { return code_; }
  Here here() const { return here_; }

 private:
  ErrorCode code_;
  Here here_;
};

// A kernel throws it to model a fault of the device, such as an illegal address. The device is lost permanently.
class DeviceFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The code of the last Error thrown on this thread, kNotReady excepted. last_error() also clears it.
ErrorCode last_error();
ErrorCode peek_last_error();

}  // namespace slip
