#include "comm/diagnose/missing_ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "comm/diagnose/call_history.hpp"
#include "comm/diagnose/stalls.hpp"
#include "transport/ledger/ledger_reader.hpp"

namespace slip {
namespace {

constexpr std::chrono::milliseconds kAnswerTime{1000};
constexpr std::size_t kMaxNamed = 16;  // a longer list of ranks would help no reader

class MissingRanks {
 public:
  MissingRanks(const Bootstrap& bootstrap, std::span<const int> ranks)
      : bootstrap_(bootstrap),
        named_(ranks.first(std::min(ranks.size(), kMaxNamed))),
        more_(ranks.size() - named_.size()) {
    read(bootstrap.rank());
    std::vector<int> unseen;
    for (const int rank : named_) {
      read(rank);
      if (!sights_.contains(rank)) unseen.push_back(rank);
    }
    if (!unseen.empty()) ask(unseen);
  }

  std::string text() const {
    std::string text;
    for (const int rank : named_) {
      const auto found = sights_.find(rank);
      const std::string said = found == sights_.end() ? fmt::format("process {} on host '{}' gave no answer",
                                                                    place(rank).pid, place(rank).host)
                                                      : "it " + doing(found->second);
      text += fmt::format("{}rank {} ({})", text.empty() ? "" : ", ", rank, said);
    }
    if (more_ > 0) text += fmt::format(" and {} more", more_);
    return text + circle();
  }

 private:
  const Placement& place(int rank) const { return bootstrap_.placements()[static_cast<std::size_t>(rank)]; }

  // Reads all ranks of the process, because a circle of waits may lead through other communicators.
  void read(int rank) {
    const Placement& own = place(bootstrap_.rank());
    const Placement& there = place(rank);
    if (!same_host(own, there) || own.pid_space != there.pid_space || !processes_.insert(there.pid).second) return;
    const std::optional<ProcessLedger> ledger = read_ledger(there.pid);
    if (!ledger) return;
    for (const LedgerView& view : ledger->ranks) {
      all_.push_back({view, ledger->process.state});
      if (view.communicator == bootstrap_.id()) sights_[view.rank] = all_.back();
    }
  }

  void ask(const std::vector<int>& ranks) {
    for (const auto& [rank, answer] : bootstrap_.ask(ranks, kAnswerTime)) {
      std::optional<LedgerView> view = CallMonitor::view_in(answer);
      if (!view) continue;
      make_safe(*view);
      const RankState sight{.view = *view};
      sights_[rank] = sight;
      all_.push_back(sight);
    }
  }

  std::string circle() const {
    LedgerView own;
    own.communicator = bootstrap_.id();
    const std::string name = fmt::format("rank {} of {}", bootstrap_.rank(), communicator_text(own));
    for (const Stall& one : find_stalls(all_)) {
      const bool is_circle = one.kind == Stall::Kind::kDeadlock || one.kind == Stall::Kind::kPossibleDeadlock;
      if (is_circle && one.text.find(name) != std::string::npos)
        return fmt::format("; {}: {}", stall_name(one.kind), one.text);
    }
    return "";
  }

  const Bootstrap& bootstrap_;
  const std::span<const int> named_;
  const std::size_t more_;
  std::set<int> processes_;          // whose ledgers were read
  std::map<int, RankState> sights_;  // of this communicator
  std::vector<RankState> all_;
};

}  // namespace

std::string missing_ranks_text(const Bootstrap& bootstrap, std::span<const int> ranks) {
  return MissingRanks(bootstrap, ranks).text();
}

}  // namespace slip
