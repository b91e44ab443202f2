// Weights: how to run a graph on a device whose memory cannot hold all of its weights. Some weights stay resident. The
// others are streamed in the order of their use: they are loaded into a ring buffer while earlier ops compute.
//
//   slip::Costs costs = slip::measure_costs(graph, device);
//   slip::WeightsPlan plan = slip::plan_weights(graph, costs, {.budget = std::uint64_t{2} << 30});
//   puts(slip::describe(plan, graph, costs).c_str());
//
// A plan is data: verify_weights proves it, predict_weights simulates it, a Runner (runner.hpp) runs it, and it can be
// saved and loaded.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "slip/costs.hpp"
#include "slip/graph.hpp"
#include "slip/prediction.hpp"
#include "slip/verify.hpp"

namespace slip {

struct WeightGroup;

// Set `budget` or `slowdown`. If neither is set, the plan may use all of `free_memory`.
struct WeightsOptions {
  std::optional<std::uint64_t> budget = {};  // bytes of device memory for everything: weights, ring, activations
  // 0.05: take the smallest budget with which a step takes at most 5 % longer than with all weights resident.
  std::optional<double> slowdown = {};
  std::uint64_t free_memory = UINT64_MAX;
  // Bytes of weights that may stay in host memory; the others are read from disk in each step.
  std::uint64_t host_memory = UINT64_MAX;
  std::optional<std::uint64_t> ring = {};  // bytes; by default the smallest ring that costs no time
  bool stream_all = false;                 // no weight stays resident
  // Returns the bytes that a weight group takes compressed; WeightSource::compressed_bytes() makes this function. The
  // planner compresses the groups for which that makes the step shorter, if Costs::decode is known. Empty: none.
  std::function<std::uint64_t(const WeightGroup& group)> compressed = {};
  std::uint64_t search_effort = 20'000'000;  // limit of the search for resident weights, in ops evaluated
};

// A weight group: weights that are placed, loaded and evicted together. They are neighbours in the order of use;
// joining them avoids tiny copies.
struct WeightGroup {
  struct Part {
    ValueBytes bytes;
    std::uint64_t offset = 0;  // in the group
  };
  std::vector<Part> parts;
  std::uint64_t bytes = 0;
  std::vector<std::uint32_t> ops;  // the ops that read any part of it, ascending
  bool from_disk = false;          // if streamed: read from disk in each step, not kept in host memory
  std::uint64_t room = 0;  // extra bytes in the ring, so that a direct read can keep the page alignment of the file
  bool resident = false;
  std::uint64_t offset = 0;  // if resident: in the memory of resident weights
  // 0: not compressed. Otherwise this many bytes go over the link, or stay resident, and each load decodes them into
  // the ring. Decoding restores the original bytes exactly.
  std::uint64_t compressed_bytes = 0;

  std::uint64_t stored_bytes() const { return compressed_bytes > 0 ? compressed_bytes : bytes; }
  bool in_place() const { return resident && compressed_bytes == 0; }  // ops read the resident bytes directly: no loads
};

inline constexpr std::uint32_t kNoOp = ~std::uint32_t{0};

// The load of a weight group into the ring, once in each step. A group whose uses lie far apart has a load for each.
// The load of a resident compressed group only decodes it.
struct WeightLoad {
  std::uint32_t group = 0;                  // its index in WeightsPlan::groups
  std::uint64_t offset = 0;                 // in the ring
  std::uint32_t first_op = 0, last_op = 0;  // the ops that this load serves
  // The last op that reads the bytes that this load overwrites; the load waits for that op.
  std::uint32_t after_op = kNoOp;
  bool step_before = false;  // `after_op` is an op of the previous step
};

struct WeightsPlan {
  std::vector<WeightGroup> groups;           // in the order of their first use
  std::vector<WeightLoad> loads;             // of one step, in the order in which they are issued
  std::vector<std::uint64_t> value_offsets;  // by graph value, in the memory of activations; unused for weights
  std::uint64_t resident_bytes = 0;
  std::uint64_t ring_bytes = 0;
  std::uint64_t slot_bytes = 0;        // slots for compressed groups between their copy and their decoding
  std::uint64_t activation_bytes = 0;  // inputs, states, outputs and activations
  std::uint64_t activation_bound = 0;  // no placement of these values needs less
  std::uint64_t streamed_bytes = 0;    // of weights that are loaded in each step
  std::optional<std::uint64_t> budget;

  // The planner's estimates for a step in the steady state.
  Picos step = 0;
  Picos bound = 0;     // lower bound for every choice of resident weights in this memory
  Picos compute = 0;   // the step with all weights resident
  Picos loading = 0;   // the sum of all loads over the link
  Picos decoding = 0;  // the sum of all decoding, which runs where the ops run

  std::uint64_t link_bytes() const;  // over the link in a step: fewer than streamed_bytes if compressed
  std::uint64_t device_bytes() const { return resident_bytes + ring_bytes + slot_bytes + activation_bytes; }
};

// Throws kOutOfMemory if the budget is too small; the error names the smallest budget and the op that needs it.
WeightsPlan plan_weights(const Graph& graph, const Costs& costs, const WeightsOptions& options = {},
                         Here here = Here::at());

// Human-readable: the resident and the streamed weights, and the times. If loads take longer than compute, also how
// much more work per step, or how many more bytes of resident weights, would hide the loads.
std::string describe(const WeightsPlan& plan, const Graph& graph, const Costs& costs);

// The result of the race checker for a few steps of a plan.
struct WeightsProof {
  Verdict verdict = Verdict::kUnknown;
  std::string text;  // human-readable
  int steps = 0;
  std::size_t ops = 0, waits = 0;
  std::size_t superfluous = 0;  // waits that could be removed
  bool proven() const { return verdict == Verdict::kProven; }
};
// Proves that no load overwrites bytes that an op still reads, and that no op reads bytes before they are loaded. It
// assumes that weights are copied from pinned memory, after they were read from disk if the plan says so. runner.hpp
// has an overload for a given device and source of weights.
WeightsProof verify_weights(const WeightsPlan& plan, const Graph& graph, Here here = Here::at());

// Simulates a few steps of a plan with the given costs.
Prediction predict_weights(const WeightsPlan& plan, const Graph& graph, const Costs& costs, int steps = 4,
                           Here here = Here::at());

// Plans as JSON. Reading checks that the plan is for this graph.
void write_weights_plan(const WeightsPlan& plan, const Graph& graph, const std::string& path, Here here = Here::at());
WeightsPlan read_weights_plan(const Graph& graph, const std::string& path, Here here = Here::at());

}  // namespace slip
