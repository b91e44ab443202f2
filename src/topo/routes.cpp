// Routes that rings and trees do not cover. rail_routes(): from the ranks of a machine to the ranks of other machines,
// along the rails. A rail is the set of nets with the same number on all machines. relieve_nics(): around the
// overloaded PCI switch of a NIC.
#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>

#include "base/fail.hpp"
#include "slip/topology.hpp"
#include "topo/fabric.hpp"

namespace slip {
namespace {

using topo::Fabric;
using topo::node_at;

// The rank with the nearest path type to a net, then with the highest rate. `number` chooses among equal ranks.
int rank_beside(const Fabric& fabric, int node, int net, int number) {
  const TopoPaths& paths = fabric.paths(node);
  const std::vector<int>& ranks = fabric.ranks_of(node);
  return ranks[topo::nearest(ranks.size(), number, [&](std::size_t i) {
    const int device = fabric.device_of(ranks[i]);
    return std::tuple(paths.type(device, net), -paths.gbps(device, net));
  })];
}

// Whether a device hands its data over to a relay if the path between them has this type. GPUs use NVLink only, because
// the relay exists to avoid slower paths. Cores of one NUMA node share its memory.
bool hands_over(const TopoSystem& system, int device, TopoPathType type) {
  const bool gpu = node_at(system, device).kind == TopoKind::kGpu;
  return gpu ? type <= TopoPathType::kNvl : type <= TopoPathType::kPhb;
}

// The ancestor directly below the CPU: the PCI switch above the node, or the node itself.
int below_cpu(const TopoSystem& system, int node) {
  for (;;) {
    const int parent = node_at(system, node).parent;
    if (parent < 0 || node_at(system, parent).kind == TopoKind::kCpu) return node;
    node = parent;
  }
}

double uplink_gbps(const TopoSystem& system, int node) {
  return topo::link_gbps(system, node, node_at(system, node).parent);
}

bool holds_net(const TopoSystem& system, int top) {
  return std::ranges::any_of(system.nets, [&](int net) { return below_cpu(system, net) == top; });
}

// The rate in GB/s at which the GPUs exchange data with a net through the CPU's memory. All bytes pass the uplink of
// the NIC's PCI switch once, for the NIC. The bytes of GPUs below that switch pass it again. Other uplinks carry the
// bytes of the GPUs below them. `parts`: by device, how many devices' data it transfers, its own included.
double host_rate(const TopoSystem& system, int net, const std::vector<int>& parts) {
  const int nic_top = below_cpu(system, net);
  const auto devices = static_cast<double>(system.devices.size());
  double result = 1e9;
  for (const int device : system.devices) {
    const int top = below_cpu(system, device);
    double load = top == nic_top ? 1 : 0;
    for (std::size_t other = 0; other < system.devices.size(); ++other) {
      if (below_cpu(system, system.devices[other]) == top) load += parts[other] / devices;
    }
    if (load > 0) result = std::min(result, uplink_gbps(system, top) / load);
  }
  for (const TopoLink& link : system.links) {
    if (link.to == net) result = std::min(result, link.gbps);
  }
  return std::min(result, uplink_gbps(system, nic_top));
}

// Returns the device that transfers the least data; -1: none. Only devices that NVLink connects to `from`, and that
// share no PCI switch with a net, are considered. `parts`: see host_rate().
int least_loaded(const TopoSystem& system, const TopoPaths& paths, int from, const std::vector<int>& parts) {
  int best = -1;
  for (std::size_t other = 0; other < system.devices.size(); ++other) {
    const bool free = !holds_net(system, below_cpu(system, system.devices[other])) &&
                      paths.type(from, system.devices[other]) == TopoPathType::kNvl;
    if (free && (best < 0 || parts[other] < parts[static_cast<std::size_t>(best)])) best = static_cast<int>(other);
  }
  return best;
}

// Finds ranks that relieve the PCI switch of a net. Without GPUDirect RDMA the data of a net goes through CPU memory.
// So the data of GPUs below the net's own switch passes that switch's uplink twice. Ranks of GPUs below other switches
// avoid this.
class SwitchRelief {
 public:
  explicit SwitchRelief(const Fabric& fabric) : fabric_(fabric) {}

  // Returns the rank that sends or receives through the net in place of `rank`. NVLink connects the two. If `rank` is
  // -1, the result takes the place of any rank of the node, with or without NVLink. `number` chooses among several such
  // ranks. Returns -1 if there is none, if the net has GPUDirect RDMA, or if the transfer would not be faster.
  int rank_for(int node, int net, int rank, int number) {
    const TopoSystem& system = fabric_.system(node);
    const int port = system.nets[static_cast<std::size_t>(net)];
    if (node_at(system, port).gdr || !gains(node, net)) return -1;
    std::vector<int> ranks;
    for (const int other : fabric_.ranks_of(node)) {
      const int device = fabric_.device_of(other);
      const bool reached = rank < 0 || fabric_.paths(node).type(fabric_.device_of(rank), device) == TopoPathType::kNvl;
      if (reached && !holds_net(system, below_cpu(system, device))) ranks.push_back(other);
    }
    return ranks.empty() ? -1 : ranks[static_cast<std::size_t>(number) % ranks.size()];
  }
  bool is_beside(int node, int net, int rank) const {
    const TopoSystem& system = fabric_.system(node);
    return below_cpu(system, fabric_.device_of(rank)) == below_cpu(system, system.nets[static_cast<std::size_t>(net)]);
  }

 private:
  // Whether relieve_nics() found that other GPUs make the exchange with this net faster.
  bool gains(int node, int net) {
    const auto [known, fresh] = reliefs_.try_emplace(fabric_.system(node).xml);
    if (fresh) known->second = relieve_nics(fabric_.system(node));
    return std::ranges::any_of(known->second, [&](const NicRelief& one) { return one.net == net; });
  }

  const Fabric& fabric_;
  std::map<std::string_view, std::vector<NicRelief>> reliefs_;  // by the XML of the machine
};

// Adds the routes from `from_node` to the rank `to`. One joint route goes through a relay. Each sender that does not
// hand its data over to that relay gets a route of its own.
void add_routes(const Fabric& fabric, SwitchRelief& relief, int from_node, int to, int number,
                std::vector<RailRoute>& routes) {
  const int to_node = fabric.node_of(to);
  const TopoSystem &there = fabric.system(to_node), &here = fabric.system(from_node);
  const TopoPaths &far = fabric.paths(to_node), &near = fabric.paths(from_node);
  const int in_net = topo::nearest_net(there, far, fabric.device_of(to), number);
  const int out_net = in_net % static_cast<int>(here.nets.size());
  const int net = here.nets[static_cast<std::size_t>(out_net)];
  const double arriving = far.gbps(there.nets[static_cast<std::size_t>(in_net)], fabric.device_of(to));
  // Ranks below other PCI switches, or -1: `away` sends as the relay, `taker` receives in place of `to`.
  const int away = relief.rank_for(from_node, out_net, -1, number);
  const int taker = relief.is_beside(to_node, in_net, to) ? relief.rank_for(to_node, in_net, to, number) : -1;
  RailRoute joint{.to = to,
                  .relay = away >= 0 ? away : rank_beside(fabric, from_node, net, number),
                  .out_net = out_net,
                  .in_net = in_net,
                  .senders = {},
                  .arrival = taker >= 0 ? taker : to,
                  .spares_out = away >= 0,
                  .spares_in = taker >= 0};
  const int relay = fabric.device_of(joint.relay);
  joint.gbps = std::min(arriving, near.gbps(relay, net));
  std::vector<RailRoute> alone;
  for (const int sender : fabric.ranks_of(from_node)) {
    const int device = fabric.device_of(sender);
    const TopoPathType type = near.type(device, relay);
    if (!hands_over(here, device, type)) {
      RailRoute own = joint;
      own.relay = sender;
      own.gather = TopoPathType::kLoc;
      own.gbps = std::min(arriving, near.gbps(device, net));
      own.senders = {sender};
      own.spares_out = false;
      alone.push_back(std::move(own));
      continue;
    }
    joint.senders.push_back(sender);
    joint.gather = std::max(joint.gather, type);
    if (sender != joint.relay) joint.gbps = std::min(joint.gbps, near.gbps(device, relay));
  }
  routes.push_back(std::move(joint));
  routes.insert(routes.end(), alone.begin(), alone.end());
}

}  // namespace

std::vector<RailRoute> rail_routes(const Cluster& cluster, int from_node, Here here) {
  const Fabric fabric(cluster, here);
  if (std::ranges::find(fabric.used_nodes(), from_node) == fabric.used_nodes().end())
    base::fail(ErrorCode::kInvalidValue, here, "no ranks on node {}", from_node);
  for (const int node : fabric.used_nodes()) {
    if (fabric.system(node).nets.empty())
      base::fail(ErrorCode::kInvalidValue, here, "node {} ('{}') has no net", node, fabric.system(node).name);
  }
  std::vector<RailRoute> routes;
  SwitchRelief relief(fabric);
  for (const int node : fabric.used_nodes()) {
    if (node == from_node) continue;
    for (std::size_t i = 0; i < fabric.ranks_of(node).size(); ++i)
      add_routes(fabric, relief, from_node, fabric.ranks_of(node)[i], static_cast<int>(i), routes);
  }
  return routes;
}

std::vector<NicRelief> relieve_nics(const TopoSystem& system) {
  std::vector<NicRelief> result;
  if (system.devices.empty() || node_at(system, system.devices[0]).kind != TopoKind::kGpu) return result;
  const TopoPaths paths(system);
  for (std::size_t n = 0; n < system.nets.size(); ++n) {
    NicRelief relief{static_cast<int>(n), {}, 0, 0};
    std::vector<int> parts(system.devices.size(), 1);
    relief.gbps_before = host_rate(system, system.nets[n], parts);
    for (std::size_t from = 0; from < system.devices.size(); ++from) {
      if (below_cpu(system, system.devices[from]) != below_cpu(system, system.nets[n])) continue;
      const int to = least_loaded(system, paths, system.devices[from], parts);
      if (to < 0) continue;
      relief.moves.push_back({static_cast<int>(from), to});
      parts[static_cast<std::size_t>(to)] += parts[from];
      parts[from] = 0;
    }
    relief.gbps_after = host_rate(system, system.nets[n], parts);
    if (!relief.moves.empty() && relief.gbps_after > relief.gbps_before) result.push_back(std::move(relief));
  }
  return result;
}

}  // namespace slip
