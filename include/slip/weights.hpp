// Weights: run a graph on a device whose memory cannot hold all weights. Some weights stay resident on the device. The
// others are loaded, in order of use, into a ring of device memory while earlier ops compute.
//
//   slip::Costs costs = slip::measure_costs(graph, device);
//   slip::WeightsPlan plan = slip::plan_weights(graph, costs, {.budget = 2 << 30});
//   puts(slip::describe(plan, graph, costs).c_str());
//
// A plan is data: it can be verified (verify_weights), predicted (predict_weights), run (runner.hpp), saved and loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "slip/costs.hpp"
#include "slip/graph.hpp"
#include "slip/trace.hpp"
#include "slip/verify.hpp"

namespace slip {

// Give a budget, or a slowdown to find the budget for it. With neither, the budget is `free_memory`.
struct WeightsOptions {
  std::optional<std::uint64_t> budget = {};  // bytes of device memory for weights, ring and activations together
  std::optional<double> slowdown = {};  // find the minimum budget with a step at most this much longer: 0.05 is 5 %
  std::uint64_t free_memory = UINT64_MAX;
  std::uint64_t host_memory = UINT64_MAX;    // bytes for weights in host memory; the rest is read from disk each step
  std::optional<std::uint64_t> ring = {};    // bytes; default: the smallest ring that costs no time
  bool stream_all = false;                   // no weight stays resident
  std::uint64_t search_effort = 20'000'000;  // ops to evaluate; then the search returns the best plan and its bound
};

// Load unit: weights that are placed, loaded and evicted together. They are neighbours in order of use, so that no copy
// is tiny.
struct WeightUnit {
  struct Part {
    ValueBytes bytes;
    std::uint64_t offset = 0;  // in the unit
  };
  std::vector<Part> parts;
  std::uint64_t bytes = 0;
  std::vector<std::uint32_t> ops;  // that use any of its weights, ascending
  bool from_disk = false;          // if streamed: read from disk in each step, not kept in host memory
  std::uint64_t room = 0;          // extra bytes after it in the ring, for the alignment of direct reads from its file
  bool resident = false;
  std::uint64_t offset = 0;  // if resident: in the resident memory
};

inline constexpr std::uint32_t kNoOp = ~std::uint32_t{0};

// One load of a unit into the ring in each step. A unit whose uses are far apart has a load for each use.
struct WeightLoad {
  std::uint32_t unit = 0;
  std::uint64_t offset = 0;  // in the ring
  std::uint32_t first_op = 0, last_op = 0;
  // The last op that uses the overwritten bytes, in the same step or, with step_before, in the previous one.
  std::uint32_t after_op = kNoOp;
  bool step_before = false;
};

struct WeightsPlan {
  std::vector<WeightUnit> units;             // in order of first use
  std::vector<WeightLoad> loads;             // of one step, in issue order
  std::vector<std::uint64_t> value_offsets;  // by graph value: offset in the activation memory; unused for weights
  std::uint64_t resident_bytes = 0;
  std::uint64_t ring_bytes = 0;
  std::uint64_t activation_bytes = 0;  // inputs, states, outputs and activations
  std::uint64_t activation_bound = 0;  // lower bound of activation_bytes
  std::uint64_t streamed_bytes = 0;    // loaded per step
  std::optional<std::uint64_t> budget;

  // The planner's estimate per step, in the steady state.
  Picos step = 0;
  Picos bound = 0;    // lower bound of the step for any choice of resident weights within this memory
  Picos compute = 0;  // the step with all weights resident
  Picos loading = 0;  // durations of all loads, added

  std::uint64_t device_bytes() const { return resident_bytes + ring_bytes + activation_bytes; }
};

// Throws kOutOfMemory if the budget is too small; the error has the minimum budget and the op that needs it.
WeightsPlan plan_weights(const Graph& graph, const Costs& costs, const WeightsOptions& options = {},
                         Here here = Here::at());

// Human-readable: resident and streamed weights, times, and the exposed load time with the budget that would hide it.
std::string describe(const WeightsPlan& plan, const Graph& graph, const Costs& costs);

// The race checker's verdict on several consecutive steps.
struct WeightsProof {
  Verdict verdict = Verdict::kUnknown;
  std::string text;  // human-readable
  int steps = 0;
  std::size_t ops = 0, waits = 0;
  std::size_t superfluous = 0;  // waits that no two ops need
  bool proven() const { return verdict == Verdict::kProven; }
};
WeightsProof verify_weights(const WeightsPlan& plan, const Graph& graph, Here here = Here::at());

// Several steps simulated on the sim device with the costs of the ops.
struct Prediction {
  Picos step = 0;  // in the steady state
  Picos first_step = 0;
  Picos exposed = 0;  // part of a step in which compute was idle: loads that were not hidden
  std::uint64_t loaded_bytes = 0;
  std::uint64_t device_bytes = 0;
  std::uint64_t compute_stream = 0;  // id of the compute stream in the trace
  TraceData trace;
};
Prediction predict_weights(const WeightsPlan& plan, const Graph& graph, const Costs& costs, int steps = 4,
                           Here here = Here::at());

// JSON. Reading checks that the plan belongs to this graph.
void write_weights_plan(const WeightsPlan& plan, const Graph& graph, const std::string& path, Here here = Here::at());
WeightsPlan read_weights_plan(const Graph& graph, const std::string& path, Here here = Here::at());

}  // namespace slip
