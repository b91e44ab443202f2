// Steps: the steps of a WeightsPlan as ops on streams. All users of a plan issue these ops: the runner runs them,
// verify_weights captures them, and predict_weights runs them on a simulated device.
#pragma once

#include <functional>
#include <vector>

#include "flow/weights/ring_loads.hpp"
#include "slip/device.hpp"
#include "slip/plan.hpp"
#include "slip/runner.hpp"
#include "slip/weights.hpp"

namespace slip::flow {

struct WeightsMemory {
  Buffer resident, ring, slots, activations;  // empty if the plan needs none of it
  WeightsMemory(const Device& device, const WeightsPlan& plan);
};

// Host memory of an input or output, for one step.
struct HostValue {
  Value value;
  Range host;
};

// Compute, loads, inputs and outputs each have a stream, so that a late input or output delays no load. issue() also
// issues the first loads of the next step. They run while this step ends, even if the host waits for its result before
// it issues the next step. After construction nothing is allocated. One thread at a time.
class Steps {
 public:
  Steps(const Device& device, const Graph& graph, const WeightsPlan& plan, const WeightsMemory& memory,
        GroupLoader& loader);

  // Costs of the ops on a simulated device, in place of the graph's own.
  void set_costs(std::span<const Cost> costs) {
    for (std::size_t i = 0; i < launches_.size(); ++i) launches_[i].cost = costs[i];
  }

  void issue(std::span<const HostValue> inputs, std::span<const HostValue> outputs);

  StreamRef compute() const { return compute_; }
  std::vector<StreamRef> others() const { return {loads_.stream(), host_.inputs, host_.outputs}; }
  // Recorded after the copies of the last issued step's inputs, and of its outputs.
  const Event& inputs_taken() const { return host_.inputs_taken; }
  const Event& outputs_there() const { return host_.outputs_there; }
  Range range_of(Value value) const { return values_[value.index].range; }  // of a value that is not a weight

 private:
  struct Launch {
    Name name;
    std::vector<Range> reads, writes;
    Cost cost;
  };
  struct PlacedValue {
    Range range;                                              // none for weights
    std::uint32_t last_reader = kNoOp, first_writer = kNoOp;  // ops
  };
  // Copies between the host and the device. The host's memory of an input may be written again after inputs_taken.
  struct HostCopies {
    Stream inputs, outputs;
    Event inputs_taken = {}, inputs_used = {}, outputs_made = {}, outputs_there = {};
  };
  // Where to look for the bytes of a weight: by value the groups with a part of it, by group its loads.
  struct WeightIndex {
    explicit WeightIndex(const Graph& graph, const WeightsPlan& plan);
    std::vector<std::vector<std::uint32_t>> groups_of, loads_of;
  };
  void place(const WeightsMemory& memory);
  void prepare_launches(const WeightsMemory& memory);
  Range weight_range(const WeightIndex& index, const WeightsMemory& memory, const ValueBytes& bytes,
                     std::uint32_t op) const;

  const Graph& graph_;
  const WeightsPlan& plan_;
  GroupLoader& loader_;
  Stream compute_;
  PassTable table_;  // its uses are the ops
  RingLoads loads_;
  HostCopies host_;
  std::vector<Launch> launches_;     // by op
  std::vector<PlacedValue> values_;  // by graph value
};

// Names of the loads in traces, by weight group.
std::vector<Name> load_names(const std::vector<WeightGroup>& groups, std::span<const GraphValue> values);

// Captures some steps of the plan on a simulated device, with the runner's Loader, and calls `look` with the captured
// ops. `source` null: weights in pinned memory or, if the plan says so, in files. `direct_reads`: files are read
// straight into device memory, as on the cpu device.
void capture_weights(const WeightsPlan& plan, const Graph& graph, const std::function<void(Plan&)>& look,
                     const WeightSource* source = nullptr, bool direct_reads = false, Here here = Here::at());

// A simulated device for a proof, with `bytes` of memory and more. No op accesses the bytes.
Device open_proof_device(std::uint64_t bytes, Here here);
// Captures the steps of a proof. `issue_step` issues one step to `compute` and to `others`.
Plan capture_steps(StreamRef compute, std::span<const StreamRef> others, const std::function<void()>& issue_step,
                   Here here);
WeightsProof prove_captured(const Plan& captured);  // from capture_steps()

// The ops of a graph in a trace, step after step.
std::vector<TraceSpan> kernel_spans(const TraceData& trace, std::uint64_t compute_stream);

// Times of the steps in a trace.
struct StepTimes {
  std::size_t steps = 0;
  Picos first = 0;   // the first step, from its submission on
  Picos steady = 0;  // the median of the other steps
  Picos idle = 0;    // part of `steady` in which no op ran
};
StepTimes step_times(const TraceData& trace, std::uint64_t compute_stream, std::size_t ops);

}  // namespace slip::flow
