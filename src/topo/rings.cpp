#include "topo/rings.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>

#include "topo/ways.hpp"

namespace slip::topo {
namespace {

// Candidates looked at: for one rate and path type, for all of them, and at least, so that a first try can end.
constexpr std::int64_t kEffort = 20'000, kEffortInAll = 1'000'000, kMinEffortEach = 4;

// Puts ring after ring on the links, going back where the next does not fit; keeps the most that fitted together.
class Packing {
 public:
  Packing(const Ways& ways, std::int64_t rate, PathType limit, int wanted, std::int64_t effort)
      : ways_(ways),
        free_(ways.capacity()),
        rate_(rate),
        limit_(limit),
        wanted_(static_cast<std::size_t>(wanted)),
        effort_(effort) {}

  std::vector<Segment> run() {
    next_ring();
    return std::move(best_);
  }
  std::int64_t effort_left() const { return effort_; }

 private:
  bool stop() const { return best_.size() >= wanted_ || effort_ <= 0; }

  bool take(const Way& way) {
    --effort_;
    if (way.type > limit_) return false;
    // A way may pass a link twice (PXN over the GPU's own switch): take one by one, give back where it ends.
    for (std::size_t i = 0; i < way.links.size(); ++i) {
      std::int64_t& left = free_[static_cast<std::size_t>(way.links[i])];
      left -= rate_;
      if (left >= 0) continue;
      for (std::size_t k = 0; k <= i; ++k) free_[static_cast<std::size_t>(way.links[k])] += rate_;
      return false;
    }
    return true;
  }
  void give_back(const Way& way) {
    for (const int link : way.links) free_[static_cast<std::size_t>(link)] += rate_;
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
  std::int64_t rate_;
  PathType limit_;
  std::size_t wanted_;
  std::int64_t effort_;
  std::vector<Segment> rings_, best_;
  Segment now_;
  std::vector<char> used_;
};

// The best rate has some link filled by a whole number of channels: no other rates need be tried. One ring may pass a
// link several times, with each of its hops and on its way to the port and from it.
std::vector<std::int64_t> candidate_rates(const std::vector<Ways>& kinds, const ChannelLimits& limits) {
  std::set<std::int64_t, std::greater<>> rates;
  const std::int64_t most = std::max<std::int64_t>(to_rate(limits.max_gbps), 1);
  rates.insert(most);
  for (const Ways& ways : kinds) {
    const int max_shares = std::max(limits.max_channels, static_cast<int>(ways.count()) + 2);
    for (const std::int64_t capacity : std::set<std::int64_t>(ways.capacity().begin(), ways.capacity().end())) {
      for (int share = 1; share <= max_shares; ++share) {
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

// Tries path types from the nearest on and rates from the highest down; keeps what is better in all.
class Search {
 public:
  Search(const std::vector<Ways>& kinds, const ChannelLimits& limits) : kinds_(kinds), limits_(limits) {}

  // Rings by kind; none if nothing joins the members.
  std::vector<std::vector<Segment>> run(std::int64_t& rate) {
    const std::vector<std::int64_t> rates = candidate_rates(kinds_, limits_);
    for (int type = 0; type < static_cast<int>(PathType::kNet); ++type) {
      const auto limit = static_cast<PathType>(type);
      if (!std::all_of(kinds_.begin(), kinds_.end(), [&](const Ways& ways) { return ways.joined(limit); })) continue;
      for (const std::int64_t each : rates) {
        if (improve(each, limit)) rate = each;
      }
    }
    for (std::vector<Segment>& rings : best_) {
      // Rails: the same channel uses the same port on every machine.
      std::stable_sort(rings.begin(), rings.end(), [](const Segment& a, const Segment& b) { return a.net < b.net; });
    }
    return std::move(best_);
  }

 private:
  bool improve(std::int64_t rate, PathType limit) {
    int wanted = limits_.max_channels;
    for (const Ways& ways : kinds_) wanted = ways.max_channels(rate, limit, wanted);
    std::vector<std::vector<Segment>> found;
    for (const Ways& ways : kinds_) {
      if (wanted * rate <= best_sum_) return false;
      const std::int64_t least = kMinEffortEach * static_cast<std::int64_t>(ways.count()) * wanted;
      const std::int64_t effort = std::max(least, std::min(kEffort, effort_));
      Packing packing(ways, rate, limit, wanted, effort);
      found.push_back(packing.run());
      effort_ -= effort - packing.effort_left();
      wanted = static_cast<int>(found.back().size());
    }
    if (wanted * rate <= best_sum_) return false;
    for (std::vector<Segment>& rings : found) rings.resize(static_cast<std::size_t>(wanted));
    best_sum_ = wanted * rate;
    best_ = std::move(found);
    return true;
  }

  const std::vector<Ways>& kinds_;
  const ChannelLimits& limits_;
  std::vector<std::vector<Segment>> best_;
  std::int64_t best_sum_ = 0;  // of all channels
  std::int64_t effort_ = kEffortInAll;
};

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
  RingSet best;
  const std::vector<std::vector<Segment>> by_kind = Search(kinds, limits).run(best.rate);
  if (by_kind.empty()) return best;
  for (const std::size_t kind : kind_of) best.segments.push_back(by_kind[kind]);
  note_types(kinds, kind_of, best);
  return best;
}

}  // namespace slip::topo
