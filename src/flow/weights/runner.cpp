#include "slip/runner.hpp"

#include <algorithm>
#include <array>

#include "base/fail.hpp"
#include "flow/weights/loader.hpp"
#include "flow/weights/step.hpp"
#include "flow/weights/weight_groups.hpp"
#include "runtime/core.hpp"

namespace slip {

// Inputs and outputs are double-buffered in host memory: the host fills or reads one buffer while the device uses the
// other.
struct Runner::State {
  struct BufferSet {  // one of the two sets of host buffers; steps alternate between them
    std::vector<Buffer> buffers;
    std::vector<flow::HostValue> inputs, outputs;
    Event inputs_copied, outputs_arrived;  // of the last step that used this set
  };

  const Device device;
  const Graph graph;  // a copy: the program may destroy its own
  const WeightsPlan plan;
  const flow::WeightsMemory memory;
  flow::Loader loader;
  flow::Steps steps;
  std::array<BufferSet, 2> sets;
  std::uint64_t issued = 0;

  State(const Device& on, const Graph& what, const WeightsPlan& how, const WeightSource& source, Here here)
      : device(on),
        graph(what),
        plan(checked(how, graph, here)),
        memory(device, plan),
        loader(device, graph, plan, &source, flow::LoadMemory::of(memory),
               {.direct_reads = flow::is_host_memory(device)}, here),
        steps(device, graph, plan, memory, loader) {
    loader.fill_resident(here);
    for (BufferSet& set : sets) {
      for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
        const GraphValue& value = graph.values()[i];
        if (value.role == ValueRole::kInput) set.inputs.push_back({{i}, host_memory(set, value, here)});
        if (value.output) set.outputs.push_back({{i}, host_memory(set, value, here)});
      }
    }
    for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
      if (graph.values()[i].role == ValueRole::kState) device.fill(steps.range_of({i}), 0, here);
    }
    device.sync(here);  // fills of device memory are asynchronous
  }

  static const WeightsPlan& checked(const WeightsPlan& plan, const Graph& graph, Here here) {
    flow::check_plan(plan, graph, here);
    return plan;
  }
  Range host_memory(BufferSet& set, const GraphValue& value, Here here) const {
    set.buffers.push_back(device.alloc(std::max<std::uint64_t>(value.bytes, 1), MemoryKind::kPinned, value.name, here));
    return set.buffers.back().slice(0, value.bytes);
  }
  static const flow::HostValue* find(const std::vector<flow::HostValue>& values, Value value) {
    const auto at = std::ranges::find(values, value, &flow::HostValue::value);
    return at == values.end() ? nullptr : &*at;
  }
  [[noreturn]] void refuse(Value value, const char* what, Here here) const {
    const std::string name = value.index < graph.values().size() ? graph[value].name : fmt::format("{}", value.index);
    base::fail(ErrorCode::kInvalidValue, here, "value '{}' is no {} of the graph", name, what);
  }
};

Runner::Runner(const Device& device, const Graph& graph, const WeightsPlan& plan, const WeightSource& source, Here here)
    : state_(std::make_unique<State>(device, graph, plan, source, here)) {}

Runner::~Runner() {
  std::vector<StreamRef> streams = state_->steps.others();
  streams.push_back(state_->steps.compute());
  flow::wait_for_all(streams);
}

std::span<std::byte> Runner::input_bytes(Value value, Here here) {
  State::BufferSet& set = state_->sets[state_->issued % 2];
  const flow::HostValue* input = State::find(set.inputs, value);
  if (!input) state_->refuse(value, "input", here);
  set.inputs_copied.sync(here);
  return {runtime::address(input->host), input->host.bytes};
}

void Runner::step(Here here) {
  State::BufferSet& set = state_->sets[state_->issued % 2];
  set.outputs_arrived.sync(here);  // the set has the outputs of the step before the last one
  state_->steps.issue(set.inputs, set.outputs);
  set.inputs_copied = state_->steps.inputs_taken();
  set.outputs_arrived = state_->steps.outputs_there();
  ++state_->issued;
}

std::span<const std::byte> Runner::output_bytes(Value value, Here here) {
  if (state_->issued == 0) throw Error(ErrorCode::kNotReady, "no step was issued yet: there is no output", here);
  State::BufferSet& set = state_->sets[(state_->issued - 1) % 2];
  const flow::HostValue* output = State::find(set.outputs, value);
  if (!output) state_->refuse(value, "output", here);
  state_->loader.sync(set.outputs_arrived, here);
  return {runtime::address(output->host), output->host.bytes};
}

void Runner::sync(Here here) {
  state_->loader.sync(state_->steps.compute(), here);
  for (const StreamRef stream : state_->steps.others()) state_->loader.sync(stream, here);
}

std::uint64_t Runner::compute_stream() const { return state_->steps.compute().id(); }

}  // namespace slip
