// Workload: a model, the device that it is planned for, and the costs of its ops there. run_steps() runs a plan of it
// and measures the run. `slip plan`, `slip run` and `slip bench weights` share them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/text.hpp"
#include "slip/figures.hpp"
#include "slip/runner.hpp"

namespace CLI {
class App;
}

namespace slip::cli {

struct WorkloadOptions {
  std::string model, device = "cpu", costs, save_costs, budget, host_memory, ring;
  std::optional<double> slowdown;  // percent
  bool stream_all = false;
  bool compress = false;

  // `runs`: the command runs the model, so simulated devices are not offered.
  void add_to(CLI::App& command, bool runs);        // all options
  void add_model_to(CLI::App& command, bool runs);  // only model, device, costs and compression

  // Throws UsageError for a value that is not a number of bytes or percent.
  WeightsOptions planning() const;
};

class Workload {
 public:
  explicit Workload(const WorkloadOptions& options);

  const Graph& graph() const { return graph_; }
  const Costs& costs() const { return costs_; }
  bool simulated() const { return device_name_.starts_with("sim:"); }
  bool has_weights() const { return !folder_.empty(); }
  const WeightSource& source() const { return *source_; }  // REQUIRES: has_weights()
  WeightsPlan plan() const;                                // with the user's options
  // For WeightsOptions::compressed; empty: the weights are not compressed.
  std::function<std::uint64_t(const WeightGroup&)> compressed_bytes() const {
    return source_ ? source_->compressed_bytes(graph_) : nullptr;
  }
  // All weights on the device.
  WeightsPlan resident_plan() const { return plan_weights(graph_, costs_, {}, {}); }
  std::uint64_t free_bytes() const;  // device memory that a plan may use
  // Opens the device with the plan's memory as its limit.
  Device open(const WeightsPlan& plan) const;

 private:
  WeightsOptions planning_;
  std::string device_name_;
  std::string folder_;  // empty: a graph without weights
  Graph graph_;
  std::optional<WeightSource> source_;
  Costs costs_;
};

inline constexpr int kInterrupted = 130;  // exit status after SIGINT, as shells report it

struct StepOptions {
  int steps = 8;
  std::uint64_t seed = 1;     // of the inputs; all plans get the same inputs
  const char* label = "run";  // shown in the progress line of a terminal

  // Throws UsageError if there are too few steps for a steady state.
  void check() const;
};

struct StepsResult {
  Prediction prediction;
  Comparison comparison;
  Figures figures;  // of the whole run, the same as on the page and in `slip stats`
  std::uint64_t peak = 0;
  int steps = 0;                   // fewer than requested if interrupted
  std::vector<std::byte> outputs;  // of the last step
  TraceData trace;

  double loaded_per_second(const WeightsPlan& plan) const {
    const double seconds = static_cast<double>(comparison.measured) * 1e-12;
    return seconds > 0 ? static_cast<double>(plan.streamed_bytes) / seconds : 0;
  }
};

// The first Ctrl-C ends the loop after the current step; a second one ends the program.
StepsResult run_steps(const Workload& workload, const WeightsPlan& plan, const StepOptions& options);

// Throws UsageError for a graph without weights or a simulated device: they can be planned but not run.
void require_runnable(const WorkloadOptions& options, const char* command);

// Prints how many steps an interrupted run completed, and returns its exit status.
int stopped(const StepsResult& result, const StepOptions& options);

}  // namespace slip::cli
