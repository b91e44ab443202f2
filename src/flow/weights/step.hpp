// Steps of a plan as ops on streams: the one place that turns a WeightsPlan into work, whether it is to be verified,
// predicted or run.
#pragma once

#include <functional>
#include <vector>

#include "slip/device.hpp"
#include "slip/plan.hpp"
#include "slip/weights.hpp"

namespace slip {

// Device memory of a plan.
struct WeightsMemory {
  Buffer resident, ring, activations;
  WeightsMemory(const Device& device, const WeightsPlan& plan);
};

// A load issues, in the given stream, what brings a unit to `to`. The stream waits for `used`, the last op that used
// that place, if there was one.
using LoadUnit = std::function<void(StreamRef stream, Range to, std::uint32_t unit, const Event* used)>;

// How far behind its place a part of a unit that is loaded to `to` really begins.
using PartShift = std::function<std::uint64_t(Range to, std::uint32_t unit, std::size_t part)>;

// Host memory of an input or output, for one step.
struct HostValue {
  Value value;
  Range host;
};

// Compute and loads each have a stream; inputs and outputs have one each, so that a late input or output holds up no
// load. The first loads of the next step are issued with the step before, so that they run while it ends even if the
// host waits for its result before it issues more. After the set-up nothing is allocated.
class Steps {
 public:
  Steps(const Device& device, const Graph& graph, const WeightsPlan& plan, const WeightsMemory& memory, LoadUnit load,
        const PartShift& shift = {});

  // Of the ops, in place of the graph's own: what they take on a simulated device.
  void set_costs(std::vector<Cost> costs) { costs_ = std::move(costs); }

  void issue(std::span<const HostValue> inputs, std::span<const HostValue> outputs);

  StreamRef compute() const { return compute_; }
  StreamRef loads() const { return load_; }
  std::vector<StreamRef> others() const { return {load_, inputs_, results_}; }
  // The copies of the inputs, and of the outputs, issued last.
  const Event& inputs_taken() const { return inputs_taken_; }
  const Event& outputs_there() const { return outputs_there_; }
  Range range_of(Value value) const;  // of what is no weight

 private:
  struct Launch {
    Name name;
    const Kernel* kernel = nullptr;
    std::vector<Range> reads, writes;
    std::uint32_t loads = 0;  // of a step that this op and those before need
    bool marks = false;       // some load waits for it
  };
  void prepare(const Graph& graph, const WeightsPlan& plan, const WeightsMemory& memory, const PartShift& shift);
  // Where to look for the bytes of a weight: by value the units with a part of it, by unit its loads.
  struct Places {
    explicit Places(const Graph& graph, const WeightsPlan& plan);
    std::vector<std::vector<std::uint32_t>> units_of, loads_of;
  };
  Range weight_range(const Places& places, const WeightsMemory& memory, const ValueBytes& bytes, std::uint32_t op,
                     const PartShift& shift) const;
  void issue_loads(std::uint32_t up_to);

  const Graph& graph_;
  const WeightsPlan& plan_;
  LoadUnit load_unit_;
  Stream compute_, load_, inputs_, results_;
  std::vector<Cost> costs_;
  std::vector<Launch> launches_;
  std::vector<Range> values_;        // by graph value; weights: none
  std::vector<Range> load_targets_;  // by load
  std::uint32_t first_ahead_ = 0;    // loads that wait for no op of their own step: issued with the step before
  std::uint32_t issued_ = 0;         // loads of the present step
  std::vector<Event> loaded_;        // by load
  std::vector<Event> used_;          // by op, of those that mark
  std::vector<std::uint32_t> last_readers_, first_writers_;  // by graph value: ops, or kNoOp
  Event inputs_taken_, inputs_used_, outputs_there_, outputs_made_;
};

// What loads are called in traces, by unit.
std::vector<Name> load_names(const WeightsPlan& plan, const Graph& graph);

// Some steps as a Plan on a simulated device, which is there while `look` looks at it.
void capture_weights(const WeightsPlan& plan, const Graph& graph, const std::function<void(Plan&)>& look,
                     Here here = Here::at());

// The ops of a graph in a trace, step after step.
std::vector<TraceSpan> kernel_spans(const TraceData& trace, std::uint64_t compute_stream);

// Of the steps in a trace.
struct StepTimes {
  std::size_t steps = 0;
  Picos first = 0;   // from its submission
  Picos steady = 0;  // the median of the others
  Picos idle = 0;    // of that: no op ran
};
StepTimes step_times(const TraceData& trace, std::uint64_t compute_stream, std::size_t ops);

}  // namespace slip
