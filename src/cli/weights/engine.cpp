#include "cli/weights/engine.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>

#include "cli/commands.hpp"
#include "cli/inputs.hpp"
#include "store/file.hpp"

namespace slip::cli {
namespace {

constexpr double kUsable = 0.9;  // share of free memory to use if the user gives no budget

std::uint64_t bytes_of_option(const std::string& text, const char* option) {
  std::uint64_t bytes = 0;
  if (!parse_bytes(text, bytes))
    throw UsageError(fmt::format("{} '{}' is no number of bytes: write 2GiB, 512MiB or 1000000", option, text));
  return bytes;
}

}  // namespace

bool is_weights_file(const std::string& path) {
  return path.ends_with(".safetensors") || path.ends_with(".safetensors.index.json");
}

void EngineOptions::add_model_to(CLI::App& command, bool runs) {
  command
      .add_option("MODEL", model, "A folder with graph.json and safetensors (slip model stack makes one), or a graph")
      ->required();
  command
      .add_option("--device", device,
                  runs ? "cpu or cuda:0; slip plan predicts on simulated devices, too"
                       : "cpu, cuda:0, or sim:NAME to plan for a device that is not here")
      ->capture_default_str();
  command.add_option("--costs", costs, "Costs that an earlier --save-costs wrote; default: measured now");
  add_named_output(command, "--save-costs", save_costs, "Write the costs to this file");
}

void EngineOptions::add_to(CLI::App& command, bool runs) {
  add_model_to(command, runs);
  CLI::Option* of_budget = command.add_option("--budget", budget, "Device memory for everything: 2GiB");
  CLI::Option* of_slowdown = command.add_option(
      "--slowdown", slowdown, "Find the smallest budget that is at most so many percent slower than all resident");
  of_budget->excludes(of_slowdown);
  command.add_option("--host-memory", host_memory, "Weights kept in host memory; the others are read from disk");
  command.add_option("--ring", ring, "Size of the ring that weights pass through; default: found by the planner");
  command.add_flag("--stream-all", stream_all, "Keep no weight on the device");
}

WeightsOptions EngineOptions::planning() const {
  WeightsOptions wanted;
  if (!budget.empty()) wanted.budget = bytes_of_option(budget, "--budget");
  if (!host_memory.empty()) wanted.host_memory = bytes_of_option(host_memory, "--host-memory");
  if (!ring.empty()) wanted.ring = bytes_of_option(ring, "--ring");
  if (slowdown && !(*slowdown >= 0 && std::isfinite(*slowdown)))
    throw UsageError(
        fmt::format("--slowdown {}: 0 or more is expected; 5 allows 5 % more time than resident", *slowdown));
  if (slowdown) wanted.slowdown = *slowdown / 100;
  wanted.stream_all = stream_all;
  return wanted;
}

Engine::Engine(const EngineOptions& options) : planning_(options.planning()), device_name_(options.device) {
  open_device(device_name_);  // fails early, before any long work
  if (is_folder(options.model)) {
    folder_ = options.model;
    graph_ = read_graph(folder_ + "/graph.json", {});
  } else {
    if (is_weights_file(options.model))
      throw UsageError(
          fmt::format("'{}' is weights without a graph: give the folder that holds graph.json, too", options.model));
    graph_ = read_graph(options.model, {});
  }
  if (!options.costs.empty()) costs_ = read_costs(options.costs, {});
  else if (simulated()) costs_ = model_costs(graph_, device_name_, {});
  else if (has_weights()) costs_ = measure_costs(graph_, open_device(device_name_), source(), {});
  else costs_ = measure_costs(graph_, open_device(device_name_), LoadProbe{}, {});
  if (!options.save_costs.empty()) write_costs(costs_, options.save_costs, {});
}

WeightSource Engine::source() const { return WeightSource::files(folder_, {}); }

std::uint64_t Engine::free_bytes() const {
  const MemoryInfo memory = open_device(device_name_).memory();
  return static_cast<std::uint64_t>(kUsable * static_cast<double>(memory.total - memory.used));
}

WeightsPlan Engine::plan() const {
  WeightsOptions wanted = planning_;
  wanted.free_memory = free_bytes();
  return plan_weights(graph_, costs_, wanted, {});
}

WeightsPlan Engine::resident_plan() const { return plan_weights(graph_, costs_, {}, {}); }

Device Engine::open(const WeightsPlan& plan) const {
  return open_device(device_name_, {.memory_limit = plan.budget.value_or(0)});
}

}  // namespace slip::cli
