// Steps of a model on a device, measured: what `slip run` and `slip bench weights` do with a plan.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/lab/bench.hpp"
#include "cli/weights/engine.hpp"

namespace slip::cli {

inline constexpr int kInterrupted = 130;  // exit status, as a shell gives it

struct StepOptions {
  int steps = 8;
  std::uint64_t seed = 1;    // of the inputs, which are the same for every plan
  const char* what = "run";  // for the progress that a terminal shows

  // UsageError where they show no steady state.
  void check() const;
};

struct StepsSeen {
  Prediction prediction;
  Comparison comparison;
  Figures figures;  // of the whole run, as the page and `slip stats` give them
  std::uint64_t peak = 0;
  int steps = 0;                   // fewer than asked for: interrupted
  std::vector<std::byte> outputs;  // of the last step
  TraceData trace;

  double loaded_per_second(const WeightsPlan& plan) const;
};

// Ctrl-C ends the loop after the step that runs; a second one ends the program as ever.
StepsSeen run_steps(const Engine& engine, const WeightsPlan& plan, const StepOptions& options);

// The time in which loads ran, and the part of it in which an op of the graph did, too; of all steps but the first,
// which finds the ring empty.
Cover loads_covered(const TraceData& trace, std::uint64_t compute_stream, std::size_t ops);

// UsageError for what can be planned but not run: a graph without weights, a simulated device.
void require_runnable(const EngineOptions& options, const char* command);

// Says how far an interrupted run came, and gives the status for it.
int stopped(const StepsSeen& seen, const StepOptions& options);

}  // namespace slip::cli
