// Engine: a model, a device, its costs and a plan; shared by `slip plan`, `slip run` and `slip bench weights`.
#pragma once

#include <optional>
#include <string>

#include "cli/text.hpp"
#include "slip/runner.hpp"

namespace CLI {
class App;
}

namespace slip::cli {

struct EngineOptions {
  std::string model, device = "cpu", costs, save_costs, budget, host_memory, ring;
  std::optional<double> slowdown;  // percent
  bool stream_all = false;

  // `runs`: the command runs the model, so simulated devices are not offered.
  void add_to(CLI::App& command, bool runs);        // all options
  void add_model_to(CLI::App& command, bool runs);  // only model, device and costs

  // Throws UsageError for a value that is not a number of bytes or percent.
  WeightsOptions planning() const;
};

bool is_weights_file(const std::string& path);  // by its extension

// A model with its graph, device and costs, before it runs.
class Engine {
 public:
  explicit Engine(const EngineOptions& options);

  const Graph& graph() const { return graph_; }
  const Costs& costs() const { return costs_; }
  bool simulated() const { return device_name_.starts_with("sim:"); }
  bool has_weights() const { return !folder_.empty(); }
  WeightSource source() const;
  WeightsPlan plan() const;           // with the user's options
  WeightsPlan resident_plan() const;  // all weights on the device
  std::uint64_t free_bytes() const;   // device memory that a plan may use
  // Opens the device with the plan's memory as its limit.
  Device open(const WeightsPlan& plan) const;

 private:
  WeightsOptions planning_;
  std::string device_name_;
  std::string folder_;  // empty: a graph without weights
  Graph graph_;
  Costs costs_;
};

}  // namespace slip::cli
