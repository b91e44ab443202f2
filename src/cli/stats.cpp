// `slip stats TRACE...`: overlap, idle times and the critical path of recorded programs.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/inputs.hpp"
#include "cli/stats_tables.hpp"
#include "cli/table.hpp"

namespace slip::cli {
namespace {

using Json = nlohmann::ordered_json;

struct StatsOptions {
  std::vector<std::string> paths;
  std::string json, html;
  std::size_t top = 10;
  bool ops = false;
};

double ratio(Picos part, Picos whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

// Warnings: what the trace does not contain, or only in part.
std::string gaps_in(const Studied& studied) {
  std::string text;
  if (studied.data.dropped > 0)
    text += fmt::format("{} records were dropped because the trace was full: everything here is of the rest. ",
                        studied.data.dropped);
  if (studied.unsubmitted == studied.figures.ops && studied.figures.ops > 0)
    text +=
        "The trace has no submissions, so the host is never named as a cause, and only a start that comes at once "
        "after "
        "another op is explained; slack and critical path know only the order within streams and engines. ";
  else if (studied.unsubmitted > 0)
    text += fmt::format("{} ops have no submission of their own in the trace. ", studied.unsubmitted);
  if (studied.not_run > 0) text += fmt::format("{} ops have no run and count in nothing here. ", studied.not_run);
  if (!text.empty()) text.pop_back();
  return text;
}

std::string summary(const Studied& studied) {
  const Figures& figures = studied.figures;
  std::string text;
  const auto line = [&](const char* what, const std::string& value, std::string_view meaning) {
    text += paragraph(meaning, 27, fmt::format("  {:<12}{:>11}  ", what, value));
  };
  line("ops", fmt::format("{}", figures.ops), fmt::format("on {} streams", studied.streams));
  line("total", format_time(figures.total), "from the first start to the last end");
  line("bound", format_time(figures.bound),
       "lower bound: the longest of compute, copies in and copies out, the ops of an engine one after the other, or as "
       "many at once as it ever ran");
  if (figures.bound > 0)
    line("distance", format_time(figures.total - figures.bound),
         fmt::format("total - bound; the total is {} the bound", format_times(ratio(figures.total, figures.bound))));
  line("idle", format_time(figures.idle), "of the total: no engine was busy");
  line("copy", format_time(figures.copy), "at least one copy in or out was running");
  line("overlap", format_percent(figures.overlap_percent()), "copy time while computing / copy time");
  line("exposed", format_time(figures.exposed), "copy time while nothing was computed");
  if (figures.communication == 0) return text;
  line("comm.", format_time(figures.communication), "at least one op with other ranks was running");
  line("overlap", format_percent(figures.communication_percent()), "communication while computing / communication");
  line("exposed", format_time(figures.communication_exposed), "communication while nothing was computed");
  return text;
}

Json json_of(const Figures& figures) {
  return {{"total", figures.total},
          {"from_queued", figures.from_queued},
          {"bound", figures.bound},
          {"distance", figures.total - figures.bound},
          {"idle", figures.idle},
          {"copy", figures.copy},
          {"overlapped", figures.overlapped},
          {"exposed", figures.exposed},
          {"overlap_percent", figures.overlap_percent()},
          {"communication", figures.communication},
          {"communication_overlapped", figures.communication_overlapped},
          {"communication_exposed", figures.communication_exposed},
          {"communication_percent", figures.communication_percent()}};
}

// Prints the tables and returns them as JSON.
Json tell(const std::string& path, const Studied& studied, const StatsOptions& options) {
  const auto show = [](const Table& table) {
    fmt::print("\n{}", table.text());
    return cli::json_of(table);
  };
  fmt::print("{}\n{}", path, summary(studied));
  const std::string gaps = gaps_in(studied);
  if (!gaps.empty()) fmt::print("\n{}", paragraph(gaps, 4, "  ! "));
  Json found = {{"file", path},
                {"ops", studied.figures.ops},
                {"not_run", studied.not_run},
                {"unsubmitted", studied.unsubmitted},
                {"dropped", studied.data.dropped},
                {"streams", studied.streams},
                {"figures", json_of(studied.figures)}};
  if (!studied.data.devices.empty()) {
    Json devices = Json::array();
    for (const TraceDevice& device : studied.data.devices)
      devices.push_back({{"device", device.id}, {"rank", device.rank}, {"device_of_rank", device.id_there}});
    found["ranks"] = std::move(devices);
  }
  if (studied.figures.ops == 0) return found;
  const Table devices = device_table(studied);
  found["devices"] = devices.rows().size() > 1 ? show(devices) : cli::json_of(devices);
  found["engines"] = show(engine_table(studied));
  const PathTime path_times = path_time(studied);
  Json waits = Json::object();
  for (std::size_t i = 0; i < kCauses; ++i) waits[cause_name(static_cast<Cause>(i))] = path_times.waits[i];
  static_cast<void>(show(path_wait_table(studied)));
  found["critical_path"] = {{"ops", studied.analysis.critical.size()}, {"time", path_times.ops}, {"waits", waits}};
  found["critical_path"]["stretches"] = show(stretch_table(studied, options.top));
  found["critical_path"]["longest"] = show(max_table(studied, options.top));
  found["names"] = show(name_table(studied, options.top));
  found["slack"] = show(slack_table(studied));
  found["waits"] = show(wait_table(studied, options.top));
  if (options.ops) found["all_ops"] = cli::json_of(op_table(studied));
  return found;
}

int run_stats(const StatsOptions& options) {
  if (options.ops && options.json.empty()) throw UsageError("--ops is for --json: the ops are not printed");
  Json all = Json::array();
  const std::vector<NamedTrace> traces = read_traces(options.paths);
  if (!options.html.empty() && traces.size() > 1)
    throw UsageError(
        fmt::format("--html shows one trace, and {} are given that are no ranks of one job", options.paths.size()));
  for (const auto& [name, trace] : traces) {
    if (&name != &traces.front().name) fmt::print("\n");
    all.push_back(tell(name, Studied(trace), options));
    if (!options.html.empty()) write_html(trace, options.html, name.substr(name.rfind('/') + 1));
  }
  if (!options.json.empty())
    write_file(options.json,
               Json{{"traces", std::move(all)}}.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  return kSuccess;
}

}  // namespace

std::function<int()> add_stats(CLI::App& app) {
  auto options = std::make_shared<StatsOptions>();
  CLI::App* stats = app.add_subcommand("stats", "Figures of traces: overlap, idle time by cause, critical path, slack");
  stats->footer(
      "\nCauses: host (it submitted late), dependency (an op before it in its stream, or one waited for),\n"
      "queue (behind another stream's op in a hardware queue), engine (busy), peer (another rank had not\n"
      "arrived), unknown (nothing in the trace explains it). An engine that is done waits for nothing.");
  stats->add_option("TRACE", options->paths, "Files, each by itself; ranks of one job are one trace")->required();
  stats->add_option("--top", options->top, "How many rows the longer tables have")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1'000'000}))
      ->capture_default_str();
  add_output(*stats, "--json", options->json, "Write everything as data; times in picoseconds");
  add_output(*stats, "--html", options->html, "Write the timeline with these figures, one page");
  stats->add_flag("--ops", options->ops, "With --json: every op too, with its cause and slack");
  return [options] { return run_stats(*options); };
}

}  // namespace slip::cli
