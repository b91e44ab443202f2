// `slip check TRACE...`: reports synchronisation faults and superfluous waits of recorded programs.
#include "slip/check.hpp"

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/text.hpp"

namespace slip::cli {
namespace {

struct CheckOptions {
  std::vector<std::string> paths;
  std::string json, html;
};

Json json_of(const OpPlace& op) {
  return {{"stream", op.stream},     {"stream_name", op.stream_name.empty() ? Json() : Json(op.stream_name)},
          {"position", op.position}, {"name", op.name},
          {"file", op.file},         {"line", op.line}};
}

Json json_of(const RaceReport& report) {
  Json races = Json::array(), fixes = Json::array();
  for (const Race& race : report.races)
    races.push_back({{"first", json_of(race.first)},
                     {"first_writes", race.first.writes},
                     {"second", json_of(race.second)},
                     {"second_writes", race.second.writes},
                     {"buffer", race.buffer_name},
                     {"offset", race.offset},
                     {"bytes", race.bytes},
                     {"times", race.times}});
  for (const RaceFix& fix : report.fixes)
    fixes.push_back({{"record_after", json_of(fix.after)}, {"wait_before", json_of(fix.before)}});
  return {{"races", std::move(races)}, {"fixes", std::move(fixes)}, {"fixes_untried", report.fixes_untried},
          {"ops", report.ops},         {"opaque", report.opaque},   {"dropped", report.dropped}};
}

Json json_of(const CheckReport& report) {
  Json result = json_of(report.races);
  Json superfluous = Json::array(), held = Json::array(), deadlocks = Json::array();
  for (const SuperfluousWait& wait : report.superfluous)
    superfluous.push_back({{"file", wait.file},
                           {"line", wait.line},
                           {"after", json_of(wait.after)},
                           {"before", json_of(wait.before)},
                           {"times", wait.times},
                           {"implied", wait.implied},
                           {"cost_ps", wait.cost_known ? Json(wait.cost) : Json()}});
  for (const FalseDependency& found : report.false_dependencies)
    held.push_back({{"held", json_of(found.held)},
                    {"by", json_of(found.by)},
                    {"because", found.queue ? "queue" : "legacy"},
                    {"times", found.times},
                    {"cost_ps", found.cost_known ? Json(found.cost) : Json()}});
  for (const Deadlock& deadlock : report.deadlocks) {
    Json cycle = Json::array();
    for (const Deadlock::Step& step : deadlock.cycle) cycle.push_back(json_of(step.op));
    deadlocks.push_back(std::move(cycle));
  }
  result["superfluous"] = std::move(superfluous);
  result["false_dependencies"] = std::move(held);
  result["deadlocks"] = std::move(deadlocks);
  result["foreign"] = report.foreign;
  result["clean"] = report.clean();
  return result;
}

int run_check(const CheckOptions& options) {
  bool clean = true;
  Json all = Json::array();
  const std::vector<NamedTrace> traces = read_traces(options.paths);
  if (!options.html.empty() && traces.size() > 1)
    throw UsageError(fmt::format("--html needs one trace or the traces of one job's ranks, but {} others are given",
                                 options.paths.size()));
  for (const auto& [name, trace] : traces) {  // `trace` outlives the report, which has string_views into it
    const CheckReport report = check_trace(trace);
    fmt::print("{}{}", options.paths.size() > 1 ? name + ":\n" : "", report.text());
    clean = clean && report.clean();
    all.push_back(json_of(report));
    all.back()["trace"] = name;
    if (!options.html.empty()) write_html(trace, options.html, name.substr(name.rfind('/') + 1));
  }
  write_json(options.json, all);
  return clean ? kSuccess : kFailed;
}

}  // namespace

std::function<int()> add_check(CLI::App& app) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* check = app.add_subcommand("check", "Find races, superfluous waits, false dependencies and deadlocks");
  check->footer(
      "\nTraces come from --trace of any command, or from SLIP_TRACE=FILE with any program that uses the\n"
      "library. SLIP_CHECK=1 checks a program for races while it runs. Status 0: no race and no deadlock;\n"
      "1: there is one, or the trace is not complete enough to be sure. Superfluous waits and false dependencies\n"
      "cost time, but do not change the status.");
  check
      ->add_option("TRACE", options->paths,
                   "Trace files; each is checked separately, but the ranks of one job are merged")
      ->required();
  add_output(*check, "--json", options->json, "Write the findings as JSON; times in picoseconds");
  add_output(*check, "--html", options->html, "Write the timeline with the findings as an HTML page");
  return [options] { return run_check(*options); };
}

}  // namespace slip::cli
