// `slip lab`: chooses the labs, runs them, and writes what they found.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "base/clock.hpp"
#include "cli/commands.hpp"
#include "cli/json.hpp"
#include "cli/lab/bench.hpp"
#include "cli/lab/lab.hpp"

namespace slip::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Asked {
  LabOptions options;
  std::string name, size, trace, html, json;
  bool list = false;
};

Json json_of(const Report& report) {
  Json tables = Json::array();
  for (const Table& table : report.tables()) tables.push_back({{"title", table.title()}, {"rows", json_of(table)}});
  return {{"name", report.name()},
          {"question", report.question()},
          {"tables", std::move(tables)},
          {"conclusion", report.conclusion()}};
}

const Lab& find_lab(const std::string& name) {
  std::string known;
  for (const Lab& lab : labs()) {
    if (lab.name == name) return lab;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", lab.name);
  }
  throw UsageError(fmt::format("no lab '{}': there are {}", name, known));
}

void check(Asked& asked) {
  if (!asked.size.empty()) {
    constexpr std::uint64_t kLeast = 4096, kMost = 1ULL << 30;
    if (!parse_bytes(asked.size, asked.options.bytes) || asked.options.bytes < kLeast || asked.options.bytes > kMost ||
        asked.options.bytes % kLeast != 0)
      throw UsageError(
          fmt::format("--size '{}': a multiple of 4KiB from 4KiB to 1GiB is allowed, like 64KiB or 4MiB", asked.size));
  }
  const auto within = [](const char* option, int value, int least, int most) {
    if (value != 0 && (value < least || value > most))
      throw UsageError(fmt::format("{} {}: {} to {} are allowed", option, value, least, most));
  };
  within("--chunks", asked.options.chunks, 2, 64);
  within("--layers", asked.options.layers, 2, 64);
  within("--nodes", asked.options.nodes, 1, 1024);
  within("--ranks", asked.options.ranks, 2, 4);
}

int list_labs() {
  for (const Lab& lab : labs()) fmt::print("  {:<15} {}\n", lab.name, lab.summary);
  return kSuccess;
}

void write_timeline(const Asked& asked, const TraceData& trace) {
  if (!asked.trace.empty()) {
    write_trace(trace, asked.trace, {});
    fmt::print("timeline: {} (open it in ui.perfetto.dev or chrome://tracing)\n", asked.trace);
  }
  if (!asked.html.empty())
    write_html(trace, asked.html,
               fmt::format("slip lab{}{} on {}", asked.name.empty() ? "" : " ", asked.name, asked.options.device));
}

int run_labs(Asked asked) {
  if (asked.list) return list_labs();
  check(asked);
  std::vector<Lab> chosen;
  if (asked.name.empty()) chosen.assign(labs().begin(), labs().end());
  else chosen.push_back(find_lab(asked.name));
  const Bench bench(asked.options);
  if (bench.virtual_time() && asked.options.ranks > 0)
    throw UsageError("--ranks is for the cpu; on sim --topology FILE --nodes N say how many there are");
  std::optional<Trace> trace;
  if (!asked.trace.empty() || !asked.html.empty()) trace.emplace();
  fmt::print("device: {} ({}){}\n\n", bench.options().device, bench.open().info().description,
             bench.virtual_time() ? ", in virtual time: figures are exact" : "");
  Json found = Json::array();
  for (const Lab& lab : chosen) {
    Report report{std::string(lab.name)};
    lab.run(bench, report);
    found.push_back(json_of(report));
  }
  if (!asked.json.empty()) {
    const Json all = {{"slip", SLIP_VERSION}, {"device", bench.options().device}, {"labs", std::move(found)}};
    write_file(asked.json, all.dump(2) + "\n");
  }
  if (trace) {
    trace->stop();
    write_timeline(asked, trace->data());
  }
  return kSuccess;
}

}  // namespace

std::function<int()> add_lab(CLI::App& app) {
  auto asked = std::make_shared<Asked>();
  CLI::App* lab = app.add_subcommand("lab", "Run the experiments on streams: one by NAME, or all in order");
  lab->add_option("NAME", asked->name, "The lab; without it all of them run (see --list)");
  lab->add_flag("--list", asked->list, "List the labs");
  lab->add_option("--device", asked->options.device,
                  "cpu, sim:h200, sim:a100, sim:laptop, or a description's path (.json)")
      ->capture_default_str();
  lab->add_option("--trace", asked->trace, "Write the timeline to this file (Chrome trace-event JSON)");
  lab->add_option("--html", asked->html, "Write the timeline as one HTML page");
  lab->add_option("--json", asked->json, "Write the tables as data; times in picoseconds");
  lab->add_option("--size", asked->size, "Size of the data or of one weight, like 4MiB (overlap, weights)");
  lab->add_option("--chunks", asked->options.chunks, "Pieces that the data is cut into (overlap; 4)");
  lab->add_option("--layers", asked->options.layers, "Layers of the model (weights, hook: 4; gradients: 12)");
  lab->add_option("--topology", asked->options.topology,
                  "A machine as XML, whose links reductions use (gradients, on sim)");
  lab->add_option("--nodes", asked->options.nodes, "So many of these machines (gradients; 1)");
  lab->add_option("--ranks", asked->options.ranks, "Ranks that train (gradients, on cpu; 2 to 4, 2)");
  lab->add_flag("--quick", asked->options.quick, "Smaller sizes and fewer runs");
  return [asked] { return run_labs(*asked); };
}

}  // namespace slip::cli
