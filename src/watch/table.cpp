// The observers that the environment asks for.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "base/env.hpp"
#include "base/terminal.hpp"
#include "runtime/observers.hpp"
#include "slip/race.hpp"
#include "slip/trace.hpp"
#include "watch/trace/trace_path.hpp"

namespace slip {
namespace {

constexpr int kRaceStatus = 66;  // exit status of a program with a race, as a thread sanitizer's

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
    write_trace(data, trace_path(env().trace, job_rank(), ::getpid()), {});
    if (data.dropped > 0) log_line(fmt::format("SLIP_TRACE: memory was full, {} records are missing", data.dropped));
  } catch (const std::exception& error) {
    log_line(fmt::format("SLIP_TRACE: {}", error.what()));
  }
}

// As the trace, it is never destroyed.
struct ProcessCheck {
  RaceChecker checker;
  pid_t process = ::getpid();
};
ProcessCheck* g_check = nullptr;

// The last exit handler of ours: a race changes the exit status, which only an immediate end can still do.
void report_process_races() {
  if (::getpid() != g_check->process) return;
  g_check->checker.stop();
  const RaceReport report = g_check->checker.report();
  log_line("SLIP_CHECK: " + report.text());
  if (env().launch_blocking)
    log_line(
        "SLIP_CHECK: SLIP_LAUNCH_BLOCKING=1 makes the host wait after every op, so races between ops cannot be seen: "
        "check "
        "again without it");
  if (report.races.empty()) return;
  std::fflush(nullptr);
  ::_exit(kRaceStatus);
}

void start_check() {
  if (!env().check) return;
  try {
    g_check = new ProcessCheck;
    if (std::atexit(report_process_races) != 0) log_line("SLIP_CHECK: no room for an exit handler, nothing is told");
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
