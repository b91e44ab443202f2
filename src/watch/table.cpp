// The observers that the environment asks for.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <string>

#include "base/env.hpp"
#include "base/log.hpp"
#include "runtime/observers.hpp"
#include "slip/trace.hpp"

namespace slip {
namespace {

// "%p" in the file's name becomes the process id, so that ranks started alike write a file each.
std::string trace_path(std::string path) {
  for (std::size_t at = path.find("%p"); at != std::string::npos; at = path.find("%p", at))
    path.replace(at, 2, fmt::format("{}", ::getpid()));
  return path;
}

// Never destroyed: streams of static lifetime may still tell it something while the process ends.
struct ProcessTrace {
  Trace trace;
  pid_t process = ::getpid();
};
ProcessTrace* g_trace = nullptr;

void write_process_trace() {
  if (::getpid() != g_trace->process) return;  // a fork's exit must not overwrite its parent's file
  try {
    g_trace->trace.stop();
    const TraceData data = g_trace->trace.data();
    write_trace(data, trace_path(env().trace), {});
    if (data.dropped > 0) log_line(fmt::format("SLIP_TRACE: memory was full, {} records are missing", data.dropped));
  } catch (const std::exception& error) {
    log_line(fmt::format("SLIP_TRACE: {}", error.what()));
  }
}

bool start() {
  if (env().trace.empty()) return true;
  try {
    g_trace = new ProcessTrace;
    if (std::atexit(write_process_trace) != 0)
      log_line("SLIP_TRACE: no room for an exit handler, nothing will be written");
  } catch (const std::exception& error) {
    log_line(fmt::format("SLIP_TRACE: {}", error.what()));
  }
  return true;
}

}  // namespace

void start_observers() {
  static const bool kStarted = start();
  static_cast<void>(kStarted);
}

}  // namespace slip
