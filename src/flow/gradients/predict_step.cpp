#include "flow/gradients/predict_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backend/sim/description.hpp"
#include "base/fail.hpp"
#include "comm/sim/cost_model.hpp"
#include "comm/sim/predict.hpp"
#include "flow/gradients/bucket_plan.hpp"
#include "flow/gradients/gradient_times.hpp"
#include "flow/predicted_trace.hpp"
#include "runtime/observers.hpp"

namespace slip::flow {
namespace {

// A device without overheads: the predicted times follow from the plan and the given times alone.
Device open_plain_device(Here here) {
  return sim::open_device({.name = "step",
                           .memory = 1'000'000'000,
                           .queues = 32,
                           .compute = {.flops = 1'000'000'000'000, .bandwidth = 1'000'000'000'000},
                           .copies = {.in = 1'000'000'000, .out = 1'000'000'000}},
                          {.queue_depth = 1 << 16, .run_functions = false}, here);
}

const Kernel kBackward{"backward"}, kReduce{"reduce"}, kUse{"use"};

class StepSimulation {
 public:
  StepSimulation(const Device& device, const GradientProfile& profile, const ReduceCost& cost, const BucketPlan& plan,
                 OverlapPolicy policy, Here here)
      : profile_(profile),
        cost_(cost),
        plan_(plan),
        policy_(policy),
        here_(here),
        compute_(device.stream(StreamFlags::kNonBlocking, 0, here)),
        network_(device.stream(StreamFlags::kNonBlocking, device.info().max_priority, here)),
        done_(plan.buckets.size()),
        gradients_of_(gradients_of(profile, plan)),
        calls_of_(profile.gradients.size()) {
    for (std::uint32_t call = 0; call < plan.buckets.size(); ++call) {
      for (const GradientProfile::Gradient& gradient : gradients_of_[call])
        calls_of_[index_of(gradient)].push_back(call);
    }
  }

  // run() then records the step in `clock`. Optional, because timed events take host time on most simulated devices.
  void record(GradientClock& clock) { clock_ = &clock; }
  std::span<const std::uint32_t> calls_of(std::uint32_t gradient) const { return calls_of_[gradient]; }

  Prediction run() {
    const TimedEvent begun = compute_.record_timed(here_);
    backward();
    if (policy_ == OverlapPolicy::kAtTheEnd) compute_.wait(network_.record(here_), here_);
    use();
    const TimedEvent ended = compute_.record_timed(here_);
    compute_.sync(here_);
    network_.sync(here_);
    Prediction result;
    result.step = result.first_step = Picos{(ended - begun).count()} * 1000;
    result.exposed = result.step - compute_time_;
    result.communication = communication_;
    result.compute_stream = compute_.id();
    return result;
  }

 private:
  void compute(const Kernel& kernel, Picos time, const std::string& name) {
    if (time <= 0) return;
    compute_.launch(kernel, {.name = name}, {.width = 0.5, .time = time}, here_);
    compute_time_ += time;
  }

  std::vector<std::uint32_t> ordered_by(Picos GradientProfile::Gradient::*time) const {
    std::vector<std::uint32_t> order(profile_.gradients.size());
    std::iota(order.begin(), order.end(), 0U);
    std::ranges::stable_sort(order, {}, [&](std::uint32_t i) { return profile_.gradients[i].*time; });
    return order;
  }

  // Issues the kernels up to each gradient, in the order of arrival, and each call right after its last gradient. If
  // the call were issued later, it would be behind the next kernels in a shared hardware queue.
  void backward() {
    arrived_.resize(profile_.gradients.size());
    std::vector<bool> has_arrived(profile_.gradients.size());
    Picos now = 0;
    std::size_t next = 0;
    for (const std::uint32_t gradient : ordered_by(&GradientProfile::Gradient::arrival)) {
      const Picos arrival = profile_.gradients[gradient].arrival;
      compute(kBackward, arrival - now, fmt::format("backward {}", gradient));
      now = std::max(now, arrival);
      compute_.record(arrived_[gradient], here_);
      if (clock_) clock_->arrived(gradient, compute_, here_);
      has_arrived[gradient] = true;
      for (; next < plan_.buckets.size() && is_complete(next, has_arrived); ++next)
        reduce(next, policy_ == OverlapPolicy::kInCompute ? compute_ : network_);
    }
    compute(kBackward, profile_.backward_end - now, "backward end");
  }

  std::size_t index_of(const GradientProfile::Gradient& gradient) const {
    return static_cast<std::size_t>(&gradient - profile_.gradients.data());
  }

  bool is_complete(std::size_t call, const std::vector<bool>& has_arrived) const {
    return std::ranges::all_of(gradients_of_[call],
                               [&](const auto& gradient) { return has_arrived[index_of(gradient)]; });
  }

  void reduce(std::size_t call, StreamRef stream) {
    const auto latest = std::ranges::max_element(gradients_of_[call], {}, &GradientProfile::Gradient::arrival);
    stream.wait(arrived_[index_of(*latest)], here_);
    const Picos time = std::max<Picos>(cost_.time(plan_.buckets[call].bytes), 1);
    communication_ += time;
    if (clock_) clock_->started(call, stream, here_);
    stream.launch(kReduce, {.name = fmt::format("reduce {}", call)}, {.width = 0.25, .time = time}, here_);
    if (clock_) clock_->ended(call, stream, here_);
    stream.record(done_[call], here_);
  }

  // Uses the gradients in the order of need. A gradient is reduced when its last call has ended.
  void use() {
    Picos now = profile_.backward_end;
    for (const std::uint32_t gradient : ordered_by(&GradientProfile::Gradient::needed)) {
      const Picos needed = profile_.gradients[gradient].needed;
      compute(kUse, needed - now, fmt::format("until {} is used", gradient));
      now = std::max(now, needed);
      if (policy_ != OverlapPolicy::kByNeed) continue;
      const std::uint32_t call = calls_of_[gradient].back();
      if (clock_) clock_->reached(gradient, call, compute_, here_);
      compute_.wait(done_[call], here_);
      if (clock_) clock_->left(compute_, here_);
    }
  }

  const GradientProfile& profile_;
  const ReduceCost& cost_;
  const BucketPlan& plan_;
  const OverlapPolicy policy_;
  const Here here_;
  const Stream compute_, network_;
  std::vector<Event> arrived_, done_;
  const std::vector<std::span<const GradientProfile::Gradient>> gradients_of_;  // by call
  std::vector<std::vector<std::uint32_t>> calls_of_;                            // by gradient, ascending
  GradientClock* clock_ = nullptr;
  Picos compute_time_ = 0, communication_ = 0;
};

// Maximum numbers of machines to simulate. They limit how long the host simulates: with eight GPUs in a machine, 1 s
// for a ring of four machines, 10 s for a ring of eight, and 0.5 s for a tree of eight.
constexpr int kSimulatedRing = 4, kSimulatedTree = 8;
constexpr int kMaxPlanned = 4096;  // maximum number of ranks in a ChannelPlan, for up to topo::kMaxCopies copies
// Sizes of the simulated calls, in bytes.
constexpr std::uint64_t kSizes[] = {std::uint64_t{1} << 14, std::uint64_t{1} << 18, std::uint64_t{1} << 22,
                                    std::uint64_t{1} << 25};
// Sizes for which the cost model is evaluated, in bytes: all powers of two in this range, because the model is fast and
// its choice of algorithm and protocol changes with the size.
constexpr std::uint64_t kMinModelled = std::uint64_t{1} << 12, kMaxModelled = std::uint64_t{1} << 32;

bool has_gpus(const TopoSystem& machine) {
  return !machine.devices.empty() &&
         machine.nodes[static_cast<std::size_t>(machine.devices.front())].kind == TopoKind::kGpu;
}

double simulated_us(const TopoSystem& machine, int machines, std::uint64_t bytes, bool by_tree, Here here) {
  const Cluster cluster = cluster_of(machine, machines);
  const ChannelPlan plan = plan_channels(cluster, {}, {});
  comm::PredictionRequest asked;
  asked.call = {.kind = comm::Collective::kAllReduce, .type = DataType::kF32, .elements = bytes / 4};
  asked.algorithm = by_tree ? Algorithm::kTree : Algorithm::kRing;
  return comm::predict(cluster, plan, asked, here).us;
}

}  // namespace

Prediction simulate_step(const Device& device, const GradientProfile& profile, const ReduceCost& cost,
                         const BucketPlan& plan, OverlapPolicy policy, Here here) {
  require_whole(profile, plan, here);
  return StepSimulation(device, profile, cost, plan, policy, here).run();
}

double all_reduce_us(const TopoSystem& machine, int machines, std::uint64_t bytes, bool by_tree, int max_simulated,
                     Here here) {
  if (machines <= max_simulated) return simulated_us(machine, machines, bytes, by_tree, here);
  const int fewer = max_simulated / 2;
  const double whole = simulated_us(machine, max_simulated, bytes, by_tree, here),
               half = simulated_us(machine, fewer, bytes, by_tree, here);
  const double further = by_tree ? std::log2(static_cast<double>(machines) / max_simulated)
                                 : static_cast<double>(machines - max_simulated) / (max_simulated - fewer);
  return whole + std::max(whole - half, 0.0) * further;
}

ClusterCost cluster_cost(const std::vector<TopoSystem>& kinds, int copies, Here here) {
  ClusterCost result;
  int devices = 0;
  for (const TopoSystem& kind : kinds) devices += static_cast<int>(kind.devices.size());
  if (devices * std::min(copies, topo::kMaxCopies) > kMaxPlanned)
    base::fail(ErrorCode::kInvalidValue, here,
               "{} devices in {} machines: {} ranks are too many, at most {} can be planned", devices, kinds.size(),
               devices * std::min(copies, topo::kMaxCopies), kMaxPlanned);
  result.ranks = copies * devices;
  if (result.ranks < 2)
    base::fail(ErrorCode::kInvalidValue, here, "'{}' has one device, which reduces with no other: give more machines",
               kinds.front().name);
  const auto add = [&](std::uint64_t bytes, double us) {
    auto time = static_cast<Picos>(us * 1e6);
    if (result.cost.known()) time = std::max(time, result.cost.points.back().time);  // more bytes never cost less
    result.cost.points.push_back({bytes, time});
  };
  if (std::ranges::all_of(kinds, has_gpus)) {
    const topo::FoldedCluster cluster = topo::folded(kinds, copies);
    const ChannelPlan plan = plan_channels(cluster.cluster, {.cross_nic = CrossNic::kAny}, {});
    const comm::CollectiveModel model(comm::model_inputs(cluster, plan));
    for (std::uint64_t bytes = kMinModelled; bytes <= kMaxModelled; bytes *= 2)
      add(bytes, model.choice(comm::Collective::kAllReduce, static_cast<double>(bytes)).us);
    result.how = "by the cost model of GPUs";
    return result;
  }
  if (kinds.size() > 1)
    base::fail(ErrorCode::kInvalidValue, here,
               "'{}' is one of several machines, and not all have GPUs: give equal machines", kinds.front().name);
  for (const std::uint64_t bytes : kSizes)
    add(bytes, std::min(all_reduce_us(kinds.front(), copies, bytes, false, kSimulatedRing, here),
                        all_reduce_us(kinds.front(), copies, bytes, true, kSimulatedTree, here)));
  result.how =
      copies > kSimulatedRing ? "by rings or trees (extrapolated from fewer machines)" : "by rings or trees, simulated";
  return result;
}

}  // namespace slip::flow

namespace slip {
using namespace flow;

GradientReport predict_report(const GradientProfile& profile, const ReduceCost& cost, const BucketPlan& plan,
                              Here here) {
  flow::require_whole(profile, plan, here);
  const runtime::PrivateScope predicting;  // keeps these ops out of the program's trace
  const Device device = open_plain_device(here);
  StepSimulation simulation(device, profile, cost, plan, flow::OverlapPolicy::kByNeed, here);
  flow::GradientClock clock(profile.gradients.size());
  clock.begin_step(true, plan.buckets.size());
  simulation.record(clock);
  simulation.run();
  flow::GradientTimes times;
  if (!clock.wait_for(0, times)) return {};  // a step without gradients
  return flow::report_of(
      times, [&](std::uint32_t gradient) { return simulation.calls_of(gradient); }, plan, cost);
}

Prediction predict_step(const GradientProfile& profile, const ReduceCost& cost, const BucketPlan& plan, Here here) {
  flow::PredictedTrace trace(true);
  const runtime::PrivateScope predicting(&trace);  // keeps these ops out of the program's trace
  const Device device = open_plain_device(here);
  Prediction result = flow::simulate_step(device, profile, cost, plan, flow::OverlapPolicy::kByNeed, here);
  result.trace = trace.data();
  return result;
}

}  // namespace slip
