#include "topo/rings.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

namespace slip::topo {
namespace {

constexpr std::int64_t kEffort = 20'000;  // candidates looked at for one rate and path type
constexpr std::int64_t kEffortEach = 8;   // and for each pair of members

std::int64_t to_mbps(double gbps) { return std::llround(gbps * 1000); }

struct Way {
  PathType type = PathType::kNone;
  std::int64_t mbps = 0;
  std::vector<int> links;
};

// The ways between the members of one machine, and between them and its ports.
class Ways {
 public:
  explicit Ways(const Members& members)
      : count_(members.nodes.size()), ports_(members.through_net ? members.system->nets.size() : 0) {
    for (const TopoLink& link : members.system->links) capacity_.push_back(to_mbps(link.gbps));
    for (std::size_t a = 0; a < count_; ++a) {
      for (std::size_t b = 0; b < count_; ++b) between_.push_back(way(members, members.nodes[a], members.nodes[b]));
    }
    for (std::size_t p = 0; p < ports_; ++p) {
      const int net = members.system->nets[p];
      for (const int node : members.nodes) {
        in_.push_back(way(members, net, node));
        out_.push_back(way(members, node, net));
      }
    }
    prefer();
  }

  std::size_t count() const { return count_; }
  std::size_t ports() const { return ports_; }
  const std::vector<std::int64_t>& capacity() const { return capacity_; }
  const Way& between(int a, int b) const { return between_[index(a, b)]; }
  const Way& in(int port, int member) const { return in_[index(port, member)]; }
  const Way& out(int member, int port) const { return out_[index(port, member)]; }
  const std::vector<int>& after(int member) const { return after_[static_cast<std::size_t>(member)]; }
  const std::vector<int>& beside(int port) const { return beside_[static_cast<std::size_t>(port)]; }

  // No more channels of this rate leave or enter the busiest member, or pass the ports.
  int most_channels(std::int64_t mbps, PathType limit, int most) const {
    if (ports_ > 0) {
      std::int64_t sum = 0;
      for (std::size_t p = 0; p < ports_; ++p) {
        const Way& best = in_[p * count_ + static_cast<std::size_t>(beside_[p].front())];
        if (best.type <= limit) sum += port_mbps(best) / mbps;
      }
      most = static_cast<int>(std::min<std::int64_t>(most, sum));
    }
    for (std::size_t a = 0; a < count_ && count_ > 1; ++a) most = std::min(most, leaving(a, mbps, limit, most));
    return most;
  }

 private:
  std::size_t index(int a, int b) const { return static_cast<std::size_t>(a) * count_ + static_cast<std::size_t>(b); }
  std::int64_t port_mbps(const Way& in) const { return capacity_[static_cast<std::size_t>(in.links.front())]; }

  static Way way(const Members& members, int from, int to) {
    TopoPath path = members.paths->between(from, to);
    return {path.type, to_mbps(path.gbps), std::move(path.links)};
  }

  // What a member can send to others and to ports, by its own links.
  int leaving(std::size_t member, std::int64_t mbps, PathType limit, int most) const {
    std::set<int> first;
    const auto look = [&](const Way& way) {
      if (way.type > limit) return true;
      if (way.links.empty()) return false;  // another rank on the same device: no bound
      first.insert(way.links.front());
      return true;
    };
    for (std::size_t b = 0; b < count_; ++b) {
      if (b != member && !look(between_[member * count_ + b])) return most;
    }
    for (std::size_t p = 0; p < ports_; ++p) look(out_[p * count_ + member]);
    std::int64_t sum = 0;
    for (const int link : first) sum += capacity_[static_cast<std::size_t>(link)] / mbps;
    return static_cast<int>(std::min<std::int64_t>(most, sum));
  }

  // The order in which members are tried: near and wide first, then the next number.
  void prefer() {
    const auto by = [](const Way& a, const Way& b) { return a.type != b.type ? a.type < b.type : a.mbps > b.mbps; };
    for (std::size_t a = 0; a < count_; ++a) {
      std::vector<int>& order = after_.emplace_back();
      for (std::size_t i = 1; i < count_; ++i) order.push_back(static_cast<int>((a + i) % count_));
      std::stable_sort(order.begin(), order.end(), [&](int x, int y) {
        return by(between_[a * count_ + static_cast<std::size_t>(x)],
                  between_[a * count_ + static_cast<std::size_t>(y)]);
      });
    }
    for (std::size_t p = 0; p < ports_; ++p) {
      std::vector<int>& order = beside_.emplace_back();
      for (std::size_t i = 0; i < count_; ++i) order.push_back(static_cast<int>(i));
      std::stable_sort(order.begin(), order.end(), [&](int x, int y) {
        return by(in_[p * count_ + static_cast<std::size_t>(x)], in_[p * count_ + static_cast<std::size_t>(y)]);
      });
    }
  }

  std::size_t count_, ports_;
  std::vector<std::int64_t> capacity_;  // by link
  std::vector<Way> between_, in_, out_;
  std::vector<std::vector<int>> after_, beside_;
};

// Puts ring after ring on the links, going back where the next does not fit; keeps the most that fitted together.
class Packing {
 public:
  Packing(const Ways& ways, std::int64_t mbps, PathType limit, int wanted)
      : ways_(ways),
        free_(ways.capacity()),
        mbps_(mbps),
        limit_(limit),
        wanted_(static_cast<std::size_t>(wanted)),
        effort_(kEffort + kEffortEach * static_cast<std::int64_t>(ways.count() * ways.count())) {}

  std::vector<Segment> run() {
    next_ring();
    return std::move(best_);
  }

 private:
  bool stop() const { return best_.size() >= wanted_ || effort_ <= 0; }

  bool take(const Way& way) {
    --effort_;
    if (way.type > limit_) return false;
    // A way may pass a link twice (PXN over the GPU's own switch): take one by one, give back where it ends.
    for (std::size_t i = 0; i < way.links.size(); ++i) {
      std::int64_t& left = free_[static_cast<std::size_t>(way.links[i])];
      left -= mbps_;
      if (left >= 0) continue;
      for (std::size_t k = 0; k <= i; ++k) free_[static_cast<std::size_t>(way.links[k])] += mbps_;
      return false;
    }
    return true;
  }
  void give_back(const Way& way) {
    for (const int link : way.links) free_[static_cast<std::size_t>(link)] += mbps_;
  }

  void next_ring() {
    if (rings_.size() > best_.size()) best_ = rings_;
    if (stop()) return;
    const auto ports = static_cast<int>(ways_.ports());
    if (ports == 0) {
      start({}, 0);
      return;
    }
    // Ports take turns, so that each serves as many rings.
    for (int i = 0; i < ports && !stop(); ++i) {
      const int port = (static_cast<int>(rings_.size()) + i) % ports;
      for (const int member : ways_.beside(port)) {
        if (stop()) return;
        if (!take(ways_.in(port, member))) continue;
        start({{}, port}, member);
        give_back(ways_.in(port, member));
      }
    }
  }

  void start(Segment ring, int member) {
    Segment outer = std::move(now_);
    std::vector<char> outer_used = std::move(used_);
    now_ = std::move(ring);
    used_.assign(ways_.count(), 0);
    visit(member);
    now_ = std::move(outer);
    used_ = std::move(outer_used);
  }

  void visit(int member) {
    now_.order.push_back(member);
    used_[static_cast<std::size_t>(member)] = 1;
    if (now_.order.size() == ways_.count()) close(member);
    for (const int next : ways_.after(member)) {
      if (stop()) break;
      if (used_[static_cast<std::size_t>(next)]) continue;
      const Way& way = ways_.between(member, next);
      if (way.type > limit_) break;  // they are sorted
      if (!take(way)) continue;
      visit(next);
      give_back(way);
    }
    used_[static_cast<std::size_t>(member)] = 0;
    now_.order.pop_back();
  }

  void close(int last) {
    const Way& way = now_.net < 0 ? ways_.between(last, now_.order.front()) : ways_.out(last, now_.net);
    if (!take(way)) return;
    rings_.push_back(now_);
    next_ring();
    rings_.pop_back();
    give_back(way);
  }

  const Ways& ways_;
  std::vector<std::int64_t> free_;  // by link
  std::int64_t mbps_;
  PathType limit_;
  std::size_t wanted_;
  std::int64_t effort_;
  std::vector<Segment> rings_, best_;
  Segment now_;
  std::vector<char> used_;
};

// The best rate has some link filled by a whole number of channels: no other rates need be tried.
std::vector<std::int64_t> candidate_rates(const std::vector<Ways>& kinds, const ChannelLimits& limits) {
  std::set<std::int64_t, std::greater<>> rates;
  const std::int64_t most = std::max<std::int64_t>(to_mbps(limits.most_gbps), 1);
  rates.insert(most);
  for (const Ways& ways : kinds) {
    for (const std::int64_t capacity : std::set<std::int64_t>(ways.capacity().begin(), ways.capacity().end())) {
      for (int share = 1; share <= limits.most_channels; ++share) {
        if (capacity / share > 0 && capacity / share <= most) rates.insert(capacity / share);
      }
    }
  }
  return {rates.begin(), rates.end()};
}

void note_types(const std::vector<Ways>& kinds, const std::vector<std::size_t>& kind_of, RingSet& set) {
  for (std::size_t m = 0; m < kind_of.size(); ++m) {
    const Ways& ways = kinds[kind_of[m]];
    for (const Segment& segment : set.segments[m]) {
      const std::vector<int>& order = segment.order;
      for (std::size_t i = 0; i + 1 < order.size(); ++i)
        set.within = std::max(set.within, ways.between(order[i], order[i + 1]).type);
      if (segment.net < 0) {
        set.within = std::max(set.within, ways.between(order.back(), order.front()).type);
      } else {
        set.between =
            std::max({set.between, ways.in(segment.net, order.front()).type, ways.out(order.back(), segment.net).type});
      }
    }
  }
}

}  // namespace

RingSet search_rings(const std::vector<Members>& machines, const ChannelLimits& limits) {
  // Machines of one kind are searched once.
  std::vector<Ways> kinds;
  std::vector<std::size_t> kind_of;
  std::map<std::pair<std::string, std::vector<int>>, std::size_t> known;
  for (const Members& members : machines) {
    const auto [entry, fresh] = known.emplace(std::pair(members.system->xml, members.nodes), kinds.size());
    if (fresh) kinds.emplace_back(members);
    kind_of.push_back(entry->second);
  }
  const std::vector<std::int64_t> rates = candidate_rates(kinds, limits);
  RingSet best;
  std::vector<std::vector<Segment>> best_by_kind;
  std::int64_t best_sum = 0;
  for (int type = 0; type < static_cast<int>(PathType::kNet); ++type) {
    const auto limit = static_cast<PathType>(type);
    for (const std::int64_t rate : rates) {
      int wanted = limits.most_channels;
      for (const Ways& ways : kinds) wanted = ways.most_channels(rate, limit, wanted);
      std::vector<std::vector<Segment>> found;
      for (std::size_t k = 0; k < kinds.size() && wanted * rate > best_sum; ++k) {
        found.push_back(Packing(kinds[k], rate, limit, wanted).run());
        wanted = static_cast<int>(found.back().size());
      }
      if (wanted * rate <= best_sum) continue;
      for (std::vector<Segment>& rings : found) rings.resize(static_cast<std::size_t>(wanted));
      best_sum = wanted * rate;
      best.mbps = rate;
      best_by_kind = std::move(found);
    }
  }
  for (std::vector<Segment>& rings : best_by_kind) {
    // Rails: the same channel uses the same port on every machine.
    std::stable_sort(rings.begin(), rings.end(), [](const Segment& a, const Segment& b) { return a.net < b.net; });
  }
  if (best_by_kind.empty()) return best;
  for (const std::size_t kind : kind_of) best.segments.push_back(best_by_kind[kind]);
  note_types(kinds, kind_of, best);
  return best;
}

}  // namespace slip::topo
