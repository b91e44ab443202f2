// Lab gradients: a training step with the reduction of its gradients, in five ways. They are: in the compute stream, on
// a separate stream, the same with one hardware queue, with the buckets of PyTorch's DDP, and planned.
//
// In virtual time the duration of a reduction is given, or predicted for the machines of a topology file. On cpu and on
// a GPU, ranks that are threads with a device each reduce real gradients. On a GPU the ranks of the case with one
// hardware queue are processes (bench.hpp).
#include "slip/gradients.hpp"

#include <algorithm>
#include <optional>

#include "base/clock.hpp"
#include "base/thread.hpp"
#include "cli/lab/bench.hpp"
#include "flow/gradients/predict_step.hpp"
#include "slip/verify.hpp"

namespace slip::cli {
namespace {

struct StepCase {
  const char* name;
  flow::OverlapPolicy policy;
  BucketRule rule;
  int queues;  // hardware queues; 0: the device's own number
};

constexpr StepCase kStepCases[] = {
    {"in the compute stream", flow::OverlapPolicy::kInCompute, BucketRule::kEach, 0},
    {"own stream, waits at the end", flow::OverlapPolicy::kAtTheEnd, BucketRule::kEach, 0},
    {"the same, one hardware queue", flow::OverlapPolicy::kAtTheEnd, BucketRule::kEach, 1},
    {"DDP's buckets", flow::OverlapPolicy::kAtTheEnd, BucketRule::kDdp, 0},
    {"planned, waits by need", flow::OverlapPolicy::kByNeed, BucketRule::kPlanned, 0},
};

// Layers grow towards the end of the forward pass, like those of convolutional networks.
std::uint64_t bytes_of_layer(std::size_t layer, std::size_t layers) {
  constexpr std::uint64_t kLayerBytes = std::uint64_t{4} << 20;
  return std::max<std::uint64_t>(kLayerBytes * 2 * (layer + 1) / (layers + 1) / 4096, 1) * 4096;
}

std::size_t layers_of(const Bench& bench) { return static_cast<std::size_t>(bench.options().layers.value_or(12)); }

// The part of the device that a kernel takes. The ranks on a GPU share it, and leave room for the reductions.
double width_on(const Bench& bench, int ranks) { return bench.on_gpu() ? 0.5 / ranks : 0.5; }

// One rank's step on cpu or on a GPU.
class Rank {
 public:
  Rank(const Bench& bench, Communicator& comm, const Device& device, const StepCase& wanted, std::size_t layers)
      : comm_(comm),
        wanted_(wanted),
        compute_(device.stream(kNonBlocking)),
        gradients_(comm, device, {.buckets = wanted.rule, .measure = true}),
        backward_(bench.work(bench.kernel_time(), width_on(bench, comm.nranks()))),
        forward_(bench.work(bench.kernel_time() / 2, width_on(bench, comm.nranks()))) {
    for (std::size_t layer = 0; layer < layers; ++layer) {
      ids_.push_back(gradients_.add(fmt::format("layer {}", layer), bytes_of_layer(layer, layers), DataType::kF32));
      parameters_.push_back(device.alloc(64, MemoryKind::kPinned, fmt::format("sum {}", layer)));
    }
    gradients_.seal();  // last: on a GPU nothing is allocated once calls run
  }

  StreamRef compute() const { return compute_; }
  const Gradients& gradients() const { return gradients_; }

  void step() {
    const bool blocking = wanted_.policy == flow::OverlapPolicy::kInCompute;
    const auto own = static_cast<float>(comm_.rank() + 1);
    for (std::size_t layer = ids_.size(); layer-- > 0;) {
      const Range view = gradients_.view(ids_[layer]), first = view.slice(0, 64);
      compute_.launch(kScale, {{first}, {first}, {backward_.pace, 0.0F, own}, "backward"}, backward_.cost);
      gradients_.ready(ids_[layer], compute_);
      if (blocking) gradients_.wait(ids_[layer], compute_);
    }
    if (wanted_.policy == flow::OverlapPolicy::kAtTheEnd) {
      for (const ParameterId id : ids_) gradients_.wait(id, compute_);
    }
    for (std::size_t layer = 0; layer < ids_.size(); ++layer) {
      if (wanted_.policy == flow::OverlapPolicy::kByNeed) gradients_.wait(ids_[layer], compute_);
      const Range gradient = gradients_.view(ids_[layer]).slice(0, 64);
      compute_.launch(kScale, {{gradient}, {parameters_[layer]}, {forward_.pace, 1.0F, 0.0F}, "forward"},
                      forward_.cost);
    }
    gradients_.step_end();
  }

  Verdict prove() {
    compute_.begin_capture();
    step();
    return verify(compute_.end_capture()).verdict;
  }

  bool right() const {
    const auto n = static_cast<float>(comm_.nranks());
    return std::ranges::all_of(parameters_,
                               [&](const Buffer& one) { return one.host_read<float>()[0] == (n + 1) / 2; });
  }

 private:
  Communicator& comm_;
  const StepCase wanted_;
  Stream compute_;
  Gradients gradients_;
  const Work backward_, forward_;
  std::vector<ParameterId> ids_;
  std::vector<Buffer> parameters_;
};

struct StepOutcome {
  Picos time = 0;         // of the shortest run
  GradientReport report;  // of the run with the least exposed time under the last plan
  std::optional<GradientReport> predicted;
  Verdict verdict = Verdict::kUnknown;
  bool ok = false;
};

// `seen.time` is that of the shortest run, because other programs can only make a run longer.
void train(const Bench& bench, Communicator& comm, const Device& device, const StepCase& wanted, std::size_t layers,
           StepOutcome& seen) {
  constexpr int kWarm = 13, kRuns = 6;  // from step 13 on the plan no longer changes
  Rank rank(bench, comm, device, wanted, layers);
  for (int step = 0; step < kWarm; ++step) rank.step();
  rank.compute().sync();
  std::uint64_t plan = 0;  // number of the plan that the report belongs to
  for (int run = 0; run < kRuns; ++run) {
    comm.barrier(rank.compute());
    rank.compute().sync();
    const std::int64_t began = base::now_ns();
    rank.step();
    rank.compute().sync();
    const Picos took = (base::now_ns() - began) * 1000;
    if (run == 0 || took < seen.time) seen.time = took;
    const std::optional<GradientReport> report = rank.gradients().report();  // of the previous step, whose end is known
    if (run == 0 || !report) continue;
    const std::uint64_t now = rank.gradients().plans();
    if (now != plan || report->exposed < seen.report.exposed) seen.report = *report;
    plan = now;
  }
  const Gradients& gradients = rank.gradients();
  if (!gradients.profile().gradients.empty() && plan == gradients.plans())
    seen.predicted = predict_report(gradients.profile(), gradients.cost(), gradients.plan());
  seen.ok = rank.right();
  seen.verdict = rank.prove();
}

StepOutcome run_in_processes(const Bench& bench, std::size_t ranks) {
  const base::Json json = run_with_one_queue(bench, "gradients", static_cast<int>(ranks));
  base::JsonFields seen(json, kResultOfCase);
  StepOutcome outcome;
  outcome.time = seen.integer("time", 0, kMaxCaseTime);
  outcome.report.communication = seen.integer("communication", 0, kMaxCaseTime);
  outcome.report.exposed = seen.integer("exposed", 0, kMaxCaseTime);
  outcome.report.buckets.resize(seen.number("calls", 1 << 20));
  outcome.verdict = static_cast<Verdict>(seen.number("verdict", static_cast<std::uint64_t>(Verdict::kUnknown)));
  outcome.ok = seen.boolean("ok");
  seen.finish();
  return outcome;
}

StepOutcome run_case(const Bench& bench, const StepCase& wanted, std::size_t layers, std::size_t ranks) {
  if (bench.on_gpu() && wanted.queues != 0) return run_in_processes(bench, ranks);
  std::vector<Device> devices;
  for (std::size_t i = 0; i < ranks; ++i)
    devices.push_back(bench.open({.compute_workers = 2, .max_connections = wanted.queues}));
  std::vector<Communicator> comms = Communicator::init_all(devices);
  std::vector<StepOutcome> seen(ranks);
  base::run_threads("rank", ranks, [&](std::size_t i) { train(bench, comms[i], devices[i], wanted, layers, seen[i]); });
  for (const StepOutcome& one : seen)
    seen[0].ok = seen[0].ok && one.ok, seen[0].time = std::max(seen[0].time, one.time);
  return seen[0];
}

// The planned step, bucket by bucket: predicted and measured times.
void show_comparison(const GradientReport& predicted, const GradientReport& measured, Report& report) {
  Table table(
      "the planned step, predicted and measured",
      {"bucket", "size=bytes", "ready=predicted_ready_ps", "measured=measured_ready_ps", "call=predicted_call_ps",
       "measured=measured_call_ps", "waited=predicted_exposed_ps", "measured=measured_exposed_ps"});
  for (std::size_t i = 0; i < measured.buckets.size(); ++i) {
    const GradientReport::Part &expected = predicted.buckets[i], &found = measured.buckets[i];
    table.row({number(i), bytes(expected.bucket.bytes), time(expected.ready), time(found.ready),
               time(expected.end - expected.start), time(found.end - found.start), time(expected.exposed),
               time(found.exposed)});
  }
  report.show(table);
  report.print(fmt::format("\n{}", compare_steps(predicted, measured).text(3)));
  for (const GradientReport::Part& part : measured.buckets) {
    if (part.exposed == 0) continue;
    report.print(
        paragraph(fmt::format("waited {} for {}: {}", base::format_time(part.exposed), part.gradients, part.cause), 2));
  }
}

// On cpu and on a GPU: ranks that are threads reduce real gradients.
void gradients_of_ranks(const Bench& bench, std::size_t layers, std::size_t ranks, Report& report) {
  const Picos unit = bench.kernel_time(), compute = static_cast<Picos>(layers) * (unit + unit / 2);
  report.ask(fmt::format(
      "How much communication does a step of {} layers expose? {} ranks, each a thread{}; backward {} a layer, forward "
      "{}, each gradient reduced over {}. Without any communication the step takes {}; the additional time is exposed. "
      "`waited` is how long rank 0's compute stream stalled in its waits, as its report says. With one hardware queue "
      "the kernels of the backward pass are queued behind the calls: they start later, and `waited` does not show it. "
      "Each step is also captured, and proven.",
      layers, ranks, bench.on_gpu() ? " (with one hardware queue: a process, and the GPU switches between them)" : "",
      base::format_time(unit), base::format_time(unit / 2), bench.on_gpu() ? "the GPU's memory" : "shared memory",
      base::format_time(compute)));
  Table table("", {"case", "step=time_ps", "exposed=exposed_ps", "calls", "their time=communication_ps",
                   "waited=waited_ps", "proven", "result=ok"});
  std::vector<StepOutcome> seen;
  for (const StepCase& each : kStepCases) {
    seen.push_back(run_case(bench, each, layers, ranks));
    const StepOutcome& one = seen.back();
    table.row({word(each.name), time(one.time), time(std::max<Picos>(0, one.time - compute)),
               number(one.report.buckets.size()), time(one.report.communication), time(one.report.exposed),
               word(verdict_name(one.verdict)), result(one.ok)});
  }
  report.show(table);
  const StepOutcome& planned = seen.back();
  if (planned.predicted) show_comparison(*planned.predicted, planned.report, report);
  report.conclude(fmt::format(
      "The step took {} of its compute with the reduction in its stream, {} with DDP's buckets, {} planned.",
      base::format_times(ratio(seen[0].time, compute)), base::format_times(ratio(seen[3].time, compute)),
      base::format_times(ratio(seen[4].time, compute))));
}

GradientProfile profile_of(std::size_t layers, Picos unit) {
  GradientProfile profile;
  Picos now = 0;
  for (std::size_t layer = layers; layer-- > 0;) {
    now += unit;
    profile.gradients.push_back({bytes_of_layer(layer, layers), now, 0, 0});
  }
  profile.backward_end = now;
  for (std::size_t layer = 0; layer < layers; ++layer)
    profile.gradients[layers - 1 - layer].needed = now + static_cast<Picos>(layer) * unit / 2;
  return profile;
}

BucketPlan plan_by(BucketRule rule, const GradientProfile& profile, const ReduceCost& cost) {
  if (rule == BucketRule::kDdp) return ddp_buckets(profile);
  return rule == BucketRule::kEach ? bucket_per_gradient(profile) : plan_buckets(profile, cost);
}

void in_virtual_time(const Bench& bench, std::size_t layers, Report& report) {
  Picos unit = bench.kernel_time();
  const std::uint64_t bytes = profile_of(layers, unit).bytes();
  // Compute and communication take equally long: there overlap gains most.
  const auto compute_of = [&](Picos backward) { return profile_of(layers, backward).gradients.front().needed; };
  std::string network = "a network as fast as the compute";
  ReduceCost cost =
      ReduceCost::of({.bytes_per_second = static_cast<double>(bytes) / static_cast<double>(compute_of(unit)) * 1e12,
                      .latency = unit / 50});
  if (bench.cluster()) {
    const flow::ClusterCost& found = *bench.cluster();
    cost = found.cost;
    unit =
        std::max<Picos>(static_cast<Picos>(static_cast<double>(unit) * ratio(cost.time(bytes), compute_of(unit))), 2);
    network = fmt::format("{} devices of {}, {}", found.ranks, bench.options().topology, found.how);
  }
  const GradientProfile profile = profile_of(layers, unit);
  const Picos compute = compute_of(unit);
  report.ask(fmt::format(
      "How much communication does a step of {} layers expose? Backward {} a layer, forward {}; {} of gradients over "
      "{}. Without any communication the step takes {}.",
      layers, base::format_time(unit), base::format_time(unit / 2), base::format_bytes(profile.bytes()), network,
      base::format_time(compute)));
  Table table("", {"case", "step=time_ps", "exposed=exposed_ps", "calls"});
  Picos ddp = 0, planned = 0;
  for (const StepCase& each : kStepCases) {
    const BucketPlan plan = plan_by(each.rule, profile, cost);
    const Device device = bench.open({.max_connections = each.queues, .run_functions = false});
    const Prediction seen = flow::simulate_step(device, profile, cost, plan, each.policy);
    table.row({word(each.name), time(seen.step), time(seen.exposed), number(plan.buckets.size())});
    if (each.rule == BucketRule::kDdp) ddp = seen.exposed;
    if (each.rule == BucketRule::kPlanned) planned = seen.exposed;
  }
  report.show(table);
  const BucketExposure estimate = exposure_of(profile, cost, plan_buckets(profile, cost));
  report.conclude(fmt::format("The plan exposes {} where DDP's rule exposes {}; all calls together take {}.",
                              base::format_time(planned), base::format_time(ddp),
                              base::format_time(estimate.communication)));
}

}  // namespace

base::Json gradients_with_one_queue(const Bench& bench) {
  const Device device = bench.open();
  Communicator comm = Communicator::init(device);
  StepOutcome seen;
  train(bench, comm, device, kStepCases[2], layers_of(bench), seen);
  return {{"time", seen.time},
          {"communication", seen.report.communication},
          {"exposed", seen.report.exposed},
          {"calls", seen.report.buckets.size()},
          {"verdict", seen.verdict},
          {"ok", seen.ok}};
}

void lab_gradients(const Bench& bench, Report& report) {
  const LabOptions& options = bench.options();
  const std::size_t layers = layers_of(bench);
  if (bench.virtual_time()) in_virtual_time(bench, layers, report);
  else gradients_of_ranks(bench, layers, static_cast<std::size_t>(options.ranks.value_or(2)), report);
}

}  // namespace slip::cli
