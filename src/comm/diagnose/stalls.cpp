#include "comm/diagnose/stalls.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "comm/api/call.hpp"
#include "comm/diagnose/call_history.hpp"
#include "transport/bootstrap/bootstrap.hpp"

namespace slip::comm {
namespace {

std::string ago(std::int64_t ns) { return ns <= 0 ? "a moment ago" : seconds_text(ns) + " ago"; }

std::string last_call(const transport::LedgerView& view) {
  if (view.ended == 0) return fmt::format("has made no call since it joined {}", ago(view.opened_ns));
  if (view.begun != view.ended) return fmt::format("ended call {}, {}", view.ended, ago(view.ended_ns));
  return fmt::format("ended {}, {}", call_text(view), ago(view.ended_ns));
}

std::string doing_alive(const transport::LedgerView& view) {
  if (in_call(view) && view.waits_for != transport::kWaitsForNoRank)
    return fmt::format("waits in {} for rank {}, {} so far", call_text(view), view.waits_for,
                       seconds_text(view.waits_ns));
  if (in_call(view)) return fmt::format("moves data in {}", call_text(view));
  if (view.enqueued > view.ended)
    return fmt::format("has enqueued call {}, but its stream has not reached it; it {}", view.ended + 1,
                       last_call(view));
  return last_call(view) + " and is outside Slipstream" + (view.ended > 0 ? " since" : "");
}

// A node of the wait graph is a rank in one communicator. An edge leads from a node to one that it waits for: another
// rank of the same communicator, or a rank of the same process in another communicator, whose call must end first.
struct Edge {
  std::size_t to = 0;
  enum class Kind {
    kMissing,  // `to` has not joined the call
    kLate,     // `to` has joined the call or may have joined it
    kBehind,   // the waiting rank's call is enqueued behind the call of `to`, in the same stream
    kNotMade,  // the waiting rank's call is not enqueued, and its process is in the call of `to`
  } kind = Kind::kMissing;
};

// Waits shorter than kNoticeableNs are normal and not reported, except in cycles and for stopped processes. If a
// process has waited for kLongNs in a call of one communicator, this wait counts as the reason why the process has made
// no call of another communicator.
constexpr std::int64_t kNoticeableNs = 100'000'000, kLongNs = 500'000'000;

class WaitGraph {
 public:
  explicit WaitGraph(std::span<const RankState> ranks) : ranks_(ranks), edges_(ranks.size()) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i].waits()) add_waits_of(i);
      else if (ranks[i].alive() && !in_call(ranks[i].view)) add_own_calls_before(i);
    }
  }

  std::vector<Stall> cycles();
  std::vector<Stall> blockers() const;

 private:
  bool same_communicator(std::size_t a, std::size_t b) const {
    return ranks_[a].view.communicator == ranks_[b].view.communicator;
  }
  // True: by its ledger, `rank` has not joined the call that `waiting` is in. The ledgers were read one after the
  // other. If the ledger of `waiting` was read first, the result is exact. If the ledger of `rank` was read first,
  // `rank` may have joined since then. Sends and receives are not compared, because their numbers count the messages of
  // one pair of ranks.
  bool missing(std::size_t rank, std::size_t waiting) const {
    const transport::LedgerView &there = ranks_[rank].view, &here = ranks_[waiting].view;
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
  std::string cycle_text(const std::vector<std::size_t>& nodes, const std::vector<Edge>& path_edges) const;
  Stall blocker(std::size_t rank, const std::vector<std::size_t>& waiting) const;

  std::span<const RankState> ranks_;
  std::vector<std::vector<Edge>> edges_;
  std::set<std::size_t> in_cycle_;
};

void WaitGraph::add_waits_of(std::size_t waiting) {
  const transport::LedgerView& view = ranks_[waiting].view;
  // In a call with a root, a rank does not need all others: only the rank that its ledger names counts.
  const bool all = !has_root(Signature{view.call[0], view.call[1]}.kind());
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const bool named = i != waiting && same_communicator(i, waiting) && ranks_[i].view.rank == view.waits_for;
    if (missing(i, waiting) && (all || named)) edges_[waiting].push_back({i, Edge::Kind::kMissing});
    else if (named) edges_[waiting].push_back({i, Edge::Kind::kLate});
  }
}

// Containers of several hosts often have processes with equal pids. A rank without a ledger of its own has pid 0.
bool same_process(const transport::LedgerView& a, const transport::LedgerView& b) {
  return a.pid != 0 && a.pid == b.pid && std::string_view(a.host) == b.host;
}

bool WaitGraph::only_one_of_its_process(std::size_t rank) const {
  return std::ranges::count_if(ranks_, [&](const RankState& other) {
           return same_process(other.view, ranks_[rank].view) &&
                  other.view.communicator == ranks_[rank].view.communicator;
         }) == 1;
}

// `rank` is outside a call. If its next call is enqueued in the stream of a waiting call of another communicator, the
// next call waits for that call. If its next call is not enqueued, the host thread may wait for the other call first.
void WaitGraph::add_own_calls_before(std::size_t rank) {
  const transport::LedgerView& view = ranks_[rank].view;
  const bool enqueued = view.enqueued > view.ended;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const RankState& other = ranks_[i];
    if (!other.waits() || !same_process(other.view, view) || same_communicator(i, rank)) continue;
    if (enqueued && view.next_stream != 0 && view.next_stream == other.view.stream)
      edges_[rank].push_back({i, Edge::Kind::kBehind});
    else if (!enqueued && other.view.waits_ns >= kLongNs && only_one_of_its_process(rank) && only_one_of_its_process(i))
      edges_[rank].push_back({i, Edge::Kind::kNotMade});
  }
}

std::string WaitGraph::cycle_text(const std::vector<std::size_t>& nodes, const std::vector<Edge>& path_edges) const {
  std::string text;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const transport::LedgerView& view = ranks_[nodes[i]].view;
    const std::string separator = text.empty() ? "" : "; ";
    if (path_edges[i].kind == Edge::Kind::kMissing) {
      text += fmt::format("{}{} waits in {} for rank {}, {} so far", separator, name(nodes[i]), call_text(view),
                          ranks_[path_edges[i].to].view.rank, seconds_text(view.waits_ns));
    } else {
      text += fmt::format("{}{} {} {}", separator, name(nodes[i]),
                          path_edges[i].kind == Edge::Kind::kBehind
                              ? "has that call enqueued in its stream behind its call in"
                              : "has not made that call and is meanwhile in a call of",
                          communicator_text(ranks_[path_edges[i].to].view));
    }
  }
  return text;
}

// A depth-first search from each node: an edge back to a node on the path closes a cycle. The first pass finds certain
// deadlocks. The second pass also follows edges of kNotMade, so it finds possible deadlocks.
std::vector<Stall> WaitGraph::cycles() {
  std::vector<Stall> result;
  for (const bool certain : {true, false}) {
    std::set<std::size_t> done;
    std::vector<std::size_t> path;
    std::vector<Edge> path_edges;
    const auto visit = [&](const auto& self, std::size_t node) -> void {
      if (done.contains(node)) return;
      if (const auto begin = std::ranges::find(path, node); begin != path.end()) {
        const auto skipped = begin - path.begin();
        const std::vector<std::size_t> nodes(begin, path.end());
        if (std::ranges::any_of(nodes, [&](std::size_t one) { return in_cycle_.contains(one); })) return;
        in_cycle_.insert(nodes.begin(), nodes.end());
        result.push_back({certain ? Stall::Kind::kDeadlock : Stall::Kind::kPossibleDeadlock,
                          cycle_text(nodes, {path_edges.begin() + skipped, path_edges.end()})});
        return;
      }
      path.push_back(node);
      for (const Edge& edge : edges_[node]) {
        if (edge.kind == Edge::Kind::kLate || (certain && edge.kind == Edge::Kind::kNotMade)) continue;
        path_edges.push_back(edge);
        self(self, edge.to);
        path_edges.pop_back();
      }
      path.pop_back();
      done.insert(node);
    };
    for (std::size_t i = 0; i < ranks_.size(); ++i) visit(visit, i);
  }
  return result;
}

Stall WaitGraph::blocker(std::size_t rank, const std::vector<std::size_t>& waiting) const {
  const RankState& state = ranks_[rank];
  std::string waiters;
  std::int64_t longest = 0;
  for (const std::size_t one : waiting) {
    waiters += fmt::format("{}{}", waiters.empty() ? "" : ", ", ranks_[one].view.rank);
    longest = std::max(longest, ranks_[one].view.waits_ns);
  }
  const RankState& first = ranks_[waiting.front()];
  // Does not compare `begun`, which also counts sends and receives: their number differs between ranks.
  const bool joined = !missing(rank, waiting.front());
  const Stall::Kind kind = !state.alive()    ? Stall::Kind::kEnded
                           : state.stopped() ? Stall::Kind::kStopped
                                             : Stall::Kind::kMissingRank;
  return {kind, fmt::format("{} {} {}: it {}; {} {} {} for it, {} so far", name(rank),
                            joined ? "is waited for in" : "has not joined", call_text(first.view), doing(state),
                            waiting.size() == 1 ? "rank" : "ranks", waiters, waiting.size() == 1 ? "waits" : "wait",
                            seconds_text(longest))};
}

// The ranks that others wait for and that wait for nothing themselves, or whose process is stopped.
std::vector<Stall> WaitGraph::blockers() const {
  std::map<std::size_t, std::vector<std::size_t>> waiters_of;
  std::vector<Stall> result;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].waits()) continue;
    for (const Edge& edge : edges_[i]) {
      if ((edges_[edge.to].empty() || ranks_[edge.to].stopped()) && !in_cycle_.contains(edge.to))
        waiters_of[edge.to].push_back(i);
    }
    const auto is_awaited = [&](const RankState& other) {
      return other.view.communicator == ranks_[i].view.communicator && other.view.rank == ranks_[i].view.waits_for;
    };
    if (ranks_[i].view.waits_ns >= kNoticeableNs && std::ranges::none_of(ranks_, is_awaited))
      result.push_back(
          {Stall::Kind::kMissingRank,
           fmt::format("{} waits in {} for rank {}, {} so far: the ledger of that rank cannot be read here; it "
                       "runs on another host or as another user, or it has ended",
                       name(i), call_text(ranks_[i].view), ranks_[i].view.waits_for,
                       seconds_text(ranks_[i].view.waits_ns))});
  }
  for (const auto& [rank, waiters] : waiters_of) {
    const auto noticeable = [&](std::size_t one) { return ranks_[one].view.waits_ns >= kNoticeableNs; };
    if (ranks_[rank].stopped() || std::ranges::any_of(waiters, noticeable)) result.push_back(blocker(rank, waiters));
  }
  return result;
}

constexpr std::chrono::milliseconds kAnswerTime{1000};
constexpr std::size_t kMaxNamed = 16;  // a longer list of ranks would help no reader

class MissingRanks {
 public:
  MissingRanks(const transport::Bootstrap& bootstrap, std::span<const int> ranks)
      : bootstrap_(bootstrap),
        named_(ranks.first(std::min(ranks.size(), kMaxNamed))),
        more_(ranks.size() - named_.size()) {
    read(bootstrap.rank());
    std::vector<int> unread;
    for (const int rank : named_) {
      read(rank);
      if (!states_.contains(rank)) unread.push_back(rank);
    }
    if (!unread.empty()) ask(unread);
  }

  std::string text() const {
    std::string text;
    for (const int rank : named_) {
      const auto found = states_.find(rank);
      const std::string state = found == states_.end() ? fmt::format("process {} on host '{}' gave no answer",
                                                                     place(rank).pid, place(rank).host)
                                                       : "it " + doing(found->second);
      text += fmt::format("{}rank {} ({})", text.empty() ? "" : ", ", rank, state);
    }
    if (more_ > 0) text += fmt::format(" and {} more", more_);
    return text + cycle();
  }

 private:
  const transport::Placement& place(int rank) const { return bootstrap_.placements()[static_cast<std::size_t>(rank)]; }

  // Reads all communicators of the rank's process, because a cycle of waits may lead through several communicators.
  void read(int rank) {
    const transport::Placement& own = place(bootstrap_.rank());
    const transport::Placement& there = place(rank);
    if (!transport::same_host(own, there) || own.pid_space != there.pid_space || !processes_.insert(there.pid).second)
      return;
    const std::optional<transport::ProcessLedger> ledger = transport::read_ledger(there.pid);
    if (!ledger) return;
    for (const transport::LedgerView& view : ledger->ranks) {
      all_.push_back({view, ledger->process.state});
      if (view.communicator == bootstrap_.id()) states_[view.rank] = all_.back();
    }
  }

  void ask(const std::vector<int>& ranks) {
    for (const auto& [rank, answer] : bootstrap_.ask(ranks, kAnswerTime)) {
      std::optional<transport::LedgerView> view = CallMonitor::view_in(answer);
      if (!view) continue;
      transport::make_safe(*view);
      const RankState state{.view = *view};
      states_[rank] = state;
      all_.push_back(state);
    }
  }

  std::string cycle() const {
    const auto own = std::ranges::find_if(all_, [&](const RankState& one) {
      return one.view.communicator == bootstrap_.id() && one.view.rank == bootstrap_.rank();
    });
    if (own == all_.end()) return "";
    const std::string name = fmt::format("rank {} of {}", bootstrap_.rank(), communicator_text(own->view));
    for (const Stall& one : find_stalls(all_)) {
      const bool is_cycle = one.kind == Stall::Kind::kDeadlock || one.kind == Stall::Kind::kPossibleDeadlock;
      if (is_cycle && one.text.find(name) != std::string::npos)
        return fmt::format("; {}: {}", stall_name(one.kind), one.text);
    }
    return "";
  }

  const transport::Bootstrap& bootstrap_;
  const std::span<const int> named_;
  const std::size_t more_;
  std::set<int> processes_;          // the processes whose ledgers were read
  std::map<int, RankState> states_;  // of this communicator
  std::vector<RankState> all_;
};

}  // namespace

std::string call_text(const transport::LedgerView& view) { return Signature{view.call[0], view.call[1]}.text(); }

std::string communicator_text(const transport::LedgerView& view) {
  const std::string id = communicator_id(view);
  return view.name[0] == '\0' ? id : fmt::format("'{}' ({})", view.name, id);
}

std::string communicator_id(const transport::LedgerView& view) {
  return fmt::format("{:08x}", view.communicator & 0xffffffff);
}

std::string seconds_text(std::int64_t ns) {
  const double seconds = static_cast<double>(ns) / 1e9;
  if (seconds < 120) return fmt::format("{:.1f} s", seconds);
  return seconds < 7200 ? fmt::format("{:.0f} min", seconds / 60) : fmt::format("{:.1f} h", seconds / 3600);
}

std::string state_word(const RankState& state) {
  const transport::LedgerView& view = state.view;
  switch (view.life) {
    case transport::LedgerLife::kFailed: return "failed";
    case transport::LedgerLife::kAborted: return "aborted";
    case transport::LedgerLife::kLeft: return "left";
    case transport::LedgerLife::kFree:
    case transport::LedgerLife::kJoined: break;
  }
  if (state.stopped()) return "stopped";
  if (state.waits()) return "waits";
  if (in_call(view)) return "moves data";
  return view.enqueued > view.ended ? "enqueued" : "outside";
}

std::int64_t in_state_ns(const RankState& state) {
  const transport::LedgerView& view = state.view;
  if (!state.alive()) return 0;
  if (state.stopped()) return view.looked_ns;
  if (state.waits()) return view.waits_ns;
  if (in_call(view)) return view.begun_ns;
  return view.ended > 0 ? view.ended_ns : view.opened_ns;
}

std::string doing(const RankState& state) {
  const transport::LedgerView& view = state.view;
  switch (view.life) {
    case transport::LedgerLife::kFailed: return fmt::format("failed: {}", view.text);
    case transport::LedgerLife::kAborted: return fmt::format("aborted: {}", view.text);
    case transport::LedgerLife::kLeft: return fmt::format("has left the communicator after call {}", view.ended);
    case transport::LedgerLife::kFree:
    case transport::LedgerLife::kJoined: break;
  }
  if (state.stopped())
    return fmt::format("is stopped (process {}, by a signal or a debugger), for at most {}; it {}", view.pid,
                       seconds_text(view.looked_ns), doing_alive(view));
  return doing_alive(view);
}

const char* stall_name(Stall::Kind kind) {
  constexpr const char* kNames[] = {"blocked", "stopped", "deadlock", "cycle of waits", "ended"};
  static_assert(std::size(kNames) == static_cast<std::size_t>(Stall::Kind::kEnded) + 1);
  return kNames[static_cast<std::size_t>(kind)];
}

std::vector<Stall> find_stalls(std::span<const RankState> ranks) {
  WaitGraph waits(ranks);
  std::vector<Stall> result = waits.cycles();
  for (Stall& one : waits.blockers()) result.push_back(std::move(one));
  return result;
}

std::string missing_ranks_text(const transport::Bootstrap& bootstrap, std::span<const int> ranks) {
  return MissingRanks(bootstrap, ranks).text();
}

}  // namespace slip::comm
