// CollectiveModel: the time of a collective on GPUs in closed form, for any number of ranks. The rates come from the
// channel plan of the topology, the other costs from gpu_costs.hpp.
//
// The time of an algorithm with a protocol is a latency plus the bytes over a rate, as in NCCL's tuning model. The
// latency is the launch and all steps of one byte; a ring with n ranks on m machines has 2(n-1) steps, 2(m-1) of them
// over the network. The fastest pair of algorithm and protocol wins. predict.hpp simulates the messages instead.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "comm/placement/comm_graph.hpp"
#include "comm/plan/algorithm.hpp"
#include "comm/sim/gpu_costs.hpp"
#include "topo/fold.hpp"

namespace slip::comm {

// The algorithms of collectives on GPUs. Three of them, which Algorithm does not have, use a switch that reduces:
// kSwitch a switch in the network, kNvls and kNvlsTree the NVSwitches of a machine.
enum class GpuAlgorithm : unsigned char { kRing, kTree, kSwitch, kNvls, kNvlsTree, kDoubling, kDirect, kRelay };
const char* gpu_algorithm_name(GpuAlgorithm algorithm);  // "nvls_tree"
inline constexpr GpuAlgorithm kGpuAlgorithms[] = {
    GpuAlgorithm::kRing,     GpuAlgorithm::kTree,     GpuAlgorithm::kSwitch, GpuAlgorithm::kNvls,
    GpuAlgorithm::kNvlsTree, GpuAlgorithm::kDoubling, GpuAlgorithm::kDirect, GpuAlgorithm::kRelay};

// The properties of a cluster that the model uses. Rates are in GB/s.
struct ModelInputs {
  int ranks = 0, machines = 1;
  int each = 1;        // ranks of the largest machine
  int channels = 1;    // of rings and trees
  bool nvlink = true;  // rings stay on NVLink or xGMI within a machine
  double ring_gbps = 0, tree_gbps = 0, switch_gbps = 0;
  double nvls_gbps = 0;  // from each GPU to the NVSwitch; 0: no reductions there
  double gpu_gbps = 0;   // between two GPUs of a machine: the slowest pair
  double net_gbps = 0;   // of all nets of a machine together; of the slowest machine
  int nets = 1;          // of that machine
  double rail_gbps = 0;  // of a machine if each GPU sends an equal share through its own nets: the slowest net counts
  AllToAllLoads loads = {};
  GpuCosts gpu;
  NetworkCosts network;
};

ModelInputs model_inputs(const topo::FoldedCluster& cluster, const ChannelPlan& plan, NetReach reach = NetReach::kAll);

struct Estimate {
  GpuAlgorithm algorithm = GpuAlgorithm::kRing;
  Protocol protocol = Protocol::kSimple;
  double us = 0;
  int channels = 1;
};

class CollectiveModel {
 public:
  explicit CollectiveModel(const ModelInputs& inputs, const CostFactors& factors = {})
      : in_(inputs), factors_(factors) {}

  // The time with the fastest protocol; none: the algorithm cannot do the collective on this cluster. `bytes`: as
  // all_reduce_perf counts them. If each rank has a block of its own, they are the blocks of all ranks together.
  std::optional<Estimate> estimate(GpuAlgorithm algorithm, Collective kind, double bytes) const;
  // The choice of the tuning model: the fastest among the algorithms that NCCL has for the collective.
  Estimate choice(Collective kind, double bytes) const;

  // The times of one pair of algorithm and protocol, before the factors: latency_us + transfer_us.
  struct Term {
    GpuAlgorithm algorithm = GpuAlgorithm::kRing;
    Protocol protocol = Protocol::kSimple;
    double latency_us = 0, transfer_us = 0;
    double us(const CostFactors& factors) const {
      const auto at = static_cast<std::size_t>(protocol);
      return latency_us * factors.latency[at] + transfer_us / factors.rate[at];
    }
  };
  std::vector<Term> choice_terms(Collective kind, double bytes) const;  // all pairs that choice() compares

  const ModelInputs& inputs() const { return in_; }

 private:
  struct Line {  // the time is latency_us + bytes * us_per_byte
    double latency_us = 0, us_per_byte = 0;
  };
  std::optional<Line> line(GpuAlgorithm algorithm, Collective kind, Protocol protocol, double bytes) const;
  bool has(GpuAlgorithm algorithm, Collective kind) const;
  void add_terms(GpuAlgorithm algorithm, Collective kind, double bytes, std::vector<Term>& terms) const;
  std::optional<Estimate> fastest(const std::vector<Term>& terms) const;
  Line ring(Collective kind, Protocol protocol) const;
  Line tree(Collective kind, Protocol protocol) const;
  Line through_switch(Protocol protocol) const;
  Line nvls(Collective kind) const;
  Line nvls_tree() const;
  Line doubling(Protocol protocol) const;
  Line direct(Collective kind, Protocol protocol, double bytes) const;
  Line exchange(bool relayed, Protocol protocol, double bytes) const;
  double hop_us(Protocol protocol) const;
  double net_us(Protocol protocol) const;
  double with(Protocol protocol, double gbps, double per_bus) const;

  ModelInputs in_;
  CostFactors factors_;
};

}  // namespace slip::comm
