#include "comm/sim/cost_model.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/fail.hpp"
#include "topo/document.hpp"
#include "topo/fabric.hpp"

namespace slip::comm {
namespace {

// --- The constants ---

// Where the numbers come from:
//   [N]  the tuning constants that NCCL 2.28 publishes in src/graph/tuning.cc: latencies of the protocols, the share of
//        LL128, the efficiency of NVLS, the cost of posting a message to a NIC;
//   [R]  RCCL's rate of an xGMI link and its 48 GB/s for gfx94x, src/graph/topo.h;
//   [T]  a fit by hand to published all_reduce_perf tables (bench/predict/tables.cpp names each). Every such constant
//        serves all tables of its generation or network; none belongs to one machine;
//   [D]  the vendor's data sheet.
// `slip topo --fit` adapts them to measurements of one machine, by factors (CostFactors).

// The columns are those of GpuCosts. hop_us: LL [N]; LL128 and Simple [T], between [N]'s 1.9 and 3.4 us of a step and
// the time of a chunk. Launch [T]: the time of all_reduce_perf for a few bytes, less [N]'s latencies of the steps.
// LL: 141 GB/s [N] on Hopper; 35 [T] on Ampere ([N] says 88). ll128_share [T]: [N] says 0.92, tables show 0.6 to 0.75.
// nvls_share: Hopper [T], where [N] says 0.85; Blackwell [N].
// Memory: [D].
constexpr GpuCosts kVolta{"Volta", 27, {0.6, 2.9, 8}, 35, 0.72, 0.95, 0.9, 0, 0, 900};
constexpr GpuCosts kAmpere{"Ampere", 27, {0.6, 2.9, 8}, 35, 0.72, 0.97, 0.92, 0, 0, 2000};
constexpr GpuCosts kHopper{"Hopper", 27, {0.6, 1.9, 6}, 141, 0.72, 0.98, 0.92, 58, 0.84, 3350};
constexpr GpuCosts kBlackwell{"Blackwell", 27, {0.6, 1.9, 5}, 282, 0.72, 0.98, 0.92, 50, 0.74, 8000};
constexpr GpuCosts kMi200{"MI200", 6, {0.8, 1.6, 5.5}, 44, 0.72, 0.9, 0.9, 0, 0, 3200};
constexpr GpuCosts kMi300{"MI300", 5, {0.6, 1.3, 4.3}, 88, 0.72, 0.945, 0.9, 0, 0, 5300};

// The columns are those of NetworkCosts. InfiniBand and RoCE: latency [N], the rest [T]. EFA: [T]; its plug-in states
// 75 us. TCPXO (GPUDirect over TCP with offload): [T]. Neither keeps the order of writes, so there is no LL128 on them.
// EFA of the Hopper generation and later writes in order ([P]: the plug-in asks for it, and states 35 us for P5en and
// later); no published table was available to fit it. message_us [N].
//   [P]  aws-ofi-nccl, src/platform-aws.cpp.
constexpr NetworkCosts kNetworks[] = {{"ib", 5, 1.5, 6.5, 32, 1, 1},
                                      {"efa", 64, 0, 6.5, 32, 0.94, 2},
                                      {"efa2", 35, 1.5, 6.5, 32, 0.94, 2},
                                      {"tcpxo", 50, 0, 6.5, 32, 1, 2}};

// Factors of hop_us for a step that goes through PCI switches or CPUs instead of NVLink [N].
constexpr ByProtocol kPciHopFactor = {1.7, 1.4, 1.5};

constexpr int kAmazon = 0x1d0f, kGoogle = 0x1ae0;  // PCI vendors

const GpuCosts& by_arch(std::string_view arch) {
  return arch.starts_with("gfx94") || arch.starts_with("gfx95") ? kMi300 : kMi200;
}
const GpuCosts& by_sm(int sm) {
  if (sm >= 100) return kBlackwell;
  if (sm >= 90) return kHopper;
  return sm >= 80 || sm == 0 ? kAmpere : kVolta;
}

int oldest_sm(const TopoSystem& system) {
  int oldest = 0;
  for (const int device : system.devices) {
    const int sm = system.nodes[static_cast<std::size_t>(device)].sm;
    if (sm > 0 && (oldest == 0 || sm < oldest)) oldest = sm;
  }
  return oldest;
}

// --- The inputs of the model ---

constexpr std::size_t index_of(Protocol protocol) { return static_cast<std::size_t>(protocol); }

// Microseconds for each byte at this rate.
double per_byte(double gbps) { return gbps > 0 ? 1 / (gbps * 1e3) : std::numeric_limits<double>::infinity(); }

// Rounds of a tree or a doubling among `count` members.
double levels(int count) { return std::bit_width(static_cast<unsigned>(count - 1)); }

// The rate of the slowest link from a GPU to the NVSwitch; 0: some GPU has none.
double nvswitch_gbps(const TopoSystem& system) {
  double slowest = std::numeric_limits<double>::infinity();
  for (const int device : system.devices) {
    double own = 0;
    for (const TopoLink& link : system.links) {
      const bool hub = topo::node_at(system, link.to).kind == TopoKind::kNvSwitch;
      if (link.from == device && hub) own += link.gbps;
    }
    slowest = std::min(slowest, own);
  }
  return system.devices.empty() ? 0 : slowest;
}

// Adds one machine to the inputs. Each rate is that of the slowest machine.
void add_machine(const TopoSystem& system, const TopoPaths& paths, ModelInputs& in) {
  in.each = std::max(in.each, static_cast<int>(system.devices.size()));
  double pair = std::numeric_limits<double>::infinity(), nets = 0, slowest = pair;
  for (const int a : system.devices) {
    for (const int b : system.devices) {
      if (a != b) pair = std::min(pair, paths.gbps(a, b));
    }
  }
  for (const int net : system.nets) {
    double nearest = 0;  // the rate from the device that reaches the net fastest
    for (const int device : system.devices) nearest = std::max(nearest, paths.gbps(device, net));
    nets += nearest;
    slowest = std::min(slowest, nearest);
  }
  const double hub = nvswitch_gbps(system);
  const bool first = in.gpu_gbps == 0;
  in.gpu_gbps = first ? pair : std::min(in.gpu_gbps, pair);
  in.nvls_gbps = first ? hub : std::min(in.nvls_gbps, hub);
  if (const std::size_t count = system.nets.size(); count > 0) {
    const std::size_t gpus = system.devices.size();
    const double shares = static_cast<double>(count < gpus ? (gpus + count - 1) / count : 1);  // of the busiest net
    const double rail = slowest * static_cast<double>(count < gpus ? gpus : count / gpus * gpus) / shares;
    in.rail_gbps = first ? rail : std::min(in.rail_gbps, rail);
  }
  if (first || nets < in.net_gbps) {
    in.net_gbps = nets;
    in.nets = std::max<int>(static_cast<int>(system.nets.size()), 1);
  }
}

// The loads grow by the same amount with each further copy, once there are several.
AllToAllLoads loads_of(const topo::FoldedCluster& folded, NetReach reach) {
  const AllToAllLoads last = AllToAllLoads::of(folded.cluster, relays_of(folded.cluster), reach);
  if (folded.further == 0) return last;
  const Cluster fewer = topo::shortened(folded);
  const AllToAllLoads before = AllToAllLoads::of(fewer, relays_of(fewer), reach);
  const auto extended = [&](double AllToAllLoads::*load) {
    return last.*load + (last.*load - before.*load) * folded.further;
  };
  return {extended(&AllToAllLoads::direct), extended(&AllToAllLoads::handed_over), extended(&AllToAllLoads::between),
          extended(&AllToAllLoads::handed_on)};
}

}  // namespace

const char* protocol_name(Protocol protocol) {
  constexpr const char* kNames[] = {"LL", "LL128", "Simple"};
  return kNames[static_cast<std::size_t>(protocol)];
}

const GpuCosts& gpu_costs(const TopoSystem& system) {
  const std::vector<std::string> archs = topo::facts_of(system).gpu_archs;
  return archs.empty() ? by_sm(oldest_sm(system)) : by_arch(*std::ranges::min_element(archs));
}

std::span<const NetworkCosts> networks() { return kNetworks; }

const NetworkCosts* find_network(std::string_view name) {
  const auto found = std::ranges::find_if(kNetworks, [&](const NetworkCosts& one) { return name == one.name; });
  return found == std::end(kNetworks) ? nullptr : &*found;
}

NetworkCosts network_costs(const TopoSystem& system) {
  const topo::MachineFacts facts = topo::facts_of(system);
  NetworkCosts costs = kNetworks[0];
  for (const int vendor : facts.nic_vendors) {
    if (vendor == kAmazon) costs = *find_network(oldest_sm(system) >= 90 ? "efa2" : "efa");
    if (vendor == kGoogle) costs = *find_network("tcpxo");
  }
  costs.latency_us = std::max(costs.latency_us, facts.net_latency_us);
  return costs;
}

const char* gpu_algorithm_name(GpuAlgorithm algorithm) {
  constexpr const char* kNames[] = {"ring", "tree", "switch", "nvls", "nvls_tree", "doubling", "direct", "relay"};
  return kNames[static_cast<std::size_t>(algorithm)];
}

ModelInputs model_inputs(const topo::FoldedCluster& cluster, const ChannelPlan& plan, NetReach reach) {
  const topo::Fabric fabric(cluster.cluster, {});
  const TopoSystem& first = cluster.cluster.nodes.front();
  ModelInputs in{.gpu = gpu_costs(first), .network = network_costs(first)};
  in.ranks = cluster.ranks;
  in.machines = cluster.machines;
  in.channels = static_cast<int>(plan.channels.size());
  in.nvlink = plan.within <= TopoPathType::kNvl;
  in.ring_gbps = plan.ring_gbps;
  in.tree_gbps = plan.tree_gbps;
  in.switch_gbps = plan.switch_gbps;
  for (const int node : fabric.used_nodes()) {
    const TopoSystem& system = fabric.system(node);
    add_machine(system, fabric.paths(node), in);
    if (gpu_costs(system).memory_gbps < in.gpu.memory_gbps) in.gpu = gpu_costs(system);
    if (const NetworkCosts own = network_costs(system); own.latency_us > in.network.latency_us) in.network = own;
  }
  if (in.machines > 1) in.loads = loads_of(cluster, reach);
  return in;
}

double CollectiveModel::hop_us(Protocol protocol) const {
  const std::size_t at = index_of(protocol);
  return in_.gpu.hop_us[at] * (in_.nvlink ? 1 : kPciHopFactor[at]);
}

double CollectiveModel::net_us(Protocol protocol) const {
  const NetworkCosts& net = in_.network;
  const ByProtocol latencies = {1, net.ll128_latencies, net.simple_latencies};
  return net.latency_us * latencies[index_of(protocol)];
}

// The rate that the protocol reaches where Simple reaches `gbps`. LL's limit is stated as bus bandwidth; `per_bus`
// converts it to the unit of `gbps`.
double CollectiveModel::with(Protocol protocol, double gbps, double per_bus) const {
  if (in_.machines > 1) gbps *= in_.network.rate_share;
  if (protocol == Protocol::kSimple) return gbps;
  if (protocol == Protocol::kLl128) return gbps * in_.gpu.ll128_share;
  const double limit = in_.machines > 1 ? in_.network.ll_bus_gbps : in_.gpu.ll_bus_gbps;
  return std::min(limit * per_bus, gbps / 2);
}

CollectiveModel::Line CollectiveModel::ring(Collective kind, Protocol protocol) const {
  const double n = in_.ranks, twice = kind == Collective::kAllReduce ? 2 : 1;
  const bool chain = has_root(kind);  // all data passes each rank once; it is not divided into one block for each rank
  const double steps = twice * (n - 1), between = twice * (in_.machines - 1);
  // On several machines the proxy thread of the NIC posts each step of a ring, also the steps within a machine.
  const double posts = in_.machines > 1 ? in_.network.message_us * (protocol == Protocol::kSimple ? 3 : 1) : 0;
  const double data = chain ? 1 : steps / n;
  return {in_.gpu.launch_us + (steps - between) * std::max(hop_us(protocol), posts) + between * net_us(protocol),
          data * per_byte(with(protocol, in_.ring_gbps * in_.gpu.ring_share, 1))};
}

CollectiveModel::Line CollectiveModel::tree(Collective kind, Protocol protocol) const {
  const double ways = kind == Collective::kAllReduce ? 2 : 1;  // up and down
  const double rate = ways > 1 ? in_.tree_gbps : std::min(2 * in_.tree_gbps, in_.ring_gbps);
  return {in_.gpu.launch_us + ways * ((in_.each - 1) * hop_us(protocol) + levels(in_.machines) * net_us(protocol)),
          per_byte(with(protocol, rate * in_.gpu.tree_share, 0.5))};
}

CollectiveModel::Line CollectiveModel::through_switch(Protocol protocol) const {
  return {in_.gpu.launch_us + 2 * (in_.each - 1) * hop_us(protocol) + 2 * net_us(protocol),
          per_byte(with(protocol, in_.switch_gbps * in_.gpu.tree_share, 0.5))};
}

// Each GPU sends its data to the NVSwitch, then the sum of its own slice. It receives the same number of bytes.
CollectiveModel::Line CollectiveModel::nvls(Collective kind) const {
  const double data = kind == Collective::kAllReduce ? 1 + 1.0 / in_.each : 1;
  return {in_.gpu.launch_us + in_.gpu.nvls_us, data * per_byte(in_.nvls_gbps * in_.gpu.nvls_share)};
}

// The NVSwitch reduces within a machine, two trees between machines: each machine sends and receives all data twice,
// or once if there are two machines.
CollectiveModel::Line CollectiveModel::nvls_tree() const {
  const double between = in_.rail_gbps * in_.network.rate_share * in_.gpu.tree_share / (in_.machines > 2 ? 2 : 1);
  return {in_.gpu.launch_us + in_.gpu.nvls_us + 2 * levels(in_.machines) * net_us(Protocol::kSimple),
          std::max(nvls(Collective::kAllReduce).us_per_byte, per_byte(between))};
}

// Each round exchanges the whole data with one other rank: first within a machine, then over the network, where the
// ranks of a machine share its nets.
CollectiveModel::Line CollectiveModel::doubling(Protocol protocol) const {
  const double within = levels(in_.each), between = levels(in_.machines);
  const bool whole = std::has_single_bit(static_cast<unsigned>(in_.ranks));
  const double rest = whole ? 0 : 1;
  const double far = in_.machines > 1 ? per_byte(with(protocol, in_.net_gbps, 1) / in_.each) : 0;
  return {in_.gpu.launch_us + (within + rest) * hop_us(protocol) + between * net_us(protocol),
          (within + rest) * per_byte(with(protocol, in_.gpu_gbps * in_.gpu.ring_share, 1)) + between * far};
}

// Every rank sends to every other at once: a block, or in an all_reduce a share in each of two phases.
CollectiveModel::Line CollectiveModel::direct(Collective kind, Protocol protocol, double bytes) const {
  if (kind == Collective::kAllToAll) return exchange(false, protocol, bytes);
  const double n = in_.ranks, near = in_.each - 1, far = n - in_.each;
  const double phases = kind == Collective::kAllReduce ? 2 : 1;
  const bool rooted = has_root(kind);
  const bool blocks = kind != Collective::kBroadcast && kind != Collective::kReduce;  // each rank has its own data
  const double share = blocks ? 1 / n : 1;
  // The ranks of a machine share its nets; a root has one of them.
  const double own = rooted ? per_byte(with(protocol, in_.net_gbps / in_.nets, 1))
                            : in_.each * per_byte(with(protocol, in_.net_gbps, 1));
  const double within = near * share * per_byte(with(protocol, in_.gpu_gbps * in_.gpu.ring_share, 1));
  const double out = far > 0 ? far * share * own : 0;
  const double posts = far * in_.network.message_us * std::max(1.0, static_cast<double>(in_.each) / in_.nets);
  const double step = far > 0 ? net_us(protocol) + posts : hop_us(protocol);
  return {in_.gpu.launch_us + phases * step, phases * std::max(within, out)};
}

// An all_to_all. Directly, each rank sends a message to each rank of the other machines. Through relays, the relay
// sends one message for all ranks of its machine, after they have handed their blocks over.
CollectiveModel::Line CollectiveModel::exchange(bool relayed, Protocol protocol, double bytes) const {
  const double n = in_.ranks, far = n - in_.each;
  const double per_block = bytes / n / 1e3;  // microseconds of a block for a load of 1
  const double share = protocol == Protocol::kSimple ? in_.gpu.tree_share : in_.gpu.tree_share / 2;
  if (in_.machines == 1) {
    const double us = (n - 1) / n * per_byte(with(protocol, in_.gpu_gbps * in_.gpu.ring_share, 1));
    return {in_.gpu.launch_us + hop_us(protocol), us};
  }
  const double per_net = std::max(1.0, static_cast<double>(in_.each) / in_.nets);  // senders that share a NIC
  const double messages = relayed ? far / in_.each * per_net : far * per_net;
  const double posting = messages * in_.network.message_us;
  const double load = relayed ? in_.loads.between : in_.loads.direct;
  const double crossing = std::max(per_block * load / share, posting);
  const double handing = relayed ? per_block * (in_.loads.handed_over + in_.loads.handed_on) / share : 0;
  const double hops = relayed ? hop_us(protocol) * (in_.loads.handed_on > 0 ? 2 : 1) : 0;
  // The time of the bytes is part of the latency here: whether the bytes or the messages limit the NIC depends on the
  // size, so the time is not linear in the bytes.
  return {in_.gpu.launch_us + net_us(protocol) + hops + crossing + handing, 0};
}

bool CollectiveModel::has(GpuAlgorithm algorithm, Collective kind) const {
  const bool all_reduce = kind == Collective::kAllReduce;
  const bool reduces_here = in_.gpu.nvls_us > 0 && in_.nvls_gbps > 0;
  switch (algorithm) {
    case GpuAlgorithm::kSwitch: return all_reduce && in_.machines > 1;
    case GpuAlgorithm::kNvls:
      return reduces_here && in_.machines == 1 &&
             (all_reduce || kind == Collective::kAllGather || kind == Collective::kReduceScatter);
    case GpuAlgorithm::kNvlsTree: return reduces_here && in_.machines > 1 && all_reduce;
    // The others are possible if there are schedules that do the same by messages.
    case GpuAlgorithm::kRing: return find_schedule(Algorithm::kRing, kind) != nullptr;
    case GpuAlgorithm::kTree: return find_schedule(Algorithm::kTree, kind) != nullptr;
    case GpuAlgorithm::kDoubling: return find_schedule(Algorithm::kDoubling, kind) != nullptr;
    case GpuAlgorithm::kDirect: return find_schedule(Algorithm::kDirect, kind) != nullptr;
    case GpuAlgorithm::kRelay:
      return in_.machines > 1 && in_.each > 1 && find_schedule(Algorithm::kRelay, kind) != nullptr;
  }
  return false;
}

std::optional<CollectiveModel::Line> CollectiveModel::line(GpuAlgorithm algorithm, Collective kind, Protocol protocol,
                                                           double bytes) const {
  const bool by_switch = algorithm == GpuAlgorithm::kNvls || algorithm == GpuAlgorithm::kNvlsTree;
  if (by_switch && protocol != Protocol::kSimple) return std::nullopt;
  const bool ordered = in_.machines == 1 || in_.network.ll128_latencies > 0;
  const bool pairwise = algorithm == GpuAlgorithm::kDirect || algorithm == GpuAlgorithm::kRelay;
  if (protocol == Protocol::kLl128 && (!in_.nvlink || !ordered || pairwise)) return std::nullopt;
  switch (algorithm) {
    case GpuAlgorithm::kRing: return ring(kind, protocol);
    case GpuAlgorithm::kTree: return tree(kind, protocol);
    case GpuAlgorithm::kSwitch: return through_switch(protocol);
    case GpuAlgorithm::kNvls: return nvls(kind);
    case GpuAlgorithm::kNvlsTree: return nvls_tree();
    case GpuAlgorithm::kDoubling: return doubling(protocol);
    case GpuAlgorithm::kDirect: return direct(kind, protocol, bytes);
    case GpuAlgorithm::kRelay: return exchange(true, protocol, bytes);
  }
  return std::nullopt;
}

void CollectiveModel::add_terms(GpuAlgorithm algorithm, Collective kind, double bytes, std::vector<Term>& terms) const {
  if (in_.ranks < 2 || !has(algorithm, kind)) return;
  for (const Protocol protocol : kAllProtocols) {
    const std::optional<Line> found = line(algorithm, kind, protocol, bytes);
    if (found) terms.push_back({algorithm, protocol, found->latency_us, bytes * found->us_per_byte});
  }
}

std::optional<Estimate> CollectiveModel::fastest(const std::vector<Term>& terms) const {
  std::optional<Estimate> best;
  for (const Term& term : terms) {
    const double us = term.us(factors_);
    if (best && us >= best->us) continue;
    const bool by_channels = term.algorithm == GpuAlgorithm::kRing || term.algorithm == GpuAlgorithm::kTree ||
                             term.algorithm == GpuAlgorithm::kSwitch;
    best = {term.algorithm, term.protocol, us, by_channels ? in_.channels : 1};
  }
  return best;
}

std::optional<Estimate> CollectiveModel::estimate(GpuAlgorithm algorithm, Collective kind, double bytes) const {
  std::vector<Term> terms;
  add_terms(algorithm, kind, bytes, terms);
  return fastest(terms);
}

std::vector<CollectiveModel::Term> CollectiveModel::choice_terms(Collective kind, double bytes) const {
  std::vector<Term> terms;
  for (const GpuAlgorithm algorithm : kGpuAlgorithms) {
    // NCCL has no doubling, and uses a switch in the network only with a plug-in. It sends directly only if each rank
    // has a block for each other rank.
    const bool pairwise = algorithm == GpuAlgorithm::kDirect || algorithm == GpuAlgorithm::kRelay;
    if (algorithm == GpuAlgorithm::kSwitch || algorithm == GpuAlgorithm::kDoubling) continue;
    if (pairwise && find_schedule(Algorithm::kRing, kind)) continue;
    add_terms(algorithm, kind, bytes, terms);
  }
  return terms;
}

Estimate CollectiveModel::choice(Collective kind, double bytes) const {
  const std::optional<Estimate> best = fastest(choice_terms(kind, bytes));
  if (!best)
    base::fail(ErrorCode::kInvalidValue, {}, "no algorithm for {} of {} ranks", collective_name(kind), in_.ranks);
  return *best;
}

}  // namespace slip::comm
