// Runs and measures the steps of a model with a plan; used by `slip run` and `slip bench weights`.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/lab/bench.hpp"
#include "cli/weights/engine.hpp"

namespace slip::cli {

inline constexpr int kInterrupted = 130;  // exit status after SIGINT, as shells report it

struct StepOptions {
  int steps = 8;
  std::uint64_t seed = 1;    // of the inputs; all plans get the same inputs
  const char* what = "run";  // shown in the progress line of a terminal

  // Throws UsageError if there are too few steps for a steady state.
  void check() const;
};

struct StepsSeen {
  Prediction prediction;
  Comparison comparison;
  Figures figures;  // of the whole run, the same as on the page and in `slip stats`
  std::uint64_t peak = 0;
  int steps = 0;                   // fewer than requested if interrupted
  std::vector<std::byte> outputs;  // of the last step
  TraceData trace;

  double loaded_per_second(const WeightsPlan& plan) const;
};

// The first Ctrl-C ends the loop after the current step; a second one ends the program.
StepsSeen run_steps(const Engine& engine, const WeightsPlan& plan, const StepOptions& options);

// Time in which loads ran, and the part of it in which an op of the graph ran, too. Without the first step, which
// starts with an empty ring.
Cover loads_covered(const TraceData& trace, std::uint64_t compute_stream, std::size_t ops);

// Throws UsageError for a graph without weights or a simulated device: they can be planned but not run.
void require_runnable(const EngineOptions& options, const char* command);

// Prints how many steps an interrupted run completed, and returns its exit status.
int stopped(const StepsSeen& seen, const StepOptions& options);

}  // namespace slip::cli
