// Places and relays in words.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "comm/placement/places.hpp"

namespace slip {
namespace {

std::size_t at(int number) { return static_cast<std::size_t>(number); }

std::string net_name(const TopoSystem& system, int net) { return system.nodes[at(system.nets[at(net)])].name; }

std::string route_text(const Cluster& cluster, const RailRoute& route) {
  const TopoSystem& here = cluster.nodes[at(cluster.ranks[at(route.relay)].node)];
  const TopoSystem& there = cluster.nodes[at(cluster.ranks[at(route.to)].node)];
  std::string text;
  if (route.senders == std::vector{route.relay}) text = fmt::format("    to {}: {} itself", route.to, route.relay);
  else
    text = fmt::format("    to {}: {} through {}, handed over by {}", route.to, fmt::join(route.senders, " "),
                       route.relay, path_name(route.gather));
  text += fmt::format(", {} to {}", net_name(here, route.out_net), net_name(there, route.in_net));
  text += route.spares_out ? ", away from its switch" : "";
  if (route.spares_in) text += fmt::format(", taken by {} away from the switch there", route.arrival);
  return text + fmt::format(", {:.3g} GB/s\n", route.gbps);
}

}  // namespace

std::string places_text(const Places& places, const std::vector<Placement>& placements) {
  std::map<int, std::vector<int>> members;
  for (std::size_t rank = 0; rank < places.hosts.size(); ++rank)
    members[places.hosts[rank]].push_back(static_cast<int>(rank));
  std::string text;
  std::size_t number = 0;
  for (const auto& [host, ranks] : members) {
    text += fmt::format("  host '{}', {}: ranks", placements[at(host)].host, places.reasons[number++]);
    for (const int rank : ranks) {
      text += fmt::format(" {}", rank);
      if (!places.cluster) continue;
      const RankPlace& place = places.cluster->ranks[at(rank)];
      const TopoSystem& system = places.cluster->nodes[at(place.node)];
      text += fmt::format(" ({})", system.nodes[at(system.devices[at(place.device)])].name);
    }
    text += "\n";
  }
  return text;
}

std::string relays_text(const Places& places, const Relays& relays) {
  std::string text;
  const auto nranks = static_cast<int>(places.hosts.size());
  for (int host = 0; host < nranks; ++host) {
    if (places.hosts[at(host)] != host || relays.beside(host).size() == places.hosts.size()) continue;
    text += fmt::format("  relays of rank {}'s host{}\n", host,
                        places.cluster ? "" : ", by the numbers of the ranks on their hosts");
    if (places.cluster) {
      for (const RailRoute& route : rail_routes(*places.cluster, places.cluster->ranks[at(host)].node))
        text += route_text(*places.cluster, route);
      continue;
    }
    for (int to = 0; to < nranks; ++to) {
      if (!relays.same_host(host, to)) text += fmt::format("    to {}: through {}\n", to, relays.via(host, to));
    }
  }
  return text;
}

}  // namespace slip
