// `slip check TRACE...`: what recorded programs did wrong.
#include "slip/check.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"

namespace slip::cli {
namespace {

int run_check(const std::vector<std::string>& paths) {
  bool clean = true;
  for (const std::string& path : paths) {
    const TraceData trace = read_trace(path);  // the report refers to it
    const CheckReport report = check(trace);
    fmt::print("{}{}", paths.size() > 1 ? path + ":\n" : "", report.text());
    clean = clean && report.clean();
  }
  return clean ? kSuccess : kFailed;
}

}  // namespace

std::function<int()> add_check(CLI::App& app) {
  auto paths = std::make_shared<std::vector<std::string>>();
  CLI::App* check = app.add_subcommand("check", "Find races in traces: accesses that nothing orders");
  check->footer(
      "\nTraces come from --trace of any command, or from SLIP_TRACE=FILE with any program that uses the\n"
      "library. SLIP_CHECK=1 checks a program while it runs. Status 1: a race, or records are missing.");
  check->add_option("TRACE", *paths, "Files to check, each by itself")->required();
  return [paths] { return run_check(*paths); };
}

}  // namespace slip::cli
