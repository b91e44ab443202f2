#include "slip/error.hpp"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

#include "base/fail.hpp"

namespace slip {
namespace {
thread_local ErrorCode t_last_error = ErrorCode::kOk;
}

const char* code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk: return "ok";
    case ErrorCode::kInvalidValue: return "invalid value";
    case ErrorCode::kInvalidHandle: return "invalid handle";
    case ErrorCode::kInvalidDevice: return "invalid device";
    case ErrorCode::kNotReady: return "not ready";
    case ErrorCode::kNotPermitted: return "not permitted";
    case ErrorCode::kOutOfMemory: return "out of memory";
    case ErrorCode::kLaunchFailed: return "launch failed";
    case ErrorCode::kDeviceFault: return "device fault";
    case ErrorCode::kUndeclaredAccess: return "undeclared access";
    case ErrorCode::kPeerAccessAlreadyEnabled: return "peer access already enabled";
    case ErrorCode::kPeerAccessNotEnabled: return "peer access not enabled";
    case ErrorCode::kCaptureUnsupported: return "not supported while capturing";
    case ErrorCode::kCaptureInvalidated: return "capture invalidated";
    case ErrorCode::kCaptureMerge: return "captures would merge";
    case ErrorCode::kCaptureUnmatched: return "capture ended on another stream";
    case ErrorCode::kCaptureUnjoined: return "forked stream not joined";
    case ErrorCode::kCaptureIsolation: return "dependency between captured and uncaptured work";
    case ErrorCode::kCaptureImplicit: return "implicit dependency on the legacy stream while capturing";
    case ErrorCode::kCaptureWrongThread: return "capture ended on another thread";
    case ErrorCode::kTimeout: return "timeout";
    case ErrorCode::kIo: return "input/output error";
    case ErrorCode::kParse: return "parse error";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kRankLost: return "rank lost";
    case ErrorCode::kMismatch: return "mismatch between ranks";
    case ErrorCode::kAborted: return "aborted";
  }
  return "unknown";
}

Error::Error(ErrorCode code, const std::string& text, Here here)
    : std::runtime_error(here.line > 0 ? fmt::format("{}: {} ({}:{})", code_name(code), text, here.file, here.line)
                                       : fmt::format("{}: {}", code_name(code), text)),
      code_(code),
      here_(here) {
  if (code != ErrorCode::kNotReady) t_last_error = code;
}

ErrorCode last_error() {
  const ErrorCode code = t_last_error;
  t_last_error = ErrorCode::kOk;
  return code;
}

ErrorCode peek_last_error() { return t_last_error; }

}  // namespace slip

namespace slip::base {
namespace {

std::string limit_text(rlim_t limit) { return limit == RLIM_INFINITY ? "any number" : fmt::format("{}", limit); }

// How many descriptors may be open, and how to raise this limit.
std::string limit_hint(int error) {
  if (error == ENFILE) return "the limit of this host is in /proc/sys/fs/file-max";
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return "see ulimit -n";
  const std::string more = files.rlim_max > files.rlim_cur
                               ? fmt::format("up to {} without root", limit_text(files.rlim_max))
                               : "a higher limit needs root";
  return fmt::format("this process may have {} files open; raise the limit before it starts with ulimit -n ({})",
                     limit_text(files.rlim_cur), more);
}

}  // namespace

bool is_out_of_descriptors(int error) { return error == EMFILE || error == ENFILE; }

void fail_errno(const std::string& what, int error) {
  if (!is_out_of_descriptors(error)) fail(ErrorCode::kIo, {}, "{}: {}", what, std::strerror(error));
  throw TooManyFiles(ErrorCode::kIo, fmt::format("{}: {}: {}", what, std::strerror(error), limit_hint(error)), {});
}

}  // namespace slip::base
