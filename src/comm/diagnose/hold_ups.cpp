#include "comm/diagnose/hold_ups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "comm/api/call.hpp"

namespace slip {
namespace {

// Edges lead from a rank in a communicator to what it waits for: another rank of the same one, or its own call in
// another communicator, which stands before it.
struct Edge {
  std::size_t to = 0;
  enum class Kind {
    kMissing,  // has not come to the call
    kLate,     // has come, and does not get on
    kBehind,   // its own call stands in the same stream behind one of another communicator
    kNotMade,  // its own call was not made, and it is in one of another communicator
  } kind = Kind::kMissing;
};

// Shorter waits are how ranks live with each other.
constexpr std::int64_t kNoticeableNs = 100'000'000, kLongNs = 500'000'000;

class Waits {
 public:
  explicit Waits(std::span<const RankSight> ranks) : ranks_(ranks), edges_(ranks.size()) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i].waits()) add_waits_of(i);
      else if (ranks[i].alive() && !ranks[i].view.in_call()) add_own_calls_before(i);
    }
  }

  std::vector<HoldUp> circles();
  std::vector<HoldUp> blockers() const;

 private:
  bool same_communicator(std::size_t a, std::size_t b) const {
    return ranks_[a].view.communicator == ranks_[b].view.communicator;
  }
  // Has it not come to the call that the other is in? What ranks are at was read one after the other; but who had not
  // come when it was read had not come before, and the other cannot have gone on without it.
  // Messages are of two ranks, and say nothing of how far others are.
  bool missing(std::size_t rank, std::size_t waiting) const {
    const LedgerView &there = ranks_[rank].view, &here = ranks_[waiting].view;
    const Signature its{there.call[0], there.call[1]}, own{here.call[0], here.call[1]};
    if (its.kind() == Collective::kMessage || own.kind() == Collective::kMessage) return false;
    return rank != waiting && same_communicator(rank, waiting) && its.number() < own.number();
  }
  void add_waits_of(std::size_t waiting);
  void add_own_calls_before(std::size_t rank);
  bool only_one_of_its_process(std::size_t rank) const;
  std::string name(std::size_t rank) const {
    return fmt::format("rank {} of {}", ranks_[rank].view.rank, communicator_text(ranks_[rank].view));
  }
  std::string circle_text(const std::vector<std::size_t>& nodes, const std::vector<Edge>& ways) const;
  HoldUp blocker(std::size_t rank, const std::vector<std::size_t>& waiting) const;

  std::span<const RankSight> ranks_;
  std::vector<std::vector<Edge>> edges_;
  std::set<std::size_t> in_circle_;
};

void Waits::add_waits_of(std::size_t waiting) {
  const LedgerView& view = ranks_[waiting].view;
  // With a root not everybody needs everybody.
  const bool all = !has_root(Signature{view.call[0], view.call[1]}.kind());
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const bool asked = i != waiting && same_communicator(i, waiting) && ranks_[i].view.rank == view.waits_for;
    if (missing(i, waiting) && (all || asked)) edges_[waiting].push_back({i, Edge::Kind::kMissing});
    else if (asked) edges_[waiting].push_back({i, Edge::Kind::kLate});
  }
}

bool Waits::only_one_of_its_process(std::size_t rank) const {
  return std::ranges::count_if(ranks_, [&](const RankSight& other) {
           return other.view.pid == ranks_[rank].view.pid && other.view.communicator == ranks_[rank].view.communicator;
         }) == 1;
}

// A call that is enqueued in the stream in which another waits stands behind it. A call that is not enqueued yet may
// come once the host thread is through with the other, if it waits for that one.
void Waits::add_own_calls_before(std::size_t rank) {
  const LedgerView& view = ranks_[rank].view;
  const bool enqueued = view.enqueued > view.ended;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const RankSight& other = ranks_[i];
    if (!other.waits() || other.view.pid != view.pid || same_communicator(i, rank)) continue;
    if (enqueued && view.next_stream != 0 && view.next_stream == other.view.stream)
      edges_[rank].push_back({i, Edge::Kind::kBehind});
    else if (!enqueued && other.view.waits_ns >= kLongNs && only_one_of_its_process(rank) && only_one_of_its_process(i))
      edges_[rank].push_back({i, Edge::Kind::kNotMade});
  }
}

std::string Waits::circle_text(const std::vector<std::size_t>& nodes, const std::vector<Edge>& ways) const {
  std::string text;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const LedgerView& view = ranks_[nodes[i]].view;
    const std::string separator = text.empty() ? "" : "; ";
    if (ways[i].kind == Edge::Kind::kMissing) {
      text += fmt::format("{}{} waits in {} for rank {}, since {}", separator, name(nodes[i]), call_text(view),
                          ranks_[ways[i].to].view.rank, seconds_text(view.waits_ns));
    } else {
      text +=
          fmt::format("{}{} {} {}", separator, name(nodes[i]),
                      ways[i].kind == Edge::Kind::kBehind ? "has that call enqueued in its stream behind its call in"
                                                          : "has not made that call and is meanwhile in a call of",
                      communicator_text(ranks_[ways[i].to].view));
    }
  }
  return text;
}

// Depth first from each; the first way back to a node on the way is a circle. Those that nothing can end come first.
std::vector<HoldUp> Waits::circles() {
  std::vector<HoldUp> result;
  for (const bool certain : {true, false}) {
    std::set<std::size_t> done;
    std::vector<std::size_t> path;
    std::vector<Edge> ways;
    const auto visit = [&](const auto& self, std::size_t node) -> void {
      if (done.contains(node)) return;
      if (const auto begin = std::ranges::find(path, node); begin != path.end()) {
        const auto skipped = begin - path.begin();
        const std::vector<std::size_t> nodes(begin, path.end());
        if (std::ranges::any_of(nodes, [&](std::size_t one) { return in_circle_.contains(one); })) return;
        in_circle_.insert(nodes.begin(), nodes.end());
        result.push_back({certain ? HoldUp::Kind::kDeadlock : HoldUp::Kind::kCircle,
                          circle_text(nodes, {ways.begin() + skipped, ways.end()})});
        return;
      }
      path.push_back(node);
      for (const Edge& edge : edges_[node]) {
        if (edge.kind == Edge::Kind::kLate || (certain && edge.kind == Edge::Kind::kNotMade)) continue;
        ways.push_back(edge);
        self(self, edge.to);
        ways.pop_back();
      }
      path.pop_back();
      done.insert(node);
    };
    for (std::size_t i = 0; i < ranks_.size(); ++i) visit(visit, i);
  }
  return result;
}

HoldUp Waits::blocker(std::size_t rank, const std::vector<std::size_t>& waiting) const {
  const RankSight& sight = ranks_[rank];
  std::string who;
  std::int64_t longest = 0;
  for (const std::size_t one : waiting) {
    who += fmt::format("{}{}", who.empty() ? "" : ", ", ranks_[one].view.rank);
    longest = std::max(longest, ranks_[one].view.waits_ns);
  }
  const RankSight& first = ranks_[waiting.front()];
  const bool came = sight.view.begun >= first.view.begun;
  HoldUp result;
  if (!sight.alive()) result.kind = HoldUp::Kind::kEnded;
  else if (sight.stopped()) result.kind = HoldUp::Kind::kStopped;
  result.text = fmt::format("{} {} {}: it {}; {} {} {} for it, since {}", name(rank),
                            came ? "is waited for in" : "has not come to", call_text(first.view), doing(sight),
                            waiting.size() == 1 ? "rank" : "ranks", who, waiting.size() == 1 ? "waits" : "wait",
                            seconds_text(longest));
  return result;
}

// Who is waited for and does not wait itself.
std::vector<HoldUp> Waits::blockers() const {
  std::map<std::size_t, std::vector<std::size_t>> waiting;
  std::vector<HoldUp> result;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].waits()) continue;
    for (const Edge& edge : edges_[i]) {
      if ((edges_[edge.to].empty() || ranks_[edge.to].stopped()) && !in_circle_.contains(edge.to))
        waiting[edge.to].push_back(i);
    }
    const auto is_asked = [&](const RankSight& other) {
      return other.view.communicator == ranks_[i].view.communicator && other.view.rank == ranks_[i].view.waits_for;
    };
    if (ranks_[i].view.waits_ns >= kNoticeableNs && std::ranges::none_of(ranks_, is_asked))
      result.push_back(
          {HoldUp::Kind::kNotCome,
           fmt::format("{} waits in {} for rank {}, since {}: that rank is not seen here, it is on another "
                       "host, of another user or gone",
                       name(i), call_text(ranks_[i].view), ranks_[i].view.waits_for,
                       seconds_text(ranks_[i].view.waits_ns))});
  }
  for (const auto& [rank, by] : waiting) {
    const auto noticeable = [&](std::size_t one) { return ranks_[one].view.waits_ns >= kNoticeableNs; };
    if (ranks_[rank].stopped() || std::ranges::any_of(by, noticeable)) result.push_back(blocker(rank, by));
  }
  return result;
}

}  // namespace

const char* hold_up_name(HoldUp::Kind kind) {
  switch (kind) {
    case HoldUp::Kind::kNotCome: return "held up";
    case HoldUp::Kind::kStopped: return "stopped";
    case HoldUp::Kind::kDeadlock: return "deadlock";
    case HoldUp::Kind::kCircle: return "circle of waits";
    case HoldUp::Kind::kEnded: return "ended";
  }
  return "";
}

std::vector<HoldUp> hold_ups(std::span<const RankSight> ranks) {
  Waits waits(ranks);
  std::vector<HoldUp> result = waits.circles();
  for (HoldUp& one : waits.blockers()) result.push_back(std::move(one));
  return result;
}

}  // namespace slip
