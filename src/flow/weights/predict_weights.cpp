// verify_weights and predict_weights: a plan is proven and simulated before it runs.
#include <algorithm>
#include <memory>

#include "backend/sim/description.hpp"
#include "base/fail.hpp"
#include "flow/predicted_trace.hpp"
#include "flow/weights/loader.hpp"
#include "flow/weights/step.hpp"
#include "flow/weights/weight_groups.hpp"
#include "runtime/observers.hpp"

namespace slip::flow {
namespace {

// A simulated device on which ops and copies take exactly these costs.
sim::Description description_of(const Costs& costs, double kernel_slowdown, std::uint64_t memory) {
  const auto ppm = [](double share) { return static_cast<std::uint32_t>(share * 1e6 + 0.5); };
  const auto rate = [](const LinkCost& link) { return static_cast<std::uint64_t>(link.bytes_per_second); };
  const LinkCost& out = costs.unload.bytes_per_second > 0 ? costs.unload : costs.load;
  return {.name = "plan",
          .memory = memory,
          .compute = {.flops = 1'000'000'000'000,
                      .bandwidth = 1'000'000'000'000,
                      .copy_slowdown_ppm = ppm(std::min<double>(kernel_slowdown, sim::kMaxSlowdown))},
          .copies = {.in = rate(costs.load),
                     .out = rate(out),
                     .latency = costs.load.latency,
                     .kernel_slowdown_ppm = ppm(costs.load_slowdown)}};
}

constexpr int kProvenSteps = 3;  // a step waits for ops of at most two steps before it; later ones are the same

const Kernel kDecode{"decompress", [](const Args&) {}};

// Loads that take time and move no bytes: every group is copied from the same memory. A group on disk is read first,
// which takes the time of the disk. A compressed group is decoded last.
class SimulatedLoader final : public GroupLoader {
 public:
  SimulatedLoader(const Device& device, const WeightsPlan& plan, const Graph& graph, const Costs& costs,
                  const WeightsMemory& memory, Here here)
      : plan_(plan), names_(load_names(plan.groups, graph.values())), costs_(costs) {
    std::uint64_t largest = 1, largest_packed = 0;
    for (const WeightGroup& group : plan.groups) {
      largest = std::max(largest, group.bytes + group.room);
      if (!group.resident) largest_packed = std::max(largest_packed, group.compressed_bytes);
    }
    weights_ = device.alloc(largest, MemoryKind::kPinned, "weights");
    if (costs.read.bytes_per_second > 0)
      reads_ =
          std::make_unique<LoadSlots>(device, "reads from disk", weights_.range(), read_slots(largest), largest, here);
    if (plan.slot_bytes > 0 && largest_packed > 0)
      copies_ = std::make_unique<LoadSlots>(device, "copies of compressed weights", memory.slots.range(), kDecodeSlots,
                                            largest_packed, here);
  }

  void issue(StreamRef stream, Range to, std::uint32_t index, const Event*) override {
    const WeightGroup& group = plan_.groups[index];
    if (group.compressed_bytes == 0) return bring(stream, to, index);
    const auto decode = [&](Range) {
      stream.launch(kDecode, {.reads = {}, .writes = {to}, .scalars = {}, .name = names_[index]},
                    {.time = std::max<Picos>(costs_.decode.time_for(group.bytes), 1)});
    };
    if (group.resident) return decode({});
    if (copies_) {
      return copies_->issue(
          stream, group.compressed_bytes,
          [&](StreamRef copies, Range slot, const Event&) { bring(copies, slot, index); }, decode);
    }
    const auto fill = [&](StreamRef reads, Range slot, const Event&) { read(reads, slot, index); };
    if (is_read(group)) return reads_->issue(stream, group.compressed_bytes, fill, decode);
    decode({});
  }
  std::uint64_t shift(Range, std::uint32_t, std::size_t) const override { return 0; }

 private:
  bool is_read(const WeightGroup& group) const { return reads_ && group.from_disk; }
  void read(StreamRef reads, Range slot, std::uint32_t index) const {
    reads.host([] {}, {.reads = {}, .writes = {}, .scalars = {}, .name = names_[index]},
               {.time = costs_.read.time_for(slot.bytes)});
  }
  // Copies a group to `to`, after it was read if it is on disk.
  void bring(StreamRef stream, Range to, std::uint32_t index) {
    if (!is_read(plan_.groups[index])) return stream.copy(to, weights_.slice(0, to.bytes), names_[index]);
    reads_->issue(
        stream, to.bytes, [&](StreamRef reads, Range slot, const Event&) { read(reads, slot, index); },
        [&](Range slot) { stream.copy(to, slot, names_[index]); });
  }

  const WeightsPlan& plan_;
  const std::vector<Name> names_;
  const Costs& costs_;
  Buffer weights_;
  std::unique_ptr<LoadSlots> reads_, copies_;
};

// The simulated device of a plan, with the plan's memory and the host's inputs and outputs. No op accesses the bytes.
struct SimulatedDevice {
  Device device;
  WeightsMemory memory;
  std::vector<Buffer> host;
  std::vector<HostValue> inputs, outputs;

  SimulatedDevice(const WeightsPlan& plan, const Graph& graph, Device simulated)
      : device(std::move(simulated)), memory(device, plan) {
    for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
      const GraphValue& value = graph.values()[i];
      if (value.role != ValueRole::kInput && !value.output) continue;
      host.push_back(device.alloc(std::max<std::uint64_t>(value.bytes, 1), MemoryKind::kPinned, value.name));
      (value.role == ValueRole::kInput ? inputs : outputs).push_back({{i}, host.back().slice(0, value.bytes)});
    }
  }
};

std::uint64_t memory_for(std::uint64_t bytes) {
  return bytes > UINT64_MAX / 4 ? bytes : std::max<std::uint64_t>(2 * bytes, 1 << 24);
}

// Refuses costs that a sim device cannot have, with an error in terms of the costs.
void check_costs(const Costs& costs, double kernel_slowdown, Here here) {
  const auto require = [&](const char* what, double value, double min, double max, const char* suffix) {
    if (value >= min && value <= max) return;
    base::fail(ErrorCode::kInvalidValue, here, "costs of '{}' with {} of {:g}{}: {:g} to {:g} can be simulated",
               costs.device, what, value, suffix, min, max);
  };
  const auto require_link = [&](const char* what, const LinkCost& link) {
    if (link.bytes_per_second > 0)
      require(what, link.bytes_per_second, sim::kMinRate, static_cast<double>(sim::kMaxRate), " B/s");
  };
  // With a tolerance, since the slowdown of a whole graph is computed from rounded times.
  require("a kernel slowdown", kernel_slowdown, 0, 1.001 * sim::kMaxSlowdown, "");
  require("a load slowdown", costs.load_slowdown, 0, sim::kMaxSlowdown, "");
  require_link("a load rate", costs.load);
  require_link("an unload rate", costs.unload);
  require("a load latency", static_cast<double>(costs.load.latency), 0, static_cast<double>(sim::kMaxTime), " ps");
}

// Virtual time is counted in Picos, whose range is 106 days.
void check_times(const WeightsPlan& plan, const Graph& graph, const Costs& costs, int steps, Here here) {
  double time = 0;
  for (const GraphOp& op : graph.ops()) time += static_cast<double>(costs.time_of(graph, op));
  for (const WeightLoad& load : plan.loads) {
    const WeightGroup& group = plan.groups[load.group];
    time += static_cast<double>(costs.load.time_for(group.bytes));
    if (group.from_disk && costs.read.bytes_per_second > 0)
      time += static_cast<double>(costs.read.time_for(group.bytes));
    if (group.compressed_bytes > 0) time += static_cast<double>(costs.decode.time_for(group.bytes));
  }
  time *= (1 + costs.kernel_slowdown + costs.load_slowdown) * steps;
  if (time > 4e18)
    base::fail(ErrorCode::kInvalidValue, here, "{} steps may take {:.0f} days: more than 40 cannot be simulated", steps,
               time / 86400e12);
}

WeightsProof prove(const WeightsPlan& plan, const Graph& graph, const WeightSource* source, bool direct_reads,
                   Here here) {
  WeightsProof proof;
  capture_weights(
      plan, graph, [&](const Plan& captured) { proof = prove_captured(captured); }, source, direct_reads, here);
  return proof;
}

}  // namespace

Plan capture_steps(StreamRef compute, std::span<const StreamRef> others, const std::function<void()>& issue_step,
                   Here here) {
  compute.begin_capture(here);
  const Event begin = compute.record();
  for (const StreamRef stream : others) stream.wait(begin);
  for (int i = 0; i < kProvenSteps; ++i) issue_step();
  for (const StreamRef stream : others) compute.wait(stream.record());
  return compute.end_capture(here);
}

Device open_proof_device(std::uint64_t bytes, Here here) {
  Costs any;
  any.load = {1e9, 0};
  return sim::open_device(description_of(any, 0, memory_for(bytes)), {.run_functions = false}, here);
}

WeightsProof prove_captured(const Plan& captured) {
  const Verification verification = verify(captured);
  WeightsProof proof;
  proof.verdict = verification.verdict;
  proof.text = verification.text(captured);
  proof.steps = kProvenSteps;
  proof.ops = captured.nodes().size();
  for (const PlanNode& node : captured.nodes()) proof.waits += node.waits.size();
  proof.superfluous = verification.superfluous.size();
  return proof;
}

void capture_weights(const WeightsPlan& plan, const Graph& graph, const std::function<void(Plan&)>& look,
                     const WeightSource* source, bool direct_reads, Here here) {
  check_plan(plan, graph, here);
  const runtime::PrivateScope proving;  // keeps these ops out of the program's trace
  SimulatedDevice sim(plan, graph, open_proof_device(plan.device_bytes(), here));
  Loader loader(sim.device, graph, plan, source, LoadMemory::of(sim.memory),
                {.direct_reads = direct_reads, .purpose = Loader::Purpose::kProve}, here);
  Steps steps(sim.device, graph, plan, sim.memory, loader);
  std::vector<StreamRef> others = steps.others();
  for (const StreamRef stream : loader.streams()) others.push_back(stream);
  Plan captured = capture_steps(
      steps.compute(), others, [&] { steps.issue(sim.inputs, sim.outputs); }, here);
  look(captured);
}

}  // namespace slip::flow

namespace slip {
using namespace flow;

WeightsProof verify_weights(const WeightsPlan& plan, const Graph& graph, Here here) {
  return prove(plan, graph, nullptr, false, here);
}

WeightsProof verify_weights(const WeightsPlan& plan, const Graph& graph, const Device& device,
                            const WeightSource& source, Here here) {
  return prove(plan, graph, &source, is_host_memory(device), here);
}

Prediction predict_weights(const WeightsPlan& plan, const Graph& graph, const Costs& costs, int steps, Here here) {
  if (steps < 2)
    base::fail(ErrorCode::kInvalidValue, here, "{} steps show no steady state: at least 2 are needed", steps);
  check_plan(plan, graph, here);
  check_times(plan, graph, costs, steps, here);
  const double kernel_slowdown = costs.slowdown_of(graph);
  check_costs(costs, kernel_slowdown, here);
  // Keeps the simulated ops out of the program's trace, and the program's ops out of the prediction.
  PredictedTrace trace(false);
  const runtime::PrivateScope predicting(&trace);
  SimulatedDevice sim(plan, graph,
                      sim::open_device(description_of(costs, kernel_slowdown, memory_for(plan.device_bytes())),
                                       {.run_functions = false}, here));
  SimulatedLoader loader(sim.device, plan, graph, costs, sim.memory, here);
  Steps simulated(sim.device, graph, plan, sim.memory, loader);
  std::vector<Cost> times;
  for (const GraphOp& op : graph.ops()) {
    times.push_back(op.cost);
    times.back().time = std::max<Picos>(costs.time_of(graph, op), 1);
  }
  simulated.set_costs(times);
  trace.recording = true;
  for (int i = 0; i < steps; ++i) simulated.issue(sim.inputs, sim.outputs);
  sim.device.sync(here);
  trace.recording = false;

  Prediction prediction;
  prediction.trace = trace.data();
  prediction.compute_stream = simulated.compute().id();
  prediction.device_bytes = sim.device.memory().used;
  prediction.loaded_bytes = plan.streamed_bytes;
  const StepTimes measured = step_times(prediction.trace, prediction.compute_stream, graph.ops().size());
  prediction.first_step = measured.first;
  prediction.step = measured.steady;
  prediction.exposed = measured.idle;
  return prediction;
}

}  // namespace slip
