// A plan proven, and simulated, before it runs.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

#include "backend/sim/description.hpp"
#include "flow/weights/check_plan.hpp"
#include "flow/weights/step.hpp"
#include "runtime/observers.hpp"
#include "watch/trace/record_log.hpp"

namespace slip {
namespace {

constexpr int kProvenSteps = 3;  // the third has two steps before it, as every later one

// A device that is nothing but these costs.
std::string description_of(const Costs& costs, double kernel_slowdown, std::uint64_t memory) {
  const auto ppm = [](double share) { return static_cast<std::uint64_t>(share * 1e6 + 0.5); };
  const auto rate = [](const LinkCost& link) { return static_cast<std::uint64_t>(link.bytes_per_second); };
  const LinkCost& out = costs.unload.bytes_per_second > 0 ? costs.unload : costs.load;
  return fmt::format(
      R"(sim:{{"name": "plan", "memory": "{} B", "compute": {{"flops": "1 TFLOP/s", "bandwidth": "1 TB/s", )"
      R"("copy_slowdown_ppm": {}}}, "copies": {{"in": "{} B/s", "out": "{} B/s", "latency": "{} ps", )"
      R"("kernel_slowdown_ppm": {}}}}})",
      memory, ppm(std::min<double>(kernel_slowdown, sim::kMaxSlowdown)), rate(costs.load), rate(out),
      costs.load.latency, ppm(costs.load_slowdown));
}

// Reads of units that are left on disk: each into one of a few places, from which it is then copied.
class RehearsedReads {
 public:
  RehearsedReads(const Device& device, const LinkCost& disk)
      : disk_(disk), stream_(device.stream("reads from disk", StreamFlags::kNonBlocking)) {}

  void issue(StreamRef loads, Range to, Range from, Name name) {
    Place& place = places_[next_++ % places_.size()];
    stream_.wait(place.copied);
    stream_.host([] {}, {.reads = {}, .writes = {}, .scalars = {}, .name = name}, {.time = disk_.time_for(to.bytes)});
    stream_.record(place.read);
    loads.wait(place.read);
    loads.copy(to, from, name);
    loads.record(place.copied);
  }

 private:
  struct Place {
    Event read, copied;
  };
  const LinkCost disk_;
  const Stream stream_;
  std::array<Place, 3> places_;
  std::size_t next_ = 0;
};

// The records of the simulated device alone, while it is started; the names of streams are kept from before.
class PredictedTrace final : public Observer {
 public:
  void start() { started_ = true; }
  void stop() { started_ = false; }
  TraceData data() const { return log_.collect(); }
  void on(const Record& record) override {
    if (started_ || record.kind == RecordKind::kStreamOpen) log_.add(record);
  }

 private:
  RecordLog log_{TraceOptions{}.max_bytes};
  bool started_ = false;  // sim tells on the threads that drive it: here that is the one that predicts
};

// A plan on a simulated device: memory that nobody touches, loads from a place that stands for every unit.
struct Rehearsal {
  Device device;
  WeightsMemory memory;
  Buffer weights;
  std::vector<Buffer> host;
  std::vector<HostValue> inputs, outputs;
  std::vector<Name> names;
  std::optional<RehearsedReads> reads;  // without it all come from host memory
  Steps steps;

  Rehearsal(const WeightsPlan& plan, const Graph& graph, const std::string& description)
      : device(Device::open(description, {.run_functions = false})),
        memory(device, plan),
        weights(device.alloc(std::max<std::uint64_t>(largest(plan), 1), MemoryKind::kPinned, "weights")),
        names(load_names(plan, graph)),
        steps(device, graph, plan, memory, [this, &plan](StreamRef stream, Range to, std::uint32_t unit, const Event*) {
          const Range from = weights.slice(0, to.bytes);
          if (reads && plan.units[unit].from_disk) reads->issue(stream, to, from, names[unit]);
          else stream.copy(to, from, names[unit]);
        }) {
    for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
      const GraphValue& value = graph.values()[i];
      if (value.role != ValueRole::kInput && !value.output) continue;
      host.push_back(device.alloc(std::max<std::uint64_t>(value.bytes, 1), MemoryKind::kPinned, value.name));
      (value.role == ValueRole::kInput ? inputs : outputs).push_back({{i}, host.back().slice(0, value.bytes)});
    }
  }
  void issue() { steps.issue(inputs, outputs); }

  static std::uint64_t largest(const WeightsPlan& plan) {
    std::uint64_t bytes = 0;
    for (const WeightUnit& unit : plan.units) bytes = std::max(bytes, unit.bytes + unit.room);
    return bytes;
  }
};

std::uint64_t memory_for(const WeightsPlan& plan) {
  const std::uint64_t bytes = plan.device_bytes();
  return bytes > UINT64_MAX / 4 ? bytes : std::max<std::uint64_t>(2 * bytes, 1 << 24);
}

// What a description of the sim device cannot express is refused in the terms of the costs.
void check_costs(const Costs& costs, double kernel_slowdown, Here here) {
  const auto require = [&](const char* what, double value, double least, double most, const char* unit) {
    if (value >= least && value <= most) return;
    throw Error(Code::kInvalidValue,
                fmt::format("costs of '{}' with {} of {:g}{}: {:g} to {:g} can be simulated", costs.device, what, value,
                            unit, least, most),
                here);
  };
  const auto require_link = [&](const char* what, const LinkCost& link) {
    if (link.bytes_per_second > 0)
      require(what, link.bytes_per_second, sim::kMinRate, static_cast<double>(sim::kMaxRate), " B/s");
  };
  // A tolerance: the slowdown of a whole graph is made of rounded times.
  require("a kernel slowdown", kernel_slowdown, 0, 1.001 * sim::kMaxSlowdown, "");
  require("a load slowdown", costs.load_slowdown, 0, sim::kMaxSlowdown, "");
  require_link("a load rate", costs.load);
  require_link("an unload rate", costs.unload);
  require("a load latency", static_cast<double>(costs.load.latency), 0, static_cast<double>(sim::kMaxTime), " ps");
}

// Virtual time is counted in Picos, too: 2^63 of them are 106 days.
void check_times(const WeightsPlan& plan, const Graph& graph, const Costs& costs, int steps, Here here) {
  double time = 0;
  for (const GraphOp& op : graph.ops()) time += static_cast<double>(costs.time_of(graph, op));
  for (const WeightLoad& load : plan.loads) {
    const WeightUnit& unit = plan.units[load.unit];
    time += static_cast<double>(costs.load.time_for(unit.bytes));
    if (unit.from_disk && costs.read.bytes_per_second > 0) time += static_cast<double>(costs.read.time_for(unit.bytes));
  }
  time *= (1 + costs.kernel_slowdown + costs.load_slowdown) * steps;
  if (time > 4e18)
    throw Error(Code::kInvalidValue,
                fmt::format("{} steps may take {:.0f} days: more than 40 cannot be simulated", steps, time / 86400e12),
                here);
}

}  // namespace

std::vector<Name> load_names(const WeightsPlan& plan, const Graph& graph) {
  std::vector<Name> names;
  for (const WeightUnit& unit : plan.units) {
    const ValueBytes& first = unit.parts.front().bytes;
    const GraphValue& weight = graph[first.value];
    const std::string part = first.bytes == weight.bytes ? "" : fmt::format("+{}", first.offset);
    const std::string more = unit.parts.size() > 1 ? fmt::format(" and {} more", unit.parts.size() - 1) : "";
    names.emplace_back(fmt::format("load {}{}{}", weight.name, part, more));
  }
  return names;
}

void capture_weights(const WeightsPlan& plan, const Graph& graph, const std::function<void(Plan&)>& look, Here here) {
  check_plan(plan, graph, here);
  const PrivateScope proving;  // no part of the program's trace
  Costs any;
  any.load = {1e9, 0};
  Rehearsal rehearsal(plan, graph, description_of(any, 0, memory_for(plan)));
  Steps& steps = rehearsal.steps;
  steps.compute().begin_capture(here);
  const Event begin = steps.compute().record();
  for (const StreamRef stream : steps.others()) stream.wait(begin);
  for (int i = 0; i < kProvenSteps; ++i) rehearsal.issue();
  for (const StreamRef stream : steps.others()) steps.compute().wait(stream.record());
  Plan captured = steps.compute().end_capture(here);
  look(captured);
}

WeightsProof verify_weights(const WeightsPlan& plan, const Graph& graph, Here here) {
  WeightsProof proof;
  capture_weights(
      plan, graph,
      [&](const Plan& captured) {
        const Verification verification = verify(captured);
        proof.verdict = verification.verdict;
        proof.text = verification.text(captured);
        proof.steps = kProvenSteps;
        proof.ops = captured.nodes().size();
        for (const PlanNode& node : captured.nodes()) proof.waits += node.waits.size();
        proof.superfluous = verification.superfluous.size();
      },
      here);
  return proof;
}

Prediction predict_weights(const WeightsPlan& plan, const Graph& graph, const Costs& costs, int steps, Here here) {
  if (steps < 2)
    throw Error(Code::kInvalidValue, fmt::format("{} steps show no steady state: at least 2 are needed", steps), here);
  check_plan(plan, graph, here);
  check_times(plan, graph, costs, steps, here);
  const double kernel_slowdown = costs.slowdown_of(graph);
  check_costs(costs, kernel_slowdown, here);
  // The simulated run is no part of the program's trace, nor is what the program does meanwhile part of the prediction.
  PredictedTrace trace;
  const PrivateScope predicting(&trace);
  Rehearsal rehearsal(plan, graph, description_of(costs, kernel_slowdown, memory_for(plan)));
  std::vector<Cost> times;
  for (const GraphOp& op : graph.ops()) {
    times.push_back(op.cost);
    times.back().time = std::max<Picos>(costs.time_of(graph, op), 1);
  }
  rehearsal.steps.set_costs(std::move(times));
  if (costs.read.bytes_per_second > 0) rehearsal.reads.emplace(rehearsal.device, costs.read);
  trace.start();
  for (int i = 0; i < steps; ++i) rehearsal.issue();
  rehearsal.device.sync(here);
  trace.stop();

  Prediction prediction;
  prediction.trace = trace.data();
  prediction.compute_stream = rehearsal.steps.compute().id();
  prediction.device_bytes = rehearsal.device.memory().used;
  prediction.loaded_bytes = plan.streamed_bytes;
  const StepTimes measured = step_times(prediction.trace, prediction.compute_stream, graph.ops().size());
  prediction.first_step = measured.first;
  prediction.step = measured.steady;
  prediction.exposed = measured.idle;
  return prediction;
}

// Steps are told apart by counting: each kernel of the compute stream is an op of the graph.
std::vector<TraceSpan> kernel_spans(const TraceData& trace, std::uint64_t stream) {
  std::vector<TraceSpan> spans = trace.spans();
  std::erase_if(spans, [&](const TraceSpan& span) { return span.stream != stream || span.kind != OpKind::kKernel; });
  const auto missing = std::ranges::count_if(spans, [](const TraceSpan& span) { return !span.run; });
  if (missing > 0)
    throw Error(
        Code::kInvalidValue,
        fmt::format("the trace does not say when {} of {} ops ran: steps cannot be told apart", missing, spans.size()),
        {});
  std::ranges::sort(spans, {}, &TraceSpan::position);
  return spans;
}

StepTimes step_times(const TraceData& trace, std::uint64_t compute_stream, std::size_t ops) {
  const std::vector<TraceSpan> spans = kernel_spans(trace, compute_stream);
  StepTimes times;
  times.steps = ops > 0 ? spans.size() / ops : 0;
  if (times.steps == 0) return times;
  const auto end_of = [&](std::size_t step) { return spans[(step + 1) * ops - 1].ended; };
  Picos began = spans.front().started;
  for (const TraceSpan& span : spans) began = std::min(began, span.queued > 0 ? span.queued : span.started);
  times.first = end_of(0) - began;
  if (times.steps < 2) return times;
  std::vector<std::pair<Picos, std::size_t>> steady;  // all but the first: the median, with its step
  for (std::size_t step = 1; step < times.steps; ++step) steady.emplace_back(end_of(step) - end_of(step - 1), step);
  std::ranges::sort(steady);
  const auto [time, step] = steady[(steady.size() - 1) / 2];
  times.steady = time;
  times.idle = time;
  for (std::size_t i = step * ops; i < (step + 1) * ops; ++i) times.idle -= spans[i].ended - spans[i].started;
  times.idle = std::max<Picos>(times.idle, 0);
  return times;
}

}  // namespace slip
