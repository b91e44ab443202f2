// Lab weights: a stack of vector_adds on the weight engine. Its weights are all in device memory, or are loaded into a
// ring that holds one or two of them.
//
// A layer needs only its own weight. With two slots the next weight is loaded while a layer computes. With one slot the
// load waits until the previous layer is done.
#include <algorithm>
#include <vector>

#include "cli/lab/bench.hpp"
#include "flow/weights/step.hpp"
#include "slip/runner.hpp"

namespace slip::cli {
namespace {

constexpr int kSteps = 6;  // the first one starts with an empty ring

// y = x + w0, then y += w for each other weight: activations need two buffers for any number of layers.
struct Model {
  Graph graph;
  Value x, y;
  std::size_t layers;

  Model(std::size_t bytes, std::size_t count, const Work& add)
      : graph({.join_bytes = 0}),  // no joining: each weight is loaded separately
        x(graph.input("x", DataType::kF32, {bytes / sizeof(float)})),
        y(graph.activation("y", DataType::kF32, {bytes / sizeof(float)})),
        layers(count) {
    for (std::size_t k = 0; k < layers; ++k) {
      const Value weight = graph.weight(fmt::format("{}", k), DataType::kF32, {bytes / sizeof(float)});
      graph.add_op({.name = fmt::format("add {}", k),
                    .kernel = &kVectorAdd,
                    .reads = {graph.all_of(k == 0 ? x : y), graph.all_of(weight)},
                    .writes = {graph.all_of(y)},
                    .scalars = {add.pace},
                    .cost = add.cost});
    }
    graph.output(y);
  }
};

// Weight k is k + 1 everywhere, in pinned memory.
class HostWeights {
 public:
  HostWeights(const Device& device, const Model& model) {
    for (const GraphValue& value : model.graph.values()) {
      if (value.role != ValueRole::kWeight) continue;
      buffers_.push_back(device.alloc(value.bytes, MemoryKind::kPinned, value.name));
      std::ranges::fill(buffers_.back().host_write<float>(), static_cast<float>(buffers_.size()));
    }
  }
  WeightSource source() const {
    return WeightSource::memory(
        [this](const GraphValue& weight) {
          const Buffer& buffer = buffers_[std::stoul(weight.name)];
          return std::span(static_cast<const std::byte*>(buffer.native()), buffer.bytes());
        },
        MemoryKind::kPinned);
  }

 private:
  std::vector<Buffer> buffers_;
};

struct WeightsOutcome {
  flow::StepTimes times;
  Picos predicted = 0;
  Picos compute = 0;  // of the last step: from the start of the first layer to the end of the last
  Picos add = 0;      // of the longest layer
  Cover loads;
  std::size_t peak_bytes = 0;
  bool ok = false, proven = false;
};

bool is_right(const Model& model, std::span<const float> output) {
  const auto layers = static_cast<float>(model.layers);
  const float wanted = 1.0F + layers * (layers + 1) / 2;
  return std::ranges::all_of(output, [&](float value) { return value == wanted; });
}

// Time in which loads ran, and the part of it in which an op of the graph ran, too. Without the first step, which
// starts with an empty ring.
Cover loads_covered(const TraceData& trace, std::uint64_t compute_stream, std::size_t ops) {
  const std::vector<TraceSpan> kernels = flow::kernel_spans(trace, compute_stream);
  if (ops == 0 || kernels.size() <= ops) return {};
  const Picos from = kernels[ops - 1].ended, to = kernels.back().ended;
  const auto load = [&](const TraceSpan& span) {
    return span.name.starts_with("load ") && span.started >= from && span.ended <= to;
  };
  return cover(trace.spans(), load,
               [&](const TraceSpan& span) { return span.stream == compute_stream && span.kind == OpKind::kKernel; });
}

void read_times(const Model& model, const Run& run, std::uint64_t compute_stream, WeightsOutcome& outcome) {
  outcome.times = flow::step_times(run.data, compute_stream, model.layers);
  const std::vector<TraceSpan> adds = flow::kernel_spans(run.data, compute_stream);
  outcome.compute = adds.back().ended - adds[adds.size() - model.layers].started;
  for (const TraceSpan& add : adds) outcome.add = std::max(outcome.add, add.ended - add.started);
  outcome.loads = loads_covered(run.data, compute_stream, model.layers);
  outcome.peak_bytes = run.peak_bytes;
}

// Costs are measured on a separate device, because measuring needs memory, too.
Costs costs_of(const Bench& bench, const Model& model) {
  if (bench.virtual_time()) return model_costs(model.graph, bench.options().device);
  return measure_costs(model.graph, bench.open({.compute_workers = 1}),
                       LoadProbe{.piece_bytes = model.graph[model.x].bytes});
}

WeightsOutcome run(const Bench& bench, const Model& model, const Costs& costs, const WeightsOptions& options) {
  const WeightsPlan plan = plan_weights(model.graph, costs, options);
  WeightsOutcome outcome;
  outcome.predicted = predict_weights(plan, model.graph, costs).step;
  const Device device = bench.open({.compute_workers = 1, .memory_limit = plan.device_bytes()});
  const HostWeights weights(device, model);
  outcome.proven = verify_weights(plan, model.graph, device, weights.source()).proven();
  Runner runner(device, model.graph, plan, weights.source());
  for (int i = 0; i < 2; ++i) {  // an input has two host buffers, used alternately
    std::ranges::fill(runner.input<float>(model.x), 1.0F);
    runner.step();
  }
  runner.sync();
  const Run seen = bench.measure(device, {}, [&] {
    for (int i = 0; i < kSteps; ++i) runner.step();
    runner.sync();
  });
  outcome.ok = is_right(model, runner.output<float>(model.y));
  read_times(model, seen, runner.compute_stream(), outcome);
  return outcome;
}

void add_row(Table& table, const char* speed, const char* weights, const WeightsOutcome& outcome) {
  const bool loads = outcome.loads.busy > 0;
  table.row({word(speed), time(outcome.add), word(weights), time(outcome.times.steady), time(outcome.predicted),
             time(outcome.compute), loads ? percent(100 * ratio(outcome.loads.covered, outcome.loads.busy)) : none(),
             time(outcome.times.idle), bytes(outcome.peak_bytes), result(outcome.ok)});
}

}  // namespace

void lab_weights(const Bench& bench, Report& report) {
  const std::size_t size = bench.bytes(4 << 20);
  const auto layers = static_cast<std::size_t>(bench.options().layers.value_or(4));
  const Picos load = bench.upload_time(size);
  report.ask(fmt::format(
      "Must all weights be in device memory? A model of {} vector_adds with weights of {} is run step after step by "
      "the weight engine: all weights resident, in one weight slot, and in two, where the next weight is loaded while "
      "a layer computes. A load takes {}; the slow kernel is made three times that, the fast one a quarter if the "
      "device can. Look at `memory`, at `a step` beside what was `predicted`, at `compute`, from the first layer's "
      "start to the last one's end, and at `overlap`, the share of the loads that ran while a layer did.",
      layers, base::format_bytes(size), base::format_time(load)));
  struct Variant {
    const char* name;
    WeightsOptions options;
  };
  const Variant variants[] = {{"resident", {}},
                              {"one slot", {.ring = size, .stream_all = true}},
                              {"two slots", {.ring = 2 * size, .stream_all = true}}};
  Table table("", {"kernel", "one add=add_ps", "weights=case", "a step=step_ps", "predicted=predicted_ps",
                   "compute=compute_ps", "overlap=overlap_percent", "idle=idle_ps", "memory=peak_bytes", "result=ok"});
  std::vector<WeightsOutcome> seen;
  for (const auto& [speed, add] : {std::pair("slow", 3 * load), std::pair("fast", load / 4)}) {
    const Model model(size, layers, bench.work(add));
    const Costs costs = costs_of(bench, model);
    for (const Variant& variant : variants) {
      seen.push_back(run(bench, model, costs, variant.options));
      add_row(table, speed, variant.name, seen.back());
    }
  }
  report.show(table);
  const auto slower = [&](std::size_t i) { return ratio(seen[i + 2].times.steady, seen[i].times.steady); };
  const auto hidden = [&](std::size_t i) { return ratio(seen[i + 2].loads.covered, seen[i + 2].loads.busy); };
  report.conclude(fmt::format(
      "Two slots need {} of device memory instead of {} and give {} results; {}. With slow kernels a step took {} of "
      "the resident time, and {} of the loading ran while a layer did; with fast ones {} and {}. {}; {}.",
      base::format_bytes(seen[2].peak_bytes), base::format_bytes(seen[0].peak_bytes),
      std::ranges::all_of(seen, &WeightsOutcome::ok) ? "the same" : "WRONG",
      std::ranges::all_of(seen, &WeightsOutcome::proven) ? "all plans were proven free of races before they ran"
                                                         : "NOT ALL plans could be proven free of races",
      base::format_times(slower(0)), base::format_percent(100 * hidden(0)), base::format_times(slower(3)),
      base::format_percent(100 * hidden(3)),
      borne_out("Kernels that are slower than the loads hide them", hidden(0) >= 0.5 && slower(0) <= 1.25),
      borne_out("faster ones wait for them", slower(3) >= 1.25)));
}

}  // namespace slip::cli
