// `slip view TRACE`: the timeline page of a trace.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "cli/commands.hpp"
#include "slip/page.hpp"

namespace slip::cli {
namespace {

struct Asked {
  std::string trace, page, prediction;
};

// Beside the trace: run.json -> run.html.
std::string page_beside(const std::string& trace) {
  const std::size_t name = trace.rfind('/') + 1;  // 0 without a folder
  const std::size_t dot = trace.rfind('.');
  return (dot != std::string::npos && dot > name ? trace.substr(0, dot) : trace) + ".html";
}

int run_view(const Asked& asked) {
  const std::string page = asked.page.empty() ? page_beside(asked.trace) : asked.page;
  if (page == asked.trace) throw UsageError(fmt::format("'{}' is the trace itself: name another file with -o", page));
  const TraceData trace = read_trace(asked.trace, {});
  std::optional<TraceData> prediction;
  if (!asked.prediction.empty()) prediction = read_trace(asked.prediction, {});
  write_html(trace, page, asked.trace.substr(asked.trace.rfind('/') + 1), prediction ? &*prediction : nullptr);
  return kSuccess;
}

}  // namespace

void write_html(const TraceData& trace, const std::string& page, const std::string& title,
                const TraceData* prediction) {
  write_page(trace, page, {.title = title, .prediction = prediction}, {});
  fmt::print("page: {} (opens in any browser)\n", page);
}

std::function<int()> add_view(CLI::App& app) {
  auto asked = std::make_shared<Asked>();
  CLI::App* view = app.add_subcommand("view", "Write a trace's timeline as one HTML page");
  view->footer(
      "\nTraces come from --trace of any command, from SLIP_TRACE=FILE with any program that uses the library, or\n"
      "from other tools that write Chrome trace-event JSON. The page needs no network and no server.");
  view->add_option("TRACE", asked->trace, "The trace to show")->required();
  add_named_output(*view, "-o,--output", asked->page,
                   "The page, - for the standard output; default: the trace's name with .html");
  view->add_option("--prediction", asked->prediction, "Trace of the same program as predicted, laid under it");
  return [asked] { return run_view(*asked); };
}

}  // namespace slip::cli
