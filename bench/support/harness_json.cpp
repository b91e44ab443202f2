// The JSON output of the harness. A file of its own, so that only one file takes the time to compile the JSON header.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "harness.hpp"

namespace slip::bench {
namespace {

using Json = nlohmann::ordered_json;

Json number_or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json series_json(const Series& series) {
  Json json;
  json["name"] = series.name;
  json["samples"] = series.samples;
  if (series.samples.empty()) {
    json["median"] = json["min"] = json["max"] = nullptr;
  } else {
    const auto [low, high] = std::minmax_element(series.samples.begin(), series.samples.end());
    json["median"] = median(series.samples);
    json["min"] = *low;
    json["max"] = *high;
  }
  json["unavailable"] = series.unavailable.empty() ? Json(nullptr) : Json(series.unavailable);
  return json;
}

Json bar_json(const Bar& bar, const BarResult& result) {
  Json json;
  json["area"] = bar.area;
  json["name"] = bar.name;
  json["unit"] = unit_name(bar.unit);
  json["better"] = bar.better == Better::kLower ? "lower" : "higher";
  json["ours"] = series_json(result.ours);
  json["peers"] = Json::array();
  for (const Series& peer : result.peers) json["peers"].push_back(series_json(peer));
  json["best_peer"] = result.best_peer ? Json(result.peers[*result.best_peer].name) : Json(nullptr);
  json["limit"] = number_or_null(bar.limit);
  json["ours_median"] = number_or_null(result.ours_value);
  json["peer_median"] = bar.limit ? Json(nullptr) : number_or_null(result.peer_value);
  // An infinite ratio (ours costs nothing) has no JSON number and becomes null.
  json["ratio"] = number_or_null(result.ratio);
  json["target"] = target_text(bar);
  json["target_ratio"] = bar.limit ? 1.0 : bar.target;
  json["verdict"] = verdict_name(result.verdict);
  json["notes"] = result.notes;
  json["row"] = bar_row(bar, result);
  return json;
}

Json machine_json(const MachineInfo& machine) {
  Json json;
  json["cpu"] = machine.cpu_model;
  json["cores"] = machine.cores;
  json["arch"] = machine.arch;
  json["kernel"] = machine.kernel;
  json["compiler"] = machine.compiler;
  json["load_average"] = machine.load_average;
  return json;
}

}  // namespace

bool Harness::write_json(const Options& options, const MachineInfo& machine,
                         const std::vector<Outcome>& outcomes) const {
  Json json;
  json["machine"] = machine_json(machine);
  json["date"] = machine.date;
  json["git_commit"] = machine.git_commit.empty() ? Json(nullptr) : Json(machine.git_commit);
  json["command_line"] = options.command_line;
  json["repeat"] = options.repeat;
  json["quick"] = options.quick;
  json["bars"] = Json::array();
  for (const Outcome& outcome : outcomes) json["bars"].push_back(bar_json(*outcome.bar, outcome.result));
  std::ofstream file(options.json_file, std::ios::trunc);
  // A command line or the text of an exception may have any encoding. Invalid bytes are replaced: otherwise the whole
  // result would be lost.
  file << json.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  file.flush();
  return file.good();
}

}  // namespace slip::bench
