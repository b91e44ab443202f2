#include "cli/weights/workload.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstring>
#include <random>

#include "base/sync.hpp"
#include "cli/commands.hpp"
#include "store/file.hpp"

namespace slip::cli {
namespace {

constexpr double kUsableShare = 0.9;  // of the free memory, if the user gives no budget

std::uint64_t bytes_of_option(const std::string& text, const char* option) {
  std::uint64_t bytes = 0;
  if (!base::parse_bytes(text, bytes))
    throw UsageError(
        fmt::format("{} '{}' is not a number of bytes: write for example 2GiB, 512MiB or 1000000", option, text));
  return bytes;
}

bool is_weights_file(const std::string& path) {
  return path.ends_with(".safetensors") || path.ends_with(".safetensors.index.json");
}

std::atomic<bool> g_stop{false};
// relaxed: no other data is published through the flag.
void stop_soon(int) { g_stop.store(true, std::memory_order_relaxed); }

class StopOnInterrupt : base::NoCopy {
 public:
  StopOnInterrupt() {
    struct sigaction action {};
    action.sa_handler = stop_soon;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(SIGINT, &action, &before_);
  }
  ~StopOnInterrupt() { sigaction(SIGINT, &before_, nullptr); }
  static bool wanted() { return g_stop.load(std::memory_order_relaxed); }

 private:
  struct sigaction before_ {};
};

// Fills the value with small numbers of its type.
void fill_input(const GraphValue& value, std::span<std::byte> bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i + bytes_of(value.type) <= bytes.size(); i += bytes_of(value.type)) {
    const float number = static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
    const auto bits = std::bit_cast<std::uint32_t>(number);
    if (value.type == DataType::kF32) {
      std::memcpy(&bytes[i], &bits, 4);
    } else if (value.type == DataType::kBF16) {
      const auto upper = static_cast<std::uint16_t>(bits >> 16);
      std::memcpy(&bytes[i], &upper, 2);
    } else {
      bytes[i] = static_cast<std::byte>(random() % 100);
    }
  }
}

void fill_inputs(const Graph& graph, Runner& runner, std::uint64_t seed) {
  for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
    if (graph.values()[i].role == ValueRole::kInput)
      fill_input(graph.values()[i], runner.input<std::byte>({i}, {}), seed);
  }
}

std::vector<std::byte> outputs_of(const Graph& graph, Runner& runner) {
  std::vector<std::byte> outputs;
  for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
    if (!graph.values()[i].output) continue;
    const std::span<const std::byte> bytes = runner.output<std::byte>({i}, {});
    outputs.insert(outputs.end(), bytes.begin(), bytes.end());
  }
  return outputs;
}

void show_progress(const StepOptions& options, int step) {
  if (::isatty(STDERR_FILENO) != 0)
    fmt::print(stderr, "\r{}: step {} of {}{}", options.label, step, options.steps, step == options.steps ? "\n" : "");
}

}  // namespace

void WorkloadOptions::add_model_to(CLI::App& command, bool runs) {
  command
      .add_option("MODEL", model,
                  "A folder with graph.json and safetensors (slip model stack makes one), or a graph.json")
      ->required();
  command
      .add_option("--device", device,
                  runs ? "cpu or cuda:0 (only slip plan takes simulated devices)"
                       : "cpu, cuda:0, or sim:NAME to plan for a device that this machine does not have")
      ->capture_default_str();
  command.add_option("--costs", costs,
                     "Read the costs from this file, which --save-costs wrote; default: measure them now");
  add_named_output(command, "--save-costs", save_costs, "Write the costs to this file");
  command.add_flag("--compress", compress,
                   "Compress the weights in host memory, without loss, where that makes steps shorter");
}

void WorkloadOptions::add_to(CLI::App& command, bool runs) {
  add_model_to(command, runs);
  CLI::Option* of_budget = command.add_option(
      "--budget", budget, "Limit of device memory, for weights, ring and activations together: 2GiB");
  CLI::Option* of_slowdown = command.add_option(
      "--slowdown", slowdown, "Find the smallest budget that is at most this many percent slower than all resident");
  of_budget->excludes(of_slowdown);
  command.add_option("--host-memory", host_memory,
                     "Limit of host memory for weights; the other weights are read from disk in each step");
  command.add_option("--ring", ring, "Size of the ring that weights pass through; default: found by the planner");
  command.add_flag("--stream-all", stream_all, "Keep no weight on the device");
}

WeightsOptions WorkloadOptions::planning() const {
  WeightsOptions wanted;
  if (!budget.empty()) wanted.budget = bytes_of_option(budget, "--budget");
  if (!host_memory.empty()) wanted.host_memory = bytes_of_option(host_memory, "--host-memory");
  if (!ring.empty()) wanted.ring = bytes_of_option(ring, "--ring");
  if (slowdown && !(*slowdown >= 0 && std::isfinite(*slowdown)))
    throw UsageError(fmt::format(
        "--slowdown {}: must be 0 or more; 5 allows 5 % more time than with all weights resident", *slowdown));
  if (slowdown) wanted.slowdown = *slowdown / 100;
  wanted.stream_all = stream_all;
  return wanted;
}

Workload::Workload(const WorkloadOptions& options) : planning_(options.planning()), device_name_(options.device) {
  open_device(device_name_);  // fails early, before any long work
  if (store::is_folder(options.model)) {
    folder_ = options.model;
    graph_ = read_graph(folder_ + "/graph.json", {});
  } else {
    if (is_weights_file(options.model))
      throw UsageError(fmt::format("'{}' is weights without a graph: give the folder with graph.json and the weights",
                                   options.model));
    graph_ = read_graph(options.model, {});
  }
  if (options.compress && !options.host_memory.empty())
    throw UsageError(
        "--compress keeps all weights in host memory, so it cannot be combined with --host-memory: write a compressed "
        "folder with slip compress, and use that without --compress");
  if (options.compress && !has_weights())
    throw UsageError(fmt::format("--compress: '{}' is a graph without weights", options.model));
  if (has_weights()) source_ = WeightSource::files(folder_, {});
  if (options.compress)
    source_ = WeightSource::compressed(open_device(simulated() ? "cpu" : device_name_), graph_, *source_, {});
  if (!options.costs.empty()) costs_ = read_costs(options.costs, {});
  else if (simulated()) costs_ = model_costs(graph_, device_name_, {});
  else if (has_weights()) costs_ = measure_costs(graph_, open_device(device_name_), source(), {});
  else costs_ = measure_costs(graph_, open_device(device_name_), LoadProbe{}, {});
  if (!(costs_.decode.bytes_per_second > 0) && !simulated() && compressed_bytes())
    costs_.decode = measure_decode(open_device(device_name_), {});
  if (!options.save_costs.empty()) write_costs(costs_, options.save_costs, {});
}

std::uint64_t Workload::free_bytes() const {
  const MemoryInfo memory = open_device(device_name_).memory();
  return static_cast<std::uint64_t>(kUsableShare * static_cast<double>(memory.total - memory.used));
}

WeightsPlan Workload::plan() const {
  WeightsOptions wanted = planning_;
  wanted.free_memory = free_bytes();
  wanted.compressed = compressed_bytes();
  return plan_weights(graph_, costs_, wanted, {});
}

Device Workload::open(const WeightsPlan& plan) const {
  return open_device(device_name_, {.memory_limit = plan.budget.value_or(0)});
}

void StepOptions::check() const {
  if (steps < 2)
    throw UsageError(fmt::format("--steps {}: must be 2 or more, because the first step is no steady state", steps));
}

StepsResult run_steps(const Workload& workload, const WeightsPlan& plan, const StepOptions& options) {
  StepsResult result;
  // Predicts as many steps as run, so that the page shows a predicted step below each measured one. The limit saves
  // time: later steps are all alike.
  constexpr int kMaxPredicted = 64;
  result.prediction =
      predict_weights(plan, workload.graph(), workload.costs(), std::clamp(options.steps, 4, kMaxPredicted), {});
  const Device device = workload.open(plan);
  Runner runner(device, workload.graph(), plan, workload.source(), {});
  Trace trace;
  const StopOnInterrupt interrupt;
  for (; result.steps < options.steps && !StopOnInterrupt::wanted(); ++result.steps) {
    fill_inputs(workload.graph(), runner, options.seed + static_cast<std::uint64_t>(result.steps));
    runner.step({});
    show_progress(options, result.steps + 1);
  }
  if (result.steps > 0) result.outputs = outputs_of(workload.graph(), runner);
  runner.sync({});
  trace.stop();
  result.peak = device.memory().peak;
  result.trace = trace.data();
  result.figures = figures(result.trace.spans());
  result.comparison = compare_weights(workload.graph(), result.prediction, result.trace, runner.compute_stream());
  return result;
}

void require_runnable(const WorkloadOptions& options, const char* command) {
  if (options.device.starts_with("sim:"))
    throw UsageError(
        fmt::format("{} is simulated: slip plan predicts on it, slip {} needs cpu or cuda:0", options.device, command));
  if (store::is_folder(options.model)) return;
  static_cast<void>(store::File::open(options.model, {}));  // throws if the file does not exist
  throw UsageError(fmt::format("'{}' is {}: slip {} needs a folder with both", options.model,
                               is_weights_file(options.model) ? "weights without a graph" : "a graph without weights",
                               command));
}

int stopped(const StepsResult& result, const StepOptions& options) {
  fmt::print(stderr, "{}stopped after {} of {} steps ({})\n", ::isatty(STDERR_FILENO) != 0 ? "\n" : "", result.steps,
             options.steps, options.label);
  return kInterrupted;
}

}  // namespace slip::cli
