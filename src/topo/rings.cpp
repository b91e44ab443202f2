#include "topo/rings.hpp"

#include <algorithm>
#include <compare>
#include <map>
#include <set>
#include <string>

#include "topo/fabric.hpp"

namespace slip::topo {
namespace {

// A path between two nodes of a machine's graph, with its rate in kB/s.
struct RatedPath {
  TopoPathType type = TopoPathType::kNone;
  std::int64_t rate = 0;
  std::vector<int> links;
};

RatedPath route_between(const RingMembers& members, int from, int to) {
  TopoPath path = members.paths->between(from, to);
  // A path through a GPU uses twice as many NVLinks as a direct one, so rings with direct paths are searched first.
  const bool through_gpu = path.type == TopoPathType::kNvl && path.proxy >= 0;
  return {through_gpu ? TopoPathType::kPix : path.type, to_rate(path.gbps), std::move(path.links)};
}

bool nearer(const RatedPath& a, const RatedPath& b) { return a.type != b.type ? a.type < b.type : a.rate > b.rate; }

// By node: 1 for `top` and all nodes below it.
std::vector<char> below(const TopoSystem& system, int top) {
  std::vector<char> inside(system.nodes.size(), 0);
  for (std::size_t node = 0; node < inside.size(); ++node) {
    int up = static_cast<int>(node);
    while (up >= 0 && up != top) up = node_at(system, up).parent;
    inside[node] = up == top ? 1 : 0;
  }
  return inside;
}

// The routes between the members of one machine and to its ports (nets), and bounds that shorten the search.
class MachineRoutes {
 public:
  explicit MachineRoutes(const RingMembers& members)
      : count_(members.nodes.size()), ports_(members.through_net ? members.system->nets.size() : 0) {
    for (const TopoLink& link : members.system->links) capacity_.push_back(to_rate(link.gbps));
    for (const int a : members.nodes) {
      for (const int b : members.nodes) between_.push_back(route_between(members, a, b));
    }
    for (std::size_t port = 0; port < ports_; ++port) {
      const int net = members.system->nets[port];
      for (const int node : members.nodes) {
        in_.push_back(route_between(members, net, node));
        out_.push_back(route_between(members, node, net));
      }
    }
    sort_members();
    find_cuts(members);
  }

  std::size_t count() const { return count_; }
  std::size_t ports() const { return ports_; }
  const std::vector<std::int64_t>& capacity() const { return capacity_; }  // by link
  const RatedPath& between(int a, int b) const { return between_[index(a, b)]; }
  const RatedPath& in(int port, int member) const { return in_[index(port, member)]; }
  const RatedPath& out(int member, int port) const { return out_[index(port, member)]; }
  // Members in the order in which the search tries them after a member, or next to a port: the nearest path type first,
  // then the highest rate, then the next member number.
  const std::vector<int>& after(int member) const { return after_[static_cast<std::size_t>(member)]; }
  const std::vector<int>& beside(int port) const { return beside_[static_cast<std::size_t>(port)]; }

  // The rate of the slowest link that connects two members directly; 0: there is none.
  std::int64_t pair_rate() const {
    std::int64_t slowest = 0;
    for (const RatedPath& each : between_) {
      if (each.links.size() == 1 && (slowest == 0 || each.rate < slowest)) slowest = each.rate;
    }
    return slowest;
  }
  // Whether paths up to this type connect all members and, if needed, a port.
  bool joined(TopoPathType limit) const {
    std::vector<char> seen(count_, 0);
    std::vector<int> open{0};
    seen[0] = 1;
    std::size_t reached = 0;
    while (!open.empty()) {
      const int here = open.back();
      open.pop_back();
      ++reached;
      for (const int next : after(here)) {
        if (between(here, next).type > limit) break;  // the members are sorted by type
        if (!seen[static_cast<std::size_t>(next)]) open.push_back(next);
        seen[static_cast<std::size_t>(next)] = 1;
      }
    }
    if (reached < count_) return false;
    const auto usable = [&](const RatedPath& each) { return each.type <= limit; };
    return ports_ == 0 || (std::ranges::any_of(in_, usable) && std::ranges::any_of(out_, usable));
  }
  // An upper bound for the number of channels of this rate; at most `limit_channels`.
  int max_channels(std::int64_t rate, TopoPathType limit, CrossNic cross, int limit_channels) const {
    for (const Cut& cut : cuts_) {
      std::int64_t sum = 0;
      for (const Exit& exit : cut.exits) sum += exit.from <= limit ? exit.links * (exit.capacity / rate) : 0;
      if (cut.one_way && cross != CrossNic::kNever) sum *= 2;  // both directions of each link: their rates are equal
      limit_channels = static_cast<int>(std::min<std::int64_t>(limit_channels, sum));
    }
    return limit_channels;
  }

 private:
  // Links that lead out of a part of the machine.
  struct Exit {
    std::int64_t capacity = 0;
    TopoPathType from = TopoPathType::kLoc;  // paths of nearer types do not use these links
    std::int64_t links = 1;                  // how many have this capacity and type
    friend auto operator<=>(const Exit&, const Exit&) = default;
  };
  // All exits of a part that every ring must leave. `one_way`: a ring that enters and leaves the machine through
  // different nets may only enter the part, or only leave it.
  struct Cut {
    std::vector<Exit> exits;
    bool one_way = false;
    friend auto operator<=>(const Cut&, const Cut&) = default;
  };

  std::size_t index(int a, int b) const { return static_cast<std::size_t>(a) * count_ + static_cast<std::size_t>(b); }

  void sort_members() {
    const auto sort = [](std::vector<int>& order, const RatedPath* row) {
      std::ranges::stable_sort(order, [&](int x, int y) { return nearer(row[x], row[y]); });
    };
    for (std::size_t a = 0; a < count_; ++a) {
      std::vector<int>& order = after_.emplace_back();
      for (std::size_t i = 1; i < count_; ++i) order.push_back(static_cast<int>((a + i) % count_));
      sort(order, &between_[a * count_]);
    }
    for (std::size_t port = 0; port < ports_; ++port) {
      std::vector<int>& order = beside_.emplace_back();
      for (std::size_t i = 0; i < count_; ++i) order.push_back(static_cast<int>(i));
      sort(order, &in_[port * count_]);
    }
  }

  // Each node, with all nodes below it, is a part of the machine. Each ring must leave a part that holds some members
  // but not all. It must also leave a part with members but without a port, if it continues to other machines.
  void find_cuts(const RingMembers& members) {
    const TopoSystem& system = *members.system;
    const std::vector<std::vector<int>> links_of = links_from(system);
    for (std::size_t top = 0; top < system.nodes.size(); ++top) {
      const std::vector<char> inside = below(system, static_cast<int>(top));
      const auto is_inside = [&](int node) { return inside[static_cast<std::size_t>(node)] != 0; };
      const auto within = static_cast<std::size_t>(std::ranges::count_if(members.nodes, is_inside));
      const bool no_port = std::ranges::none_of(system.nets, is_inside);
      const bool one_way = ports_ > 0 && !no_port && !std::ranges::all_of(system.nets, is_inside);
      if (within > 0 && (within < count_ || (ports_ > 0 && no_port))) add_cut(system, links_of, inside, one_way);
    }
    if (ports_ > 0) {
      std::vector<char> inside(system.nodes.size(), 1);  // all but the ports
      for (const int net : system.nets) inside[static_cast<std::size_t>(net)] = 0;
      add_cut(system, links_of, inside, false);
    }
    // Equal cuts give the same bound.
    std::ranges::sort(cuts_);
    cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
  }

  // Merges equal links into one Exit with a count, because a CPU has a link to every other CPU.
  void add_cut(const TopoSystem& system, const std::vector<std::vector<int>>& links_of, const std::vector<char>& inside,
               bool one_way) {
    std::vector<Exit> all;
    for (std::size_t node = 0; node < inside.size(); ++node) {
      if (!inside[node]) continue;
      for (const int link : links_of[node]) {
        const TopoLink& each = system.links[static_cast<std::size_t>(link)];
        const TopoPathType type = type_of(system, each);
        if (!inside[static_cast<std::size_t>(each.to)])
          all.push_back(
              {capacity_[static_cast<std::size_t>(link)], type == TopoPathType::kPxb ? TopoPathType::kPix : type});
      }
    }
    std::ranges::sort(all);
    std::vector<Exit>& exits = cuts_.emplace_back(Cut{{}, one_way}).exits;
    for (const Exit& exit : all) {
      if (!exits.empty() && exits.back().capacity == exit.capacity && exits.back().from == exit.from)
        ++exits.back().links;
      else exits.push_back(exit);
    }
  }

  std::size_t count_, ports_;
  std::vector<std::int64_t> capacity_;
  std::vector<RatedPath> between_, in_, out_;
  std::vector<std::vector<int>> after_, beside_;
  std::vector<Cut> cuts_;
};

// Rings that cross (RingSegment::crosses) are used only if they have more than this percentage of the total rate of
// rings that do not cross. A small gain is not worth it: the tree of a channel uses only the net through which its ring
// enters.
constexpr std::int64_t kMinCrossGain = 110;

// Limits of the search, in steps: kEffort for one rate and path type, kEffortInAll for the whole search. Each member
// and ring gets at least kMinEffortEach, with which a search without backtracking can finish.
constexpr std::int64_t kEffort = 20'000, kEffortInAll = 1'000'000, kMinEffortEach = 4;

// A depth-first search that places one ring after the other on the links and backtracks if the next one does not fit.
// It keeps the largest set of rings that fits.
class RingPacker {
 public:
  RingPacker(const MachineRoutes& routes, std::int64_t rate, TopoPathType limit, CrossNic cross, int wanted,
             std::int64_t effort)
      : routes_(routes),
        free_(routes.capacity()),
        rate_(rate),
        limit_(limit),
        cross_(cross),
        wanted_(static_cast<std::size_t>(wanted)),
        effort_(effort) {}

  std::vector<RingSegment> run() {
    next_ring();
    return std::move(best_);
  }
  std::int64_t effort_left() const { return effort_; }

 private:
  bool stop() const { return best_.size() >= wanted_ || effort_ <= 0; }

  bool take(const RatedPath& route) {
    --effort_;
    if (route.type > limit_) return false;
    // A route may use a link twice (PXN through the GPU's own switch). So the loop reserves one link after the other,
    // and releases all of them if one has too little capacity left.
    for (std::size_t i = 0; i < route.links.size(); ++i) {
      std::int64_t& left = free_[static_cast<std::size_t>(route.links[i])];
      left -= rate_;
      if (left >= 0) continue;
      for (std::size_t k = 0; k <= i; ++k) free_[static_cast<std::size_t>(route.links[k])] += rate_;
      return false;
    }
    return true;
  }
  void give_back(const RatedPath& route) {
    for (const int link : route.links) free_[static_cast<std::size_t>(link)] += rate_;
  }

  // On rails: the first ring of a pair, if the second one is searched next; else null.
  const RingSegment* unpaired() const {
    const bool open = cross_ == CrossNic::kRails && rings_.size() % 2 == 1 && rings_.back().crosses();
    return open ? &rings_.back() : nullptr;
  }
  // Whether the current ring may leave the machine through this net.
  bool may_leave(int port) const {
    if (cross_ == CrossNic::kNever) return port == now_.net;
    const RingSegment* const other = unpaired();
    if (other) return port == other->net;
    const bool room_for_pair = rings_.size() % 2 == 0 && rings_.size() + 2 <= wanted_;
    return cross_ == CrossNic::kAny || room_for_pair || port == now_.net;
  }

  void next_ring() {
    if (rings_.size() > best_.size() && !unpaired()) best_ = rings_;
    if (stop()) return;
    const auto ports = static_cast<int>(routes_.ports());
    if (ports == 0) {
      start({}, 0);
      return;
    }
    // Each ring starts with the next port, so that all ports serve equally many rings.
    for (int i = 0; i < ports && !stop(); ++i) {
      const int port = (static_cast<int>(rings_.size()) + i) % ports;
      if (unpaired() && port != unpaired()->out) continue;
      for (const int member : routes_.beside(port)) {
        if (stop()) return;
        if (!take(routes_.in(port, member))) continue;
        start({{}, port, port}, member);
        give_back(routes_.in(port, member));
      }
    }
  }

  void start(RingSegment ring, int member) {
    RingSegment outer = std::move(now_);
    std::vector<char> outer_used = std::move(used_);
    now_ = std::move(ring);
    used_.assign(routes_.count(), 0);
    visit(member);
    now_ = std::move(outer);
    used_ = std::move(outer_used);
  }

  // Whether some member that the ring has not visited could be its last one: from there the ring must reach a port. If
  // there is none, the search of this ring ends.
  bool can_close() const {
    if (now_.net < 0 || now_.order.size() == routes_.count()) return true;
    const auto free = [&](int link) { return free_[static_cast<std::size_t>(link)] >= rate_; };
    for (int port = 0; port < static_cast<int>(routes_.ports()); ++port) {
      for (std::size_t member = 0; member < used_.size() && may_leave(port); ++member) {
        const RatedPath& route = routes_.out(static_cast<int>(member), port);
        if (!used_[member] && route.type <= limit_ && std::ranges::all_of(route.links, free)) return true;
      }
    }
    return false;
  }

  void visit(int member) {
    now_.order.push_back(member);
    used_[static_cast<std::size_t>(member)] = 1;
    if (now_.order.size() == routes_.count()) close(member);
    const bool open = can_close();
    for (const int next : routes_.after(member)) {
      if (stop() || !open) break;
      if (used_[static_cast<std::size_t>(next)]) continue;
      const RatedPath& route = routes_.between(member, next);
      if (route.type > limit_) break;  // the members are sorted by type
      if (!take(route)) continue;
      visit(next);
      give_back(route);
    }
    used_[static_cast<std::size_t>(member)] = 0;
    now_.order.pop_back();
  }

  void close(int last) {
    if (now_.net < 0) return close_over(routes_.between(last, now_.order.front()));
    const auto ports = static_cast<int>(routes_.ports());
    for (int i = 1; i <= ports && !stop(); ++i) {  // the net of the entry last: RingSearch tried such rings before
      const int port = (now_.net + i) % ports;
      if (!may_leave(port)) continue;
      now_.out = port;
      close_over(routes_.out(last, port));
    }
    now_.out = now_.net;
  }

  void close_over(const RatedPath& route) {
    if (!take(route)) return;
    rings_.push_back(now_);
    next_ring();
    rings_.pop_back();
    give_back(route);
  }

  const MachineRoutes& routes_;
  std::vector<std::int64_t> free_;  // by link: the capacity that is left
  std::int64_t rate_;
  TopoPathType limit_;
  CrossNic cross_;
  std::size_t wanted_;
  std::int64_t effort_;
  std::vector<RingSegment> rings_, best_;
  RingSegment now_;
  std::vector<char> used_;
};

// At the best rate, a whole number of channels fills some link, so only such rates are tried. One ring may use a link
// several times: with each hop, and on its way from and to the port.
std::vector<std::int64_t> candidate_rates(const std::vector<MachineRoutes>& kinds, const ChannelLimits& limits) {
  std::set<std::int64_t, std::greater<>> rates;
  std::int64_t max_rate = std::max<std::int64_t>(to_rate(limits.max_gbps), 1);
  // A channel may use the whole link between two GPUs, even if that is up to a quarter above the limit: otherwise the
  // rest of the link would be unused.
  for (const MachineRoutes& routes : kinds)
    max_rate = std::max(max_rate, std::min(routes.pair_rate(), max_rate * 5 / 4));
  rates.insert(max_rate);
  for (const MachineRoutes& routes : kinds) {
    const int max_shares = std::max(limits.max_channels, static_cast<int>(routes.count()) + 2);
    for (const std::int64_t capacity : std::set<std::int64_t>(routes.capacity().begin(), routes.capacity().end())) {
      for (int share = 1; share <= max_shares; ++share) {
        if (capacity / share > 0 && capacity / share <= max_rate) rates.insert(capacity / share);
      }
    }
  }
  return {rates.begin(), rates.end()};
}

void note_types(const std::vector<MachineRoutes>& kinds, const std::vector<std::size_t>& kind_of, RingSet& set) {
  for (std::size_t m = 0; m < kind_of.size(); ++m) {
    const MachineRoutes& routes = kinds[kind_of[m]];
    for (const RingSegment& segment : set.segments[m]) {
      const std::vector<int>& order = segment.order;
      for (std::size_t i = 0; i + 1 < order.size(); ++i)
        set.within = std::max(set.within, routes.between(order[i], order[i + 1]).type);
      if (segment.net < 0) {
        set.within = std::max(set.within, routes.between(order.back(), order.front()).type);
      } else {
        set.between = std::max(
            {set.between, routes.in(segment.net, order.front()).type, routes.out(order.back(), segment.out).type});
      }
    }
  }
}

// Tries the path types, nearest first, and for each type all rates, highest first. Then the same with rings that leave
// through another net than they enter, if they may. Keeps the rings with the highest total rate.
class RingSearch {
 public:
  RingSearch(const std::vector<MachineRoutes>& kinds, const ChannelLimits& limits, CrossNic cross)
      : kinds_(kinds), limits_(limits), may_cross_(cross) {}

  // Returns the rings by kind of machine (equal machines are one kind); empty if no paths connect the members.
  std::vector<std::vector<RingSegment>> run(std::int64_t& rate) {
    const std::vector<std::int64_t> rates = candidate_rates(kinds_, limits_);
    try_all(rates, rate);
    if (may_cross_ != CrossNic::kNever) {
      cross_ = may_cross_;
      effort_ = kEffortInAll;
      min_sum_ = min_sum_ * kMinCrossGain / 100;
      try_all(rates, rate);
    }
    for (std::vector<RingSegment>& rings : best_) {
      if (std::ranges::any_of(rings, &RingSegment::crosses)) continue;  // pairs stay together
      // Sorts by port, so that a channel uses the same rail: the port with the same number on every machine.
      std::ranges::stable_sort(rings, [](const RingSegment& a, const RingSegment& b) { return a.net < b.net; });
    }
    return std::move(best_);
  }

 private:
  void try_all(const std::vector<std::int64_t>& rates, std::int64_t& rate) {
    for (int type = 0; type < static_cast<int>(TopoPathType::kNet); ++type) {
      const auto limit = static_cast<TopoPathType>(type);
      if (!std::ranges::all_of(kinds_, [&](const MachineRoutes& routes) { return routes.joined(limit); })) continue;
      for (const std::int64_t each : rates) {
        if (improve(each, limit)) rate = each;
      }
    }
  }

  bool improve(std::int64_t rate, TopoPathType limit) {
    int wanted = limits_.max_channels;
    for (const MachineRoutes& routes : kinds_) wanted = routes.max_channels(rate, limit, cross_, wanted);
    std::vector<std::vector<RingSegment>> found;
    for (const MachineRoutes& routes : kinds_) {
      if (wanted * rate <= min_sum_) return false;
      found.push_back(pack(routes, rate, limit, wanted));
      wanted = static_cast<int>(found.back().size());
    }
    if (wanted * rate <= min_sum_) return false;
    for (std::vector<RingSegment>& rings : found) rings.resize(static_cast<std::size_t>(wanted));
    min_sum_ = wanted * rate;
    best_ = std::move(found);
    return true;
  }

  // Rings on one kind of machine. If there are several kinds, one may need longer paths than another. So nearer paths
  // are tried first, if they may be enough: they use fewer links, which leaves more links for the other rings.
  std::vector<RingSegment> pack(const MachineRoutes& routes, std::int64_t rate, TopoPathType limit, int wanted) {
    std::vector<RingSegment> rings;
    for (int type = kinds_.size() > 1 ? 0 : static_cast<int>(limit); type <= static_cast<int>(limit); ++type) {
      const auto near_limit = static_cast<TopoPathType>(type);
      if (!routes.joined(near_limit) || routes.max_channels(rate, near_limit, cross_, wanted) < wanted) continue;
      const std::int64_t min_effort = kMinEffortEach * static_cast<std::int64_t>(routes.count()) * wanted;
      const std::int64_t effort = std::max(min_effort, std::min(kEffort, effort_));
      RingPacker packer(routes, rate, near_limit, cross_, wanted, effort);
      std::vector<RingSegment> found = packer.run();
      effort_ -= effort - packer.effort_left();
      if (found.size() > rings.size()) rings = std::move(found);
      if (rings.size() >= static_cast<std::size_t>(wanted)) break;
    }
    return rings;
  }

  const std::vector<MachineRoutes>& kinds_;
  const ChannelLimits& limits_;
  const CrossNic may_cross_;
  CrossNic cross_ = CrossNic::kNever;  // of the rings that are searched now
  std::vector<std::vector<RingSegment>> best_;
  std::int64_t min_sum_ = 0;  // better rings have a higher rate of all channels together
  std::int64_t effort_ = kEffortInAll;
};

// On rails, the two rings of a pair cross an even number of equal machines, or none. See rings.hpp.
CrossNic cross_of(const std::vector<MachineRoutes>& kinds, std::size_t machines, CrossNic asked) {
  const bool several_nets = std::ranges::any_of(kinds, [](const MachineRoutes& routes) { return routes.ports() > 1; });
  if (!several_nets) return CrossNic::kNever;
  return asked == CrossNic::kRails && (kinds.size() > 1 || machines % 2 == 1) ? CrossNic::kNever : asked;
}

void swap_pairs(RingSet& set) {
  for (std::size_t m = 1; m < set.segments.size(); m += 2) {
    std::vector<RingSegment>& rings = set.segments[m];
    for (std::size_t first = 0; first + 1 < rings.size(); first += 2) {
      if (rings[first].crosses()) std::swap(rings[first], rings[first + 1]);
    }
  }
}

}  // namespace

RingSet search_rings(const std::vector<RingMembers>& machines, const ChannelLimits& limits) {
  // Equal machines are searched once.
  std::vector<MachineRoutes> kinds;
  std::vector<std::size_t> kind_of;
  std::map<std::pair<std::string, std::vector<int>>, std::size_t> known;
  for (const RingMembers& members : machines) {
    const auto [entry, fresh] = known.emplace(std::pair(members.system->xml, members.nodes), kinds.size());
    if (fresh) kinds.emplace_back(members);
    kind_of.push_back(entry->second);
  }
  RingSet best;
  const std::vector<std::vector<RingSegment>> by_kind =
      RingSearch(kinds, limits, cross_of(kinds, machines.size(), limits.cross_nic)).run(best.rate);
  if (by_kind.empty()) return best;
  for (const std::size_t kind : kind_of) best.segments.push_back(by_kind[kind]);
  if (limits.cross_nic == CrossNic::kRails) swap_pairs(best);
  note_types(kinds, kind_of, best);
  return best;
}

}  // namespace slip::topo
