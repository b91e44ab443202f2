// CollectiveModel: the time of a collective on GPUs in closed form, for any number of ranks. The rates of the links
// come from the channel plan of the topology, the other costs from the constants at the top of cost_model.cpp.
//
// The time of an algorithm with a protocol is a latency plus the bytes over a rate, as in NCCL's tuning model. The
// latency is the launch and all steps of one byte; a ring with n ranks on m machines has 2(n-1) steps, 2(m-1) of them
// over the network. The fastest pair of algorithm and protocol wins. predict.hpp simulates the messages instead.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "comm/placement/comm_graph.hpp"
#include "comm/plan/algorithm.hpp"
#include "topo/fold.hpp"

namespace slip::comm {

// --- The constants: the costs of a generation of GPUs and of a kind of network ---

// How the GPUs of two ranks hand data over. LL: each 8 bytes carry 4 bytes of data and a flag. LL128: each 128 bytes
// carry 120 bytes and a flag; it needs a network that keeps the order of writes. Simple: whole chunks, then a flag.
enum class Protocol : unsigned char { kLl, kLl128, kSimple };
inline constexpr std::size_t kProtocols = 3;
inline constexpr std::array<Protocol, kProtocols> kAllProtocols = {Protocol::kLl, Protocol::kLl128, Protocol::kSimple};
const char* protocol_name(Protocol protocol);  // "LL128"

using ByProtocol = std::array<double, kProtocols>;

// One generation of GPUs. Times are in microseconds, rates in GB/s.
struct GpuCosts {
  const char* name;
  double launch_us;    // launch of the kernel until the first byte leaves, and from the last byte until it has ended
  ByProtocol hop_us;   // one step from GPU to GPU over NVLink or xGMI
  double ll_bus_gbps;  // bus bandwidth that LL reaches within a machine
  double ll128_share;  // of the rate of Simple
  double ring_share;   // of the planned rate that rings reach with Simple
  double tree_share;   // the same for trees
  double nvls_us;      // added latency of a reduction in the NVSwitch; 0: the generation has none
  double nvls_share;   // of the rate of the links to the NVSwitch
  double memory_gbps;  // of a GPU's memory
};
// By the GPUs of the machine: the oldest generation counts. Cores and unknown GPUs: the constants of Ampere.
const GpuCosts& gpu_costs(const TopoSystem& system);

struct NetworkCosts {
  const char* name;         // as --network names it
  double latency_us;        // one message with LL
  double ll128_latencies;   // latencies that a step with LL128 takes; 0: LL128 is not used on this network
  double simple_latencies;  // the same with Simple: credit, data and flush, of several slices
  double ll_bus_gbps;       // bus bandwidth that LL reaches through the CPU's memory
  double rate_share;        // of the planned rate, beyond ring_share and tree_share
  double message_us;        // time of a NIC's proxy for each message
};
std::span<const NetworkCosts> networks();
const NetworkCosts* find_network(std::string_view name);  // null: unknown
// By the PCI vendor of the NICs; InfiniBand's if it is unknown. If the topology file states a higher latency, the
// result has that latency.
NetworkCosts network_costs(const TopoSystem& system);

// The factors that `slip topo --fit` finds: of all latencies, and of all rates, of each protocol.
struct CostFactors {
  ByProtocol latency = {1, 1, 1}, rate = {1, 1, 1};
};

// --- The model ---

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
