// The cost of reducing gradients on a cluster: by the cost model of GPUs, or by simulation if the machines have none.
#include <algorithm>
#include <cmath>

#include "base/fail.hpp"
#include "comm/sim/cost_model.hpp"
#include "comm/sim/predict.hpp"
#include "flow/gradients/predict_step.hpp"

namespace slip::flow {
namespace {

// Maximum numbers of machines to simulate, which limit the host time. With eight GPUs in a machine, a ring takes 1 s
// for four machines and 10 s for eight; a tree takes 0.5 s for eight.
constexpr int kSimulatedRing = 4, kSimulatedTree = 8;
constexpr int kMaxPlanned = 4096;  // ranks of a plan, which has up to topo::kMaxCopies of the machines
constexpr std::uint64_t kSizes[] = {std::uint64_t{1} << 14, std::uint64_t{1} << 18, std::uint64_t{1} << 22,
                                    std::uint64_t{1} << 25};
// The model costs nothing, and its choice of algorithm and protocol changes with the size.
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
