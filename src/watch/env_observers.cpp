#include "watch/env_observers.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "base/env.hpp"
#include "base/terminal.hpp"
#include "runtime/observers.hpp"
#include "slip/race.hpp"
#include "slip/trace.hpp"

namespace slip {
namespace {

constexpr int kRaceStatus = 66;  // exit status of a program with a race; a thread sanitizer uses the same

// Never destroyed: streams of static lifetime may still notify it while the process exits.
struct ProcessTrace {
  Trace trace;
  pid_t process = ::getpid();
};
ProcessTrace* g_trace = nullptr;

void write_process_trace() {
  if (::getpid() != g_trace->process) return;  // a forked child must not overwrite its parent's file
  try {
    g_trace->trace.stop();
    const TraceData data = g_trace->trace.data();
    write_trace(data, trace_path(env().trace, job_rank(), ::getpid()), {});
    if (data.dropped > 0) log_line(fmt::format("SLIP_TRACE: memory was full, {} records are missing", data.dropped));
  } catch (const std::exception& error) {
    log_line(fmt::format("SLIP_TRACE: {}", error.what()));
  }
}

// Never destroyed, for the same reason as ProcessTrace.
struct ProcessCheck {
  RaceChecker checker;
  pid_t process = ::getpid();
};
ProcessCheck* g_check = nullptr;

// Runs as our last exit handler. A race changes the exit status, and in a handler only _exit can do that.
void report_process_races() {
  if (::getpid() != g_check->process) return;
  g_check->checker.stop();
  const RaceReport report = g_check->checker.report();
  log_line("SLIP_CHECK: " + report.text());
  if (env().launch_blocking)
    log_line(
        "SLIP_CHECK: SLIP_LAUNCH_BLOCKING=1 makes the host wait after every op, so races between ops cannot be "
        "found: check again without it");
  if (report.races.empty()) return;
  std::fflush(nullptr);
  ::_exit(kRaceStatus);
}

void start_check() {
  if (!env().check) return;
  try {
    g_check = new ProcessCheck;
    if (std::atexit(report_process_races) != 0)
      log_line("SLIP_CHECK: the exit handler could not be registered, so no races will be reported");
  } catch (const std::exception& error) {
    log_line(fmt::format("SLIP_CHECK: {}", error.what()));
  }
}

bool start() {
  start_check();  // first, so that its exit handler runs last
  if (env().trace.empty()) return true;
  try {
    g_trace = new ProcessTrace;
    if (std::atexit(write_process_trace) != 0)
      log_line("SLIP_TRACE: the exit handler could not be registered, so no trace will be written");
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

namespace {

bool replace_all(std::string& text, std::string_view what, const std::string& by) {
  bool found = false;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + by.size())) {
    text.replace(at, what.size(), by);
    found = true;
  }
  return found;
}

}  // namespace

std::string trace_path(const std::string& pattern, std::optional<JobRank> rank, int process) {
  std::string path = pattern;
  const std::string number = std::to_string(rank ? rank->rank : 0);
  const bool ranked = replace_all(path, "%r", number);
  const bool apart = replace_all(path, "%p", std::to_string(process));
  if (ranked || apart || !rank || rank->ranks < 2) return path;
  const std::size_t folder = path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1;
  std::size_t dot = path.rfind('.');
  if (dot == std::string::npos || dot <= folder) dot = path.size();  // a name may begin with a dot
  return path.insert(dot, "." + number);
}

}  // namespace slip
