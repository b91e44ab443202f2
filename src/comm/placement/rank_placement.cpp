#include "comm/placement/rank_placement.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/hash.hpp"
#include "base/terminal.hpp"
#include "store/topology_file.hpp"

namespace slip::comm {
namespace {

constexpr const char* kPlainMachine =
    R"(<system version="1"><cpu numaid="0"><nic><net name="tcp" dev="0" speed="10000" gdr="0"/></nic></cpu></system>)";

// The topology that the first rank of a host has read or probed.
struct HostTopology {
  std::uint64_t document = 0;  // a hash of the document; 0: the topology is not used
  std::int32_t code = 0;       // of an error; `text` is its text
  std::int32_t by_numa = 0;    // 1: the devices are the NUMA nodes
  char text[496] = {};
};

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

std::string file_text(const RankLocation& one) {
  return one.file == 0 ? std::string("no topology file") : fmt::format("the topology file '{}'", one.file_name);
}

void require_same_file(const std::vector<int>& members, const std::vector<RankLocation>& ranks, Here here) {
  for (const int rank : members) {
    const RankLocation &first = ranks[at(members.front())], &other = ranks[at(rank)];
    if (other.file == first.file) continue;
    base::fail(ErrorCode::kMismatch, here,
               "rank {} has {}, rank {} of the same host {}: give all ranks of a host the same "
               "SLIP_TOPO_FILE (or option topology), or none",
               members.front(), file_text(first), rank, file_text(other));
  }
}

// Whether each rank of the host is bound to one NUMA node, and the ranks are bound to at least two nodes.
bool are_apart(const std::vector<int>& members, const std::vector<RankLocation>& ranks) {
  std::set<int> nodes;
  for (const int rank : members) nodes.insert(ranks[at(rank)].numa);
  return nodes.size() > 1 && !nodes.contains(-1);
}

// Returns `system` with its NUMA nodes as the devices.
TopoSystem by_numa_nodes(TopoSystem system) {
  system.devices.clear();
  for (std::size_t node = 0; node < system.nodes.size(); ++node) {
    if (system.nodes[node].kind == TopoKind::kCpu) system.devices.push_back(static_cast<int>(node));
  }
  return system;
}

constexpr std::uint64_t kTopologyTag = 0x7e873577;  // of the bootstrap messages with a topology document

// Collective: all ranks pass the same `owner`, and each gets the text of that rank. The text travels along a binomial
// tree, so that no rank sends it more than ceil(log2(nranks)) times. Let r be the number of a rank relative to the
// owner. The rank receives the text from r minus its lowest set bit, and sends it to r plus each smaller power of two.
std::string broadcast_text(transport::Bootstrap& bootstrap, int owner, const std::string& text) {
  const int nranks = bootstrap.nranks();
  const auto rank_at = [&](int relative) { return (relative + owner) % nranks; };
  const int own = (bootstrap.rank() - owner + nranks) % nranks;
  std::string received = text;
  int bit = 1;
  while (bit < nranks && (own & bit) == 0) bit <<= 1;
  if (own != 0) {
    const std::vector<std::byte> bytes = bootstrap.recv(rank_at(own ^ bit), kTopologyTag);
    received.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (own + bit < nranks) bootstrap.send(rank_at(own + bit), kTopologyTag, std::as_bytes(std::span(received)));
  }
  return received;
}

class PlacementFinder {
 public:
  PlacementFinder(transport::Bootstrap& bootstrap, RankPlacement& placement, Here here)
      : bootstrap_(bootstrap), placement_(placement), here_(here), members_(members_of(placement.hosts)) {}

  void run(const std::string& file) {
    if (placement_.hosts.size() == 1) {
      placement_.reasons.emplace_back("no topology: there is only one rank");
      return;
    }
    bool any = false;
    for (const auto& [host, members] : members_) {
      require_same_file(members, placement_.ranks, here_);
      const bool has_file = placement_.ranks[at(host)].file != 0, apart = are_apart(members, placement_.ranks);
      any = any || has_file || apart;
      placement_.reasons.push_back(has_file ? fmt::format("topology of file '{}'", placement_.ranks[at(host)].file_name)
                                   : apart
                                       ? "probed topology: its ranks are bound to several NUMA nodes"
                                       : "no topology: no file is given, and its ranks are not bound to several NUMA "
                                         "nodes");
    }
    if (!any) return;
    const std::vector<HostTopology> found = bootstrap_.all_gather(read_or_probe(file));
    require_found(found);
    receive_documents(found);
    placement_.cluster.emplace();
    placement_.cluster->ranks.resize(placement_.hosts.size());
    for (const auto& [host, members] : members_) add_host(found[at(host)], members);
  }

 private:
  // Reads or probes the topology on the first rank of a host. Returns an error instead of throwing it, because all
  // ranks must throw it.
  HostTopology read_or_probe(const std::string& file) {
    HostTopology found;
    const auto own = members_.find(bootstrap_.rank());
    if (own == members_.end()) return found;
    try {
      const bool apart = are_apart(own->second, placement_.ranks);
      if (!file.empty()) document_ = read_topology(file, {}).xml;
      else if (apart) document_ = store::probed_topology({}).xml;
      if (!document_.empty()) found.document = base::hash_of(document_);
      found.by_numa = file.empty() && apart ? 1 : 0;
    } catch (const Error& error) {
      found.code = static_cast<std::int32_t>(error.code());
      std::string_view(error.what()).copy(found.text, sizeof(found.text) - 1);
    }
    return found;
  }

  void require_found(const std::vector<HostTopology>& found) const {
    for (const auto& [host, members] : members_) {
      const HostTopology& one = found[at(host)];
      if (one.code == 0) continue;
      const bool has_file = placement_.ranks[at(host)].file != 0;
      base::fail(static_cast<ErrorCode>(one.code), here_, "rank {} on host '{}' cannot {} of its host: {}; {}", host,
                 bootstrap_.placements()[at(host)].host, has_file ? "use the topology file" : "probe the topology",
                 one.text,
                 has_file ? "give another SLIP_TOPO_FILE (or option topology), or none"
                          : "name a file with SLIP_TOPO_FILE, or do not bind ranks to NUMA nodes");
    }
  }

  void receive_documents(const std::vector<HostTopology>& found) {
    for (const auto& [host, members] : members_) {
      const std::uint64_t document = found[at(host)].document;
      if (document == 0 || known_.contains(document)) continue;
      known_[document] = parse_topology(broadcast_text(bootstrap_, host, document_), document_name(host), here_);
    }
  }

  std::string document_name(int host) const {  // for parse errors
    const RankLocation& one = placement_.ranks[at(host)];
    return one.file == 0 ? fmt::format("host {}", bootstrap_.placements()[at(host)].host) : std::string(one.file_name);
  }

  void add_host(const HostTopology& found, const std::vector<int>& members) {
    Cluster& cluster = *placement_.cluster;
    const auto node = static_cast<int>(cluster.nodes.size());
    TopoSystem system = found.document == 0 ? plain_machine() : known_[found.document];
    if (found.by_numa != 0) system = by_numa_nodes(std::move(system));
    for (std::size_t i = 0; i < members.size(); ++i) {
      const RankLocation& one = placement_.ranks[at(members[i])];
      int device = 0;
      if (found.by_numa != 0) device = device_of_numa(system, one.numa, members[i]);
      else if (found.document != 0) device = one.device >= 0 ? one.device : static_cast<int>(i);
      require_device(system, device, members[i], one.device >= 0);
      cluster.ranks[at(members[i])] = {node, device};
    }
    cluster.nodes.push_back(std::move(system));
  }

  int device_of_numa(const TopoSystem& system, int numa, int rank) const {
    for (std::size_t i = 0; i < system.devices.size(); ++i) {
      if (system.nodes[at(system.devices[i])].index == numa) return static_cast<int>(i);
    }
    base::fail(ErrorCode::kInvalidDevice, here_,
               "rank {} is bound to NUMA node {}, which hwloc does not report on host '{}': name a file "
               "with SLIP_TOPO_FILE, or do not bind ranks",
               rank, numa, bootstrap_.placements()[at(rank)].host);
  }

  void require_device(const TopoSystem& system, int device, int rank, bool asked) const {
    if (device >= 0 && at(device) < system.devices.size()) return;
    base::fail(
        ErrorCode::kInvalidValue, here_,
        "rank {} has topology device {} ({}) of '{}', which has {} devices: give a file with more devices, choose "
        "a device with SLIP_TOPO_DEVICE (or option topo_device; several ranks may share a device), or start "
        "fewer ranks on the host",
        rank, device, asked ? "set by SLIP_TOPO_DEVICE or topo_device" : "its index among the ranks of the host",
        system.name, system.devices.size());
  }

  transport::Bootstrap& bootstrap_;
  RankPlacement& placement_;
  const Here here_;
  const std::map<int, std::vector<int>> members_;
  std::string document_;                       // the document that this rank has read or probed
  std::map<std::uint64_t, TopoSystem> known_;  // by the hash of the document
};

std::string net_name(const TopoSystem& system, int net) { return system.nodes[at(system.nets[at(net)])].name; }

std::string route_text(const Cluster& cluster, const RailRoute& route) {
  const TopoSystem& here = cluster.nodes[at(cluster.ranks[at(route.relay)].node)];
  const TopoSystem& there = cluster.nodes[at(cluster.ranks[at(route.to)].node)];
  std::string text;
  if (route.senders == std::vector{route.relay})
    text = fmt::format("    to {}: {} sends directly", route.to, route.relay);
  else
    text = fmt::format("    to {}: {} through relay {} (path {})", route.to, fmt::join(route.senders, " "), route.relay,
                       topo_path_name(route.gather));
  text += fmt::format(", {} to {}", net_name(here, route.out_net), net_name(there, route.in_net));
  text += route.spares_out ? ", relay not below the PCI switch of the net" : "";
  if (route.spares_in) text += fmt::format(", received by {}, not below the PCI switch of its net", route.arrival);
  return text + fmt::format(", {:.3g} GB/s\n", route.gbps);
}

}  // namespace

RankLocation RankLocation::own(const CommunicatorOptions& options, int inherited_device) {
  RankLocation result;
  result.cores = base::core_set();
  result.numa = store::numa_node_of(result.cores);
  const std::string& file = topology_file(options);
  if (file.empty()) return result;
  result.file = base::hash_of(file);
  constexpr std::size_t kMax = sizeof(result.file_name) - 1;
  const std::string name = file.size() <= kMax ? file : "..." + file.substr(file.size() - kMax + 3);
  name.copy(result.file_name, kMax);
  const int asked = options.topo_device >= 0 ? options.topo_device : base::env().topo_device;
  result.device = asked >= 0 ? asked : inherited_device;
  return result;
}

int RankPlacement::device_of(int rank) const {
  return cluster && ranks[at(rank)].file != 0 ? cluster->ranks[at(rank)].device : -1;
}

std::vector<int> hosts_of(const std::vector<transport::Placement>& placements,
                          const std::vector<RequestedOptions>& requested) {
  std::vector<int> hosts(placements.size(), -1);
  for (std::size_t i = 0; i < placements.size(); ++i) {
    for (std::size_t j = 0; j < i && hosts[i] < 0; ++j) {
      if (transport::share_memory(placements[i], placements[j]) && requested[i].host == requested[j].host)
        hosts[i] = hosts[j];
    }
    if (hosts[i] < 0) hosts[i] = static_cast<int>(i);
  }
  return hosts;
}

RankPlacement find_rank_placement(transport::Bootstrap& bootstrap, std::vector<int> hosts, const RankLocation& own,
                                  const std::string& file, Here here) {
  RankPlacement placement;
  placement.hosts = std::move(hosts);
  placement.ranks = bootstrap.all_gather(own);
  PlacementFinder(bootstrap, placement, here).run(file);
  return placement;
}

std::vector<CommGraph> agree_on_comm_graphs(transport::Bootstrap& bootstrap, const RankPlacement& placement,
                                            int channels, Here here) {
  std::vector<CommGraph> graphs;
  if (placement.cluster) {
    const ChannelPlan plan = plan_channels(*placement.cluster, {.max_channels = channels}, here);
    graphs = comm_graphs(*placement.cluster, plan, channels);
  } else {
    graphs = comm_graphs(placement.hosts, channels);
  }
  require_agreement(bootstrap, graphs, here);
  if (bootstrap.rank() == 0 && base::debugs("topo"))
    base::log_line(fmt::format("{} ranks:\n{}{}{}", placement.hosts.size(),
                               placement_text(placement, bootstrap.placements()), rings_text(graphs),
                               relays_text(placement, graphs.front().relays)));
  return graphs;
}

void require_agreement(transport::Bootstrap& bootstrap, const std::vector<CommGraph>& own, Here here) {
  const std::vector<std::uint64_t> digests = bootstrap.all_gather(digest(own));
  const auto other = std::ranges::find_if(digests, [&](std::uint64_t one) { return one != digests[0]; });
  if (other == digests.end()) return;
  struct RingsText {  // the beginning of rings_text()
    char text[400] = {};
  } own_text;
  rings_text(own).copy(own_text.text, sizeof(own_text.text) - 1);
  const std::vector<RingsText> texts = bootstrap.all_gather(own_text);
  const auto rank = static_cast<int>(other - digests.begin());
  base::fail(ErrorCode::kMismatch, here,
             "rank 0 finds other rings, trees or relays than rank {}: start the same build of Slipstream "
             "on all hosts. Rank 0:\n{}rank {}:\n{}",
             rank, texts[0].text, rank, texts[at(rank)].text);
}

TopologyNics topology_nics(const RankPlacement& placement, const std::vector<CommGraph>& graphs, int rank) {
  TopologyNics result;
  if (!placement.cluster) return result;
  const int node = placement.cluster->ranks[at(rank)].node;
  const TopoSystem& system = placement.cluster->nodes[at(node)];
  for (const int net : system.nets) {
    constexpr std::string_view kPrefix = "net ";  // of TopoNode::name
    const TopoNode& port = system.nodes[at(net)];
    result.nics.push_back({port.name.substr(kPrefix.size()), system.nodes[at(port.parent)].bus_id});
  }
  for (const CommGraph& graph : graphs) {
    if (at(node) < graph.nets.size() && graph.nets[at(node)] >= 0) result.by_channel.push_back(graph.nets[at(node)]);
  }
  if (result.by_channel.size() < graphs.size()) result.by_channel.clear();
  return result;
}

TopoSystem plain_machine() { return parse_topology(kPlainMachine, "a machine", {}); }

std::string placement_text(const RankPlacement& placement, const std::vector<transport::Placement>& placements) {
  std::string text;
  std::size_t number = 0;
  for (const auto& [host, ranks] : members_of(placement.hosts)) {
    text += fmt::format("  host '{}', {}: ranks", placements[at(host)].host, placement.reasons[number++]);
    for (const int rank : ranks) {
      text += fmt::format(" {}", rank);
      if (!placement.cluster) continue;
      const RankPlace& place = placement.cluster->ranks[at(rank)];
      const TopoSystem& system = placement.cluster->nodes[at(place.node)];
      text += fmt::format(" ({})", system.nodes[at(system.devices[at(place.device)])].name);
    }
    text += "\n";
  }
  return text;
}

std::string relays_text(const RankPlacement& placement, const Relays& relays) {
  std::string text;
  const auto nranks = static_cast<int>(placement.hosts.size());
  for (int host = 0; host < nranks; ++host) {
    if (placement.hosts[at(host)] != host || relays.beside(host).size() == placement.hosts.size()) continue;
    text += fmt::format("  relays of rank {}'s host{}\n", host,
                        placement.cluster ? "" : ", by the numbers of the ranks on their hosts");
    if (placement.cluster) {
      for (const RailRoute& route : rail_routes(*placement.cluster, placement.cluster->ranks[at(host)].node))
        text += route_text(*placement.cluster, route);
      continue;
    }
    for (int to = 0; to < nranks; ++to) {
      if (!relays.same_host(host, to)) text += fmt::format("    to {}: through {}\n", to, relays.via(host, to));
    }
  }
  return text;
}

}  // namespace slip::comm
