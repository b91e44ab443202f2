// Weights: how to run a graph on a device that has no room for all of its weights. Some stay on the device; the others
// pass, in the order of their use, through a ring of memory that is filled while earlier ops compute.
//
//   slip::Costs costs = slip::measure_costs(graph, device);
//   slip::WeightsPlan plan = slip::plan_weights(graph, costs, {.budget = 2 << 30});
//   puts(slip::describe(plan, graph, costs).c_str());
//
// A plan is data: it is verified (verify_weights), predicted (predict_weights), run (runner.hpp), saved and loaded.
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

// With neither: all that `free_memory` holds.
struct WeightsOptions {
  std::optional<std::uint64_t> budget = {};  // bytes of device memory for everything: weights, ring, activations
  std::optional<double> slowdown = {};  // the smallest budget that takes at most this much longer than resident: 0.05
  std::uint64_t free_memory = UINT64_MAX;
  std::uint64_t host_memory = UINT64_MAX;    // bytes of weights kept there; the others are read from disk in each step
  std::optional<std::uint64_t> ring = {};    // bytes; without it as few as cost no time
  bool stream_all = false;                   // nothing stays resident
  std::uint64_t search_effort = 20'000'000;  // ops looked at, then the best plan so far is taken and tells the bound
};

// Weights that lie, are loaded and are given up together: neighbours in the order of use, so that no copy is tiny.
struct WeightGroup {
  struct Part {
    ValueBytes bytes;
    std::uint64_t offset = 0;  // in the unit
  };
  std::vector<Part> parts;
  std::uint64_t bytes = 0;
  std::vector<std::uint32_t> ops;  // that use any of it, ascending
  bool from_disk = false;          // when streamed: read in each step, not kept in host memory
  std::uint64_t room = 0;  // bytes behind it in the ring, so that a direct read can put it as it lies in the file
  bool resident = false;
  std::uint64_t offset = 0;  // resident: in the memory of resident weights
};
using WeightUnit = WeightGroup;  // its name in earlier versions

inline constexpr std::uint32_t kNoOp = ~std::uint32_t{0};

// A load of a unit into the ring, once in each step. A unit whose uses lie far apart is loaded for each of them.
struct WeightLoad {
  std::uint32_t unit = 0;
  std::uint64_t offset = 0;  // in the ring
  std::uint32_t first_op = 0, last_op = 0;
  // What it overwrites was used by this op last: of the same step, or of the step before.
  std::uint32_t after_op = kNoOp;
  bool step_before = false;
};

struct WeightsPlan {
  std::vector<WeightUnit> units;             // in the order of their first use
  std::vector<WeightLoad> loads;             // of one step, in their order
  std::vector<std::uint64_t> value_offsets;  // by graph value, in the memory of activations; weights: unused
  std::uint64_t resident_bytes = 0;
  std::uint64_t ring_bytes = 0;
  std::uint64_t activation_bytes = 0;  // inputs, states, outputs and activations
  std::uint64_t activation_bound = 0;  // no placement needs less
  std::uint64_t streamed_bytes = 0;    // each step
  std::optional<std::uint64_t> budget;

  // As the planner sees it, per step in the steady state.
  Picos step = 0;
  Picos bound = 0;    // no choice of resident weights within this memory takes less
  Picos compute = 0;  // all weights resident
  Picos loading = 0;  // of all loads, one after the other

  std::uint64_t device_bytes() const { return resident_bytes + ring_bytes + activation_bytes; }
};

// Throws kOutOfMemory when the budget is too small, with the smallest that works and the op that needs it.
WeightsPlan plan_weights(const Graph& graph, const Costs& costs, const WeightsOptions& options = {},
                         Here here = Here::at());

// For people: what stays, what passes, what it takes, what cannot be hidden and from when on it could.
std::string describe(const WeightsPlan& plan, const Graph& graph, const Costs& costs);

// What the race checker says about some steps, one after the other.
struct WeightsProof {
  Verdict verdict = Verdict::kUnknown;
  std::string text;  // for people
  int steps = 0;
  std::size_t ops = 0, waits = 0;
  std::size_t superfluous = 0;  // waits that no two ops need
  bool proven() const { return verdict == Verdict::kProven; }
};
WeightsProof verify_weights(const WeightsPlan& plan, const Graph& graph, Here here = Here::at());

// A few steps on the sim device, with the ops' costs.
struct Prediction {
  Picos step = 0;  // in the steady state
  Picos first_step = 0;
  Picos exposed = 0;  // of a step: loads that no op hid
  std::uint64_t loaded_bytes = 0;
  std::uint64_t device_bytes = 0;
  std::uint64_t compute_stream = 0;  // its id in the trace
  TraceData trace;
};
Prediction predict_weights(const WeightsPlan& plan, const Graph& graph, const Costs& costs, int steps = 4,
                           Here here = Here::at());

// JSON. Loading checks that the plan is for this graph.
void write_weights_plan(const WeightsPlan& plan, const Graph& graph, const std::string& path, Here here = Here::at());
WeightsPlan read_weights_plan(const Graph& graph, const std::string& path, Here here = Here::at());

}  // namespace slip
