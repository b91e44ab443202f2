// `slip view TRACE`: writes the timeline page of a trace.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "slip/page.hpp"

namespace slip::cli {
namespace {

struct ViewOptions {
  std::vector<std::string> traces;
  std::string page, prediction;
};

// The path without its extension: run.json -> run, run.json.gz -> run.
std::string stem_of(const std::string& path) {
  std::string stem = path.ends_with(".gz") ? path.substr(0, path.size() - 3) : path;
  const std::size_t name = stem.rfind('/') + 1;  // 0 without a folder
  const std::size_t dot = stem.rfind('.');
  return dot != std::string::npos && dot > name ? stem.substr(0, dot) : stem;
}

// Default path of the page: run.json -> run.html. For merged ranks without the rank number: run.0.json -> run.html.
std::string page_beside(const ViewOptions& options) {
  std::string stem = stem_of(options.traces.front());
  const std::size_t dot = stem.rfind('.');
  if (options.traces.size() > 1 && dot != std::string::npos &&
      stem.find_first_not_of("0123456789", dot + 1) == std::string::npos)
    stem.resize(dot);
  return stem + ".html";
}

int run_view(const ViewOptions& options) {
  const std::string page = options.page.empty() ? page_beside(options) : options.page;
  if (std::ranges::find(options.traces, page) != options.traces.end())
    throw UsageError(fmt::format("'{}' is the trace itself: name another file with -o", page));
  const std::vector<NamedTrace> traces = read_traces(options.traces);
  if (traces.size() > 1)
    throw UsageError(fmt::format("a page shows one trace, or those of the ranks of one job, and {} others are given",
                                 traces.size()));
  const auto& [name, trace] = traces.front();
  std::optional<TraceData> prediction;
  if (!options.prediction.empty()) prediction = read_trace(options.prediction, {});
  write_html(trace, page, name.substr(name.rfind('/') + 1), prediction ? &*prediction : nullptr);
  return kSuccess;
}

}  // namespace

void write_html(const TraceData& trace, const std::string& page, const std::string& title,
                const TraceData* prediction) {
  write_page(trace, page, {.title = title, .prediction = prediction}, {});
  fmt::print("page: {} (opens in any browser)\n", page);
}

std::function<int()> add_view(CLI::App& app) {
  auto options = std::make_shared<ViewOptions>();
  CLI::App* view = app.add_subcommand("view", "Write a trace's timeline as one HTML page");
  view->footer(
      "\nTraces come from --trace of any command, from SLIP_TRACE=FILE with any program that uses the library, or\n"
      "from other tools that write Chrome trace-event JSON, also with gzip. The page needs no network.");
  view->add_option("TRACE", options->traces, "The trace to show, or those of the ranks of one job")->required();
  add_named_output(*view, "-o,--output", options->page,
                   "The page, - for the standard output; default: the trace's name with .html");
  view->add_option("--prediction", options->prediction, "Trace of the same program as predicted, laid under it");
  return [options] { return run_view(*options); };
}

}  // namespace slip::cli
