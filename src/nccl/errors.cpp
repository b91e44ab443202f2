// Result codes, the last error and NCCL_DEBUG.
#include <fcntl.h>
#include <strings.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>

#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/sync.hpp"
#include "base/terminal.hpp"
#include "base/thread.hpp"
#include "comm/delegate/nccl_library.hpp"
#include "nccl/api.hpp"
#include "nccl/comm.hpp"
#include "nccl/group.hpp"

namespace slip::nccl {
namespace {

// The last error of the process, for threads that had none: a watchdog thread asks for the error of another thread.
struct ProcessError {
  base::Mutex mutex;
  std::string text SLIP_GUARDED_BY(mutex);
};
ProcessError& process_error() { return base::process_wide<ProcessError>(); }  // a thread may fail during the exit

struct ThreadErrors {
  std::string last;  // of this thread
  // Texts that ncclGetLastError has returned: the caller holds pointers into them. Several, because a caller may print
  // the errors of several communicators in one statement.
  std::array<std::string, 8> returned;
  std::size_t next = 0;
};
ThreadErrors& thread_errors() { return base::thread_wide<ThreadErrors>(); }

DebugLevel read_debug_level() {
  const std::string name = base::env_text("NCCL_DEBUG");
  const auto is = [&](const char* level) { return ::strcasecmp(name.c_str(), level) == 0; };
  if (is("VERSION")) return DebugLevel::kVersion;
  if (is("WARN")) return DebugLevel::kWarn;
  if (is("INFO") || is("ABORT") || is("TRACE")) return DebugLevel::kInfo;
  return DebugLevel::kNone;
}

// The file name with %h replaced by the host's name up to its first dot, %p by the process id and %% by a percent sign.
// Other letters after a percent sign stay as they are.
std::string debug_file_name(std::string_view pattern, std::string_view host, int pid) {
  std::string result;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      result += pattern[i];
      continue;
    }
    switch (pattern[++i]) {
      case 'h': result += host.substr(0, host.find('.')); break;
      case 'p': result += std::to_string(pid); break;
      case '%': result += '%'; break;
      default: (result += '%') += pattern[i];
    }
  }
  return result;
}

// Writes the lines of NCCL_DEBUG to stderr, or to the file that NCCL_DEBUG_FILE names.
class DebugLog {
 public:
  // Appends a line. The first call, and the first one after reset(), opens the file anew. If it cannot be opened, lines
  // go to stderr. Any thread may call it.
  void write(std::string_view text) {
    const std::string line = base::single_line_text(text);
    const base::LockGuard lock(mutex_);
    if (!opened_) open();
    if (file_ < 0) return base::log_line(fmt::format("NCCL {}", line));
    const std::string all = prefix_ + line + "\n";
    // One write for a line: lines of processes that share the file are not mixed. A full disk loses the line.
    static_cast<void>(!::write(file_, all.data(), all.size()));
  }
  void reset() {
    const base::LockGuard lock(mutex_);
    if (file_ >= 0) ::close(file_);
    file_ = -1;
    opened_ = false;
  }

 private:
  void open() SLIP_REQUIRES(mutex_) {
    opened_ = true;
    const std::string pattern = base::env_text("NCCL_DEBUG_FILE");
    if (pattern.empty()) return;
    std::array<char, 256> host{};
    static_cast<void>(::gethostname(host.data(), host.size() - 1));
    const int pid = ::getpid();
    const std::string name = debug_file_name(pattern, host.data(), pid);
    file_ = ::open(name.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    if (file_ < 0) base::log_line(fmt::format("NCCL_DEBUG_FILE={}: {}", name, std::strerror(errno)));
    prefix_ = fmt::format("{}:{} NCCL ", host.data(), pid);
  }

  base::Mutex mutex_;
  bool opened_ SLIP_GUARDED_BY(mutex_) = false;
  int file_ SLIP_GUARDED_BY(mutex_) = -1;  // a descriptor; -1: stderr
  std::string prefix_ SLIP_GUARDED_BY(mutex_);
};

DebugLog& debug_log() { return base::process_wide<DebugLog>(); }

constexpr int kUnread = -1;
std::atomic<int> g_debug_level{kUnread};

}  // namespace

ncclResult_t result_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk: return ncclSuccess;
    case ErrorCode::kInvalidValue:
    case ErrorCode::kInvalidHandle:
    case ErrorCode::kInvalidDevice:
    case ErrorCode::kParse: return ncclInvalidArgument;
    case ErrorCode::kNotReady: return ncclInProgress;
    case ErrorCode::kLaunchFailed:
    case ErrorCode::kDeviceFault:
    case ErrorCode::kUndeclaredAccess: return ncclUnhandledCudaError;
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kIo: return ncclSystemError;
    case ErrorCode::kTimeout:
    case ErrorCode::kRankLost:
    case ErrorCode::kAborted: return ncclRemoteError;
    default: return ncclInvalidUsage;  // mismatched calls, captures, peer access, what is not supported
  }
}

Outcome outcome_of_exception() {
  try {
    throw;
  } catch (const ApiError& error) {
    return {error.result, error.what()};
  } catch (const Error& error) {
    return {result_of(error.code()), base::bare_text(error)};
  } catch (const std::bad_alloc&) {
    return {ncclSystemError, "out of host memory"};
  } catch (const std::exception& error) {
    return {ncclInternalError, error.what()};
  } catch (...) {
    return {ncclInternalError, "an exception of unknown type"};
  }
}

ncclResult_t report(const char* function, ncclComm_t comm, const Outcome& outcome) {
  try {
    const std::string text = fmt::format("{}: {}", function, outcome.text);
    thread_errors().last = text;
    {
      ProcessError& process = process_error();
      const base::LockGuard lock(process.mutex);
      process.text = text;
    }
    if (const Pin pin = Pin::find(comm)) pin->keep_error(text);
    if (debugs(DebugLevel::kWarn)) debug_line("WARN " + text);
  } catch (const std::exception&) {  // no memory for the text: the result alone is returned
  }
  note_group_error(outcome.result);
  return outcome.result;
}

bool debugs(DebugLevel level) {
  // relaxed: no other data is published with the level. Two threads that both find kUnread store the same value.
  int now = g_debug_level.load(std::memory_order_relaxed);
  if (now == kUnread) {
    now = static_cast<int>(read_debug_level());
    g_debug_level.store(now, std::memory_order_relaxed);  // relaxed: as above
  }
  return now >= static_cast<int>(level);
}

// As in NCCL, the line of NCCL_DEBUG=VERSION never goes to the file.
void debug_line(std::string_view text) {
  if (debugs(DebugLevel::kWarn)) debug_log().write(text);
  else base::log_line(fmt::format("NCCL {}", base::single_line_text(text)));
}

void print_version_once() {
  static std::atomic<bool> printed{false};
  // relaxed: only the exchange itself decides which thread prints.
  if (debugs(DebugLevel::kVersion) && !printed.exchange(true, std::memory_order_relaxed))
    debug_line(fmt::format("version {}.{}.{}, by Slipstream {}", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH, SLIP_VERSION));
}

namespace {

// An ELF note that tells this library from NVIDIA's (comm/delegate/nccl_library.cpp). Not a function: the library
// exports NCCL's names only.
struct OwnNote {
  std::uint32_t name_bytes = sizeof("Slipstream"), content_bytes = 0, type = 1;
  char name[12] = "Slipstream";
};
[[gnu::section(".note.slipstream"), gnu::used]] alignas(4) constinit const OwnNote kOwnNote;

// If SLIP_NCCL names NVIDIA's library, it is loaded here, before the program loads it (PyTorch does so when it is
// imported). Reason: this library is preloaded and has the same symbols. Only RTLD_DEEPBIND keeps the inner calls of
// NVIDIA's library away from them, and it has an effect only when a library is loaded for the first time.
// env_text() instead of env(), which keeps its values: the program may still change its environment.
[[gnu::constructor]] void load_named_nccl() {
  try {
    if (const std::string file = base::env_text("SLIP_NCCL"); file.find('/') != std::string::npos)
      static_cast<void>(comm::find_nccl(file));
  } catch (const std::exception&) {  // the first communicator reports it
  }
}

}  // namespace
}  // namespace slip::nccl

using namespace slip::nccl;

SLIP_NCCL_API(ncclResult_t, ncclGetVersion, int* version) {
  return run_api("ncclGetVersion", nullptr, [&] {
    require_pointer(version, "version");
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
  });
}

SLIP_NCCL_API(const char*, ncclGetErrorString, ncclResult_t result) {
  switch (result) {
    case ncclSuccess: return "success";
    case ncclUnhandledCudaError: return "a CUDA call failed; ncclGetLastError names it";
    case ncclSystemError: return "a system call failed or memory is exhausted; ncclGetLastError has the details";
    case ncclInternalError: return "a defect of the library; ncclGetLastError has the details";
    case ncclInvalidArgument: return "invalid argument; ncclGetLastError names it";
    case ncclInvalidUsage: return "invalid usage; ncclGetLastError has the details";
    case ncclRemoteError: return "another rank was lost, aborted or did not join; ncclGetLastError names it";
    case ncclInProgress: return "in progress: poll ncclCommGetAsyncError";
    default: return "unknown result code";
  }
}

SLIP_NCCL_API(const char*, ncclGetLastError, ncclComm_t comm) {
  ThreadErrors& errors = thread_errors();
  std::string& text = errors.returned[errors.next++ % errors.returned.size()];
  try {
    const Pin pin = Pin::find(comm);
    text = pin ? pin->kept_error() : std::string();
    if (text.empty()) text = errors.last;
    if (text.empty()) {
      ProcessError& process = process_error();
      const slip::base::LockGuard lock(process.mutex);
      text = process.text;
    }
  } catch (const std::exception&) {
    return "out of host memory";
  }
  return text.c_str();
}

SLIP_NCCL_API(void, ncclResetDebugInit) {
  g_debug_level.store(kUnread, std::memory_order_relaxed);  // relaxed: see debugs()
  debug_log().reset();
}

// NCCL exports this function under one name only, without a pncclX alias.
extern "C" [[gnu::visibility("default")]] void ncclResetDebugInitInternal(void);
extern "C" void ncclResetDebugInitInternal(void) { pncclResetDebugInit(); }
