#include "comm/placement/places.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/env.hpp"
#include "base/hash.hpp"
#include "base/terminal.hpp"
#include "comm/placement/spread_text.hpp"
#include "store/topology_file.hpp"

namespace slip {
namespace {

constexpr const char* kPlainMachine =
    R"(<system version="1"><cpu numaid="0"><nic><net name="tcp" dev="0" speed="10000" gdr="0"/></nic></cpu></system>)";

// What the first rank of a host has found.
struct Found {
  std::uint64_t document = 0;  // its hash; 0: nothing of the machine counts
  std::int32_t code = 0;       // of what went wrong, which is in the text
  std::int32_t by_numa = 0;    // ranks stand for NUMA nodes
  char text[496] = {};
};

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

// Hosts by their first rank, with all their ranks.
std::map<int, std::vector<int>> members_of(const std::vector<int>& hosts) {
  std::map<int, std::vector<int>> members;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) members[hosts[rank]].push_back(static_cast<int>(rank));
  return members;
}

std::string given(const Presence& one) {
  return one.file == 0 ? std::string("no topology file") : fmt::format("the topology file '{}'", one.file_name);
}

void require_same_file(const std::vector<int>& members, const std::vector<Presence>& ranks, Here here) {
  for (const int rank : members) {
    const Presence &first = ranks[at(members.front())], &other = ranks[at(rank)];
    if (other.file == first.file) continue;
    throw Error(Code::kMismatch,
                fmt::format("rank {} has {}, rank {} of the same host {}: give all ranks of a host the same "
                            "SLIP_TOPO_FILE (or option topology), or none",
                            members.front(), given(first), rank, given(other)),
                here);
  }
}

// Whether the ranks of a host are bound to NUMA nodes, and to more than one.
bool are_apart(const std::vector<int>& members, const std::vector<Presence>& ranks) {
  std::set<int> nodes;
  for (const int rank : members) nodes.insert(ranks[at(rank)].numa);
  return nodes.size() > 1 && !nodes.contains(-1);
}

class Finding {
 public:
  Finding(Bootstrap& bootstrap, Places& places, Here here)
      : bootstrap_(bootstrap), places_(places), here_(here), members_(members_of(places.hosts)) {}

  void run(const std::string& file) {
    if (places_.hosts.size() == 1) {  // there is nobody to be near to
      places_.reasons.emplace_back("alone");
      return;
    }
    bool any = false;
    for (const auto& [host, members] : members_) {
      require_same_file(members, places_.ranks, here_);
      const bool has_file = places_.ranks[at(host)].file != 0, apart = are_apart(members, places_.ranks);
      any = any || has_file || apart;
      places_.reasons.push_back(has_file ? fmt::format("as '{}' says", places_.ranks[at(host)].file_name)
                                : apart  ? "as probed: its ranks are bound to several NUMA nodes"
                                         : "one place: no file is given, and its ranks are not bound to several NUMA "
                                           "nodes");
    }
    if (!any) return;
    const std::vector<Found> found = bootstrap_.all_gather(look(file));
    require_found(found);
    hear_documents(found);
    places_.cluster.emplace();
    places_.cluster->ranks.resize(places_.hosts.size());
    for (const auto& [host, members] : members_) add_host(found[at(host)], members);
  }

 private:
  // On the first rank of a host; what is wrong is for all to hear.
  Found look(const std::string& file) {
    Found found;
    const auto own = members_.find(bootstrap_.rank());
    if (own == members_.end()) return found;
    try {
      const bool apart = are_apart(own->second, places_.ranks);
      if (!file.empty()) document_ = read_topology(file, {}).xml;
      else if (apart) document_ = probed_topology({}).xml;
      if (!document_.empty()) found.document = hash_of(document_);
      found.by_numa = file.empty() && apart ? 1 : 0;
    } catch (const Error& error) {
      found.code = static_cast<std::int32_t>(error.code());
      std::string_view(error.what()).copy(found.text, sizeof(found.text) - 1);
    }
    return found;
  }

  void require_found(const std::vector<Found>& found) const {
    for (const auto& [host, members] : members_) {
      const Found& one = found[at(host)];
      if (one.code == 0) continue;
      throw Error(static_cast<Code>(one.code),
                  fmt::format("rank {} on host '{}' cannot use the topology file of its host: {}; give another "
                              "SLIP_TOPO_FILE (or option topology), or none",
                              host, bootstrap_.placements()[at(host)].host, one.text),
                  here_);
    }
  }

  void hear_documents(const std::vector<Found>& found) {
    for (const auto& [host, members] : members_) {
      const std::uint64_t document = found[at(host)].document;
      if (document == 0 || known_.contains(document)) continue;
      known_[document] = parse_topology(spread_text(bootstrap_, host, document_), reason_of(host), here_);
    }
  }

  std::string reason_of(int host) const {
    const Presence& one = places_.ranks[at(host)];
    return one.file == 0 ? fmt::format("host {}", bootstrap_.placements()[at(host)].host) : std::string(one.file_name);
  }

  void add_host(const Found& found, const std::vector<int>& members) {
    Cluster& cluster = *places_.cluster;
    const auto node = static_cast<int>(cluster.nodes.size());
    TopoSystem system = found.document == 0 ? plain_machine() : known_[found.document];
    if (found.by_numa != 0) system = by_numa_nodes(std::move(system));
    for (std::size_t i = 0; i < members.size(); ++i) {
      const Presence& one = places_.ranks[at(members[i])];
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
    throw Error(Code::kInvalidDevice,
                fmt::format("rank {} is bound to NUMA node {}, of which hwloc knows nothing on host '{}': name a file "
                            "with SLIP_TOPO_FILE, or do not bind ranks",
                            rank, numa, bootstrap_.placements()[at(rank)].host),
                here_);
  }

  void require_device(const TopoSystem& system, int device, int rank, bool asked) const {
    if (device >= 0 && at(device) < system.devices.size()) return;
    throw Error(Code::kInvalidValue,
                fmt::format("rank {} stands for device {} of '{}' ({}), which has {}: give a file with more, name one "
                            "with SLIP_TOPO_DEVICE (or option topo_device; several ranks may share a device), or start "
                            "fewer ranks on the host",
                            rank, device, system.name,
                            asked ? "as SLIP_TOPO_DEVICE or topo_device says" : "by its number on the host",
                            system.devices.size()),
                here_);
  }

  Bootstrap& bootstrap_;
  Places& places_;
  const Here here_;
  const std::map<int, std::vector<int>> members_;
  std::string document_;                       // that this rank has read
  std::map<std::uint64_t, TopoSystem> known_;  // by the hash of its document
};

}  // namespace

Presence Presence::own(const CommunicatorOptions& options, int stood_for) {
  Presence result;
  result.cores = core_set();
  result.numa = numa_node_of(result.cores);
  const std::string& file = topology_file(options);
  if (file.empty()) return result;
  result.file = hash_of(file);
  constexpr std::size_t kMax = sizeof(result.file_name) - 1;
  const std::string shown = file.size() <= kMax ? file : "..." + file.substr(file.size() - kMax + 3);
  shown.copy(result.file_name, kMax);
  const int asked = options.topo_device >= 0 ? options.topo_device : env().topo_device;
  result.device = asked >= 0 ? asked : stood_for;
  return result;
}

int Places::device_of(int rank) const {
  return cluster && ranks[at(rank)].file != 0 ? cluster->ranks[at(rank)].device : -1;
}

std::vector<int> hosts_of(const std::vector<Placement>& placements, const std::vector<Wishes>& wishes) {
  std::vector<int> hosts(placements.size(), -1);
  for (std::size_t i = 0; i < placements.size(); ++i) {
    for (std::size_t j = 0; j < i && hosts[i] < 0; ++j) {
      if (share_memory(placements[i], placements[j]) && wishes[i].host == wishes[j].host) hosts[i] = hosts[j];
    }
    if (hosts[i] < 0) hosts[i] = static_cast<int>(i);
  }
  return hosts;
}

Places find_places(Bootstrap& bootstrap, std::vector<int> hosts, const Presence& own, const std::string& file,
                   Here here) {
  Places places;
  places.hosts = std::move(hosts);
  places.ranks = bootstrap.all_gather(own);
  Finding(bootstrap, places, here).run(file);
  return places;
}

std::vector<Formation> agree_on_formations(Bootstrap& bootstrap, const Places& places, int channels, Here here) {
  std::vector<Formation> formations;
  if (places.cluster) {
    const ChannelPlan plan = plan_channels(*places.cluster, {.max_channels = channels}, here);
    formations = formations_of(*places.cluster, plan, channels);
  } else {
    formations = formations_of(places.hosts, channels);
  }
  require_agreement(bootstrap, formations, here);
  if (bootstrap.rank() == 0 && env().debugs("topo"))
    log_line(fmt::format("{} ranks:\n{}{}{}", places.hosts.size(), places_text(places, bootstrap.placements()),
                         rings_text(formations), relays_text(places, formations.front().relays)));
  return formations;
}

void require_agreement(Bootstrap& bootstrap, const std::vector<Formation>& own, Here here) {
  const std::vector<std::uint64_t> digests = bootstrap.all_gather(digest(own));
  const auto other = std::find_if(digests.begin(), digests.end(), [&](std::uint64_t one) { return one != digests[0]; });
  if (other == digests.end()) return;
  struct Shown {
    char text[400] = {};
  } words;
  rings_text(own).copy(words.text, sizeof(words.text) - 1);
  const std::vector<Shown> shown = bootstrap.all_gather(words);
  const auto rank = static_cast<int>(other - digests.begin());
  throw Error(Code::kMismatch,
              fmt::format("rank 0 finds other rings, trees or relays than rank {}: start the same build of Slipstream "
                          "on all hosts. Rank 0:\n{}rank {}:\n{}",
                          rank, shown[0].text, rank, shown[at(rank)].text),
              here);
}

TopoSystem plain_machine() { return parse_topology(kPlainMachine, "a machine", {}); }

TopoSystem by_numa_nodes(TopoSystem system) {
  system.devices.clear();
  for (std::size_t node = 0; node < system.nodes.size(); ++node) {
    if (system.nodes[node].kind == TopoKind::kCpu) system.devices.push_back(static_cast<int>(node));
  }
  return system;
}

}  // namespace slip
