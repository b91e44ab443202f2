// Errors of the library: one exception type with a code and the place in the user's source.
//
// A call that cannot do what it was asked throws `Error` at once. Work that fails later, on a stream, is kept by that
// stream (or, for `DeviceFault`, by the whole device) and thrown by the next call that uses it.
#pragma once

#include <stdexcept>
#include <string>

namespace slip {

// A place in the user's source. Built on compiler built-ins because clang 14 lacks std::source_location.
struct Here {
  const char* file = "";
  int line = 0;
  static constexpr Here at(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

enum class Code {
  kOk,
  kInvalidValue,   // a size, range, flag or name that cannot be right
  kInvalidHandle,  // a stream, event or buffer that is destroyed, freed, or of the wrong device
  kInvalidDevice,  // no such device, or one that cannot do this
  kNotReady,       // asked for a result that is not there yet
  kNotPermitted,   // a runtime call from inside a host function or a kernel
  kOutOfMemory,
  kLaunchFailed,      // a kernel or host function threw; its stream is poisoned
  kDeviceFault,       // the device is lost: every later call reports this
  kUndeclaredAccess,  // strict mode: an op touched memory that it did not declare
  kPeerAccessAlreadyEnabled,
  kPeerAccessNotEnabled,
  kCaptureUnsupported,  // not allowed while a stream captures
  kCaptureInvalidated,  // an earlier mistake spoiled this capture
  kCaptureMerge,        // two captures would be joined
  kCaptureUnmatched,    // capture ended on a stream that did not begin it
  kCaptureUnjoined,     // a forked stream was not joined to the origin
  kCaptureIsolation,    // an edge from captured to uncaptured work or back
  kCaptureImplicit,     // the legacy stream was used while a blocking stream captures
  kCaptureWrongThread,
  kTimeout,
  kIo,
  kParse,
  kUnsupported,
  kRankLost,  // a rank died, was stopped, is cut off or left before its work was done
  kMismatch,  // ranks asked for different things
  kAborted,   // a wait that was ended from another thread, or by another rank
};

const char* code_name(Code code);

class Error : public std::runtime_error {
 public:
  Error(Code code, const std::string& text, Here here = Here::at());
  Code code() const { return code_; }
  Here here() const { return here_; }

 private:
  Code code_;
  Here here_;
};

// Thrown by a kernel to model a fault of the device, such as an illegal address: the device is lost for good.
class DeviceFault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The code of the last Error thrown on this thread. last_error() also clears it; kNotReady answers are not kept.
Code last_error();
Code peek_last_error();

}  // namespace slip
