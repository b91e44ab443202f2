// The observers that environment variables start (SLIP_TRACE, SLIP_CHECK). runtime/observers.hpp declares
// start_observers().
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "base/env.hpp"
#include "base/terminal.hpp"
#include "runtime/observers.hpp"
#include "slip/race.hpp"
#include "slip/trace.hpp"
#include "watch/trace/trace_data.hpp"

namespace slip::runtime {
namespace {

constexpr int kRaceStatus = 66;  // exit status of a program with a race, as with ThreadSanitizer

// Never destroyed: streams of static lifetime may still notify the observers while the process exits.
Trace* g_trace = nullptr;
RaceChecker* g_check = nullptr;
pid_t g_process = 0;  // the process that started the observers

void write_process_trace() {
  if (::getpid() != g_process) return;  // a forked child must not overwrite its parent's file
  try {
    g_trace->stop();
    const TraceData data = g_trace->data();
    write_trace(data, watch::trace_path(base::env().trace, base::job_rank(), ::getpid()), {});
    if (data.dropped > 0)
      base::log_line(fmt::format("SLIP_TRACE: the trace memory was full, {} records are missing", data.dropped));
  } catch (const std::exception& error) {
    base::log_line(fmt::format("SLIP_TRACE: {}", error.what()));
  }
}

// A race changes the exit status. An exit handler can do that only with _exit(), which skips all later handlers. So
// this handler runs after write_process_trace().
void report_process_races() {
  if (::getpid() != g_process) return;
  bool has_races = false;
  try {
    g_check->stop();
    const RaceReport report = g_check->report();
    has_races = !report.races.empty();
    base::log_line("SLIP_CHECK: " + report.text());
    if (base::env().launch_blocking)
      base::log_line(
          "SLIP_CHECK: SLIP_LAUNCH_BLOCKING=1 makes the host wait after every op, so races between ops cannot be "
          "found: check again without it");
  } catch (const std::exception& error) {
    base::log_line(fmt::format("SLIP_CHECK: {}", error.what()));
  }
  if (!has_races) return;
  std::fflush(nullptr);
  ::_exit(kRaceStatus);
}

template <class Observing>
void start(Observing*& observer, void (*at_exit)(), const char* variable, const char* result) {
  try {
    observer = new Observing;
    if (std::atexit(at_exit) != 0)
      base::log_line(fmt::format("{}: the exit handler could not be registered, so no {}", variable, result));
  } catch (const std::exception& error) {
    base::log_line(fmt::format("{}: {}", variable, error.what()));
  }
}

}  // namespace

void start_observers() {
  [[maybe_unused]] static const bool kStarted = [] {
    g_process = ::getpid();
    // The check first: exit handlers run in reverse order, and this one must be the last.
    if (base::env().check) start(g_check, report_process_races, "SLIP_CHECK", "races will be reported");
    if (!base::env().trace.empty()) start(g_trace, write_process_trace, "SLIP_TRACE", "trace will be written");
    return true;
  }();
}

}  // namespace slip::runtime
