// What `slip plan`, `slip run` and `slip bench weights` share: a model, a device, its costs and a plan.
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

  // `runs`: the command runs the model, which a simulated device cannot.
  void add_to(CLI::App& command, bool runs);        // all of them
  void add_model_to(CLI::App& command, bool runs);  // model, device and costs, and nothing of how to plan

  // UsageError names what is no number of bytes or percent.
  WeightsOptions planning() const;
};

bool is_weights_file(const std::string& path);  // by its name

// A model with all that is known about it before it runs.
class Engine {
 public:
  explicit Engine(const EngineOptions& options);

  const Graph& graph() const { return graph_; }
  const Costs& costs() const { return costs_; }
  bool simulated() const { return device_name_.starts_with("sim:"); }
  bool has_weights() const { return !folder_.empty(); }
  WeightSource source() const;
  WeightsPlan plan() const;           // as asked for
  WeightsPlan resident_plan() const;  // everything on the device
  std::uint64_t free_bytes() const;   // that a plan may take of the device's memory
  // With no more memory than the plan may take.
  Device open(const WeightsPlan& plan) const;

 private:
  WeightsOptions planning_;
  std::string device_name_;
  std::string folder_;  // empty: a graph without weights
  Graph graph_;
  Costs costs_;
};

}  // namespace slip::cli
