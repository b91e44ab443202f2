// Steps: the steps of a WeightsPlan as ops on streams. All users of a plan issue these ops: the runner runs them,
// verify_weights captures them, and predict_weights runs them on a simulated device.
#pragma once

#include <functional>
#include <vector>

#include "slip/device.hpp"
#include "slip/plan.hpp"
#include "slip/weights.hpp"

namespace slip {

class WeightSource;

}  // namespace slip

namespace slip::flow {

// Device memory of a plan.
struct WeightsMemory {
  Buffer resident, ring, activations;
  WeightsMemory(const Device& device, const WeightsPlan& plan);
};

// Issues the loads of a plan, in the plan's order, step after step. The runner and the proof use Loader (loader.hpp);
// a prediction uses a loader that only takes time.
class GroupLoader {
 public:
  virtual ~GroupLoader() = default;
  // Issues to `stream` the ops that bring a weight group to `to`, a place in the ring. `used` is the event recorded
  // after the last op that read this place; null: no op read it. `stream` waits for it already.
  virtual void issue(StreamRef stream, Range to, std::uint32_t group, const Event* used) = 0;
  // Bytes between the planned place of a part and the place where this loader puts it.
  virtual std::uint64_t shift(Range to, std::uint32_t group, std::size_t part) const = 0;
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
  void set_costs(std::span<const Cost> costs);

  void issue(std::span<const HostValue> inputs, std::span<const HostValue> outputs);

  StreamRef compute() const { return compute_; }
  std::vector<StreamRef> others() const { return {load_, host_.inputs, host_.outputs}; }
  // Recorded after the copies of the last issued step's inputs, and of its outputs.
  const Event& inputs_taken() const { return host_.inputs_taken; }
  const Event& outputs_there() const { return host_.outputs_there; }
  Range range_of(Value value) const;  // of a value that is not a weight

 private:
  struct Launch {
    Name name;
    const Kernel* kernel = nullptr;
    std::vector<Range> reads, writes;
    Cost cost;
    std::uint32_t loads = 0;  // loads of a step that this op and the ops before it need
    bool marks = false;       // some load waits for `used`
    Event used;               // recorded after this op
  };
  struct PlacedValue {
    Range range;                                              // none for weights
    std::uint32_t last_reader = kNoOp, first_writer = kNoOp;  // ops
  };
  struct PlacedLoad {
    Range to;      // in the ring
    Event loaded;  // recorded after the load
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
  void issue_loads(std::uint32_t up_to);

  const Graph& graph_;
  const WeightsPlan& plan_;
  GroupLoader& loader_;
  Stream compute_, load_;
  HostCopies host_;
  std::vector<Launch> launches_;     // by op
  std::vector<PlacedValue> values_;  // by graph value
  std::vector<PlacedLoad> loads_;    // by load of the plan
  std::uint32_t first_ahead_ = 0;    // first loads that wait for no op of their own step: issued a step earlier
  std::uint32_t issued_ = 0;         // number of issued loads of the current step
};

// Names of the loads in traces, by weight group.
std::vector<Name> load_names(const WeightsPlan& plan, const Graph& graph);

// Captures some steps of the plan on a simulated device, with the runner's Loader, and calls `look` with the captured
// ops. `source` null: weights in pinned memory or, if the plan says so, in files. `direct_reads`: files are read
// straight into device memory, as on the cpu device.
void capture_weights(const WeightsPlan& plan, const Graph& graph, const std::function<void(Plan&)>& look,
                     const WeightSource* source = nullptr, bool direct_reads = false, Here here = Here::at());

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
