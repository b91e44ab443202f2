#include "comm/placement/exchange_loads.hpp"

#include <algorithm>
#include <limits>

#include "topo/fabric.hpp"

namespace slip::comm {
namespace {

using topo::Fabric;
using topo::LinkLoads;

// The nearest net of each rank, and the number of the rank among those of its machine. Looked up once for each rank,
// because an all_to_all has a message for each pair of ranks.
class RankNets {
 public:
  RankNets(const Fabric& fabric, NetReach reach) : fabric_(fabric), reach_(reach) {
    for (int rank = 0; rank < fabric.ranks(); ++rank) {
      const int node = fabric.node_of(rank);
      const std::vector<int>& ranks = fabric.ranks_of(node);
      const auto place = std::ranges::find(ranks, rank) - ranks.begin();
      number_.push_back(static_cast<std::size_t>(place));
      max_ranks_ = std::max(max_ranks_, ranks.size());
      max_nets_ = std::max(max_nets_, fabric.system(node).nets.size());
      net_.push_back(topo::nearest_net(fabric.system(node), fabric.paths(node), fabric.device_of(rank),
                                       fabric.place_of(rank).device));
    }
  }

  const Fabric& fabric() const { return fabric_; }
  std::size_t number(int rank) const { return number_[static_cast<std::size_t>(rank)]; }  // on its machine
  int in_net(int rank) const { return net_[static_cast<std::size_t>(rank)]; }
  int out_net(int from, int to) const {
    if (reach_ == NetReach::kAll) return in_net(from);
    return in_net(to) % static_cast<int>(fabric_.system(fabric_.node_of(from)).nets.size());
  }
  std::size_t max_ranks() const { return max_ranks_; }
  std::size_t max_nets() const { return max_nets_; }

 private:
  const Fabric& fabric_;
  const NetReach reach_;
  std::vector<std::size_t> number_;
  std::vector<int> net_;  // the nearest one
  std::size_t max_ranks_ = 0, max_nets_ = 0;
};

// Counts the blocks that one step of the algorithm sends.
class Step {
 public:
  explicit Step(const RankNets& nets)
      : nets_(nets),
        within_(ranks() * nets.max_ranks()),
        out_(ranks() * nets.max_nets()),
        in_(ranks() * nets.max_nets()) {}

  void add(int from, int to) {
    if (from == to) return;
    if (nets_.fabric().node_of(from) == nets_.fabric().node_of(to)) {
      ++within_[static_cast<std::size_t>(from) * nets_.max_ranks() + nets_.number(to)];
      return;
    }
    ++out_[by_net(from, nets_.out_net(from, to))];
    ++in_[by_net(to, nets_.in_net(to))];
  }

  // Returns the load of the busiest link, in the unit of AllToAllLoads. 0: the step uses no link.
  double load() const {
    const Fabric& fabric = nets_.fabric();
    LinkLoads loads(fabric);
    for (int rank = 0; rank < fabric.ranks(); ++rank) {
      const std::vector<int>& beside = fabric.ranks_of(fabric.node_of(rank));
      for (std::size_t i = 0; i < beside.size(); ++i) {
        const double blocks = within_[static_cast<std::size_t>(rank) * nets_.max_ranks() + i];
        if (blocks > 0) loads.send(rank, beside[i], {}, blocks);
      }
      const auto nets = static_cast<int>(fabric.system(fabric.node_of(rank)).nets.size());
      for (int net = 0; net < nets; ++net) {
        if (const double blocks = out_[by_net(rank, net)]; blocks > 0) loads.send_out(rank, net, blocks);
        if (const double blocks = in_[by_net(rank, net)]; blocks > 0) loads.send_in(rank, net, blocks);
      }
    }
    constexpr double kNoLimit = std::numeric_limits<double>::infinity();
    const double gbps = loads.gbps(kNoLimit);  // the rate of one block
    return gbps == kNoLimit ? 0 : 1 / gbps;
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(nets_.fabric().ranks()); }
  std::size_t by_net(int rank, int net) const {
    return static_cast<std::size_t>(rank) * nets_.max_nets() + static_cast<std::size_t>(net);
  }

  const RankNets& nets_;
  std::vector<double> within_;    // by sender, and number of the receiver on its machine
  std::vector<double> out_, in_;  // by rank and net
};

}  // namespace

AllToAllLoads AllToAllLoads::of(const Cluster& cluster, const Relays& relays, NetReach reach) {
  const Fabric fabric(cluster, {}, reach == NetReach::kAll);
  const RankNets nets(fabric, reach);
  Step direct(nets), handed_over(nets), between(nets), handed_on(nets);
  for (int from = 0; from < fabric.ranks(); ++from) {
    for (int to = 0; to < fabric.ranks(); ++to) {
      direct.add(from, to);
      if (fabric.node_of(from) == fabric.node_of(to)) {
        between.add(from, to);
        continue;
      }
      const int relay = relays.via(from, to), arrival = relays.arrival(to);
      handed_over.add(from, relay);
      between.add(relay, arrival);
      handed_on.add(arrival, to);
    }
  }
  return {direct.load(), handed_over.load(), between.load(), handed_on.load()};
}

}  // namespace slip::comm
