// SharedRun, as far as something goes wrong: how it is noticed, and what is told.
#include <fmt/format.h>

#include "base/clock.hpp"
#include "comm/host/shared_run.hpp"
#include "comm/placement/whereabouts.hpp"

namespace slip {
namespace {

// How long a call waits for a link before it asks the other rank for its calls, and the longest pause between two such
// questions. A rank that only sends, or waits itself, has compared nothing. An answer takes less than a millisecond; a
// stopped process gives none.
constexpr std::int64_t kAskAfterNs = 100'000'000, kAskPauseNs = 10'000'000'000;
constexpr std::chrono::milliseconds kAnswerTime{50};

}  // namespace

// Told to the ranks of this host and to all others, unless somebody has told why before.
void SharedRun::fail(Code code, const std::string& text) const {
  calls_.seat.fail(code == Code::kAborted ? LedgerLife::kAborted : LedgerLife::kFailed, text);
  if (!calls_.host || calls_.host->fail(code, text)) calls_.bootstrap.fail(code, text);
}

// With all that have posted the call, whomever it waits for: one of them may wait for this rank.
void SharedRun::compare_with_posted() {
  if (waits_for_ != Wait::kMeet && waits_for_ != Wait::kPhase) return;  // this rank has not posted it
  for (int rank = 0; rank < calls_.nranks; ++rank) {
    if (rank != calls_.rank && calls_.host->has_posted(rank, slot_)) calls_.host->compare(rank, slot_);
  }
}

std::optional<std::pair<Signature, Signature>> SharedRun::difference_from(int rank,
                                                                          std::chrono::milliseconds time) const {
  const auto answers = calls_.bootstrap.ask({&rank, 1}, time);
  const auto found = answers.find(rank);
  if (found == answers.end()) return std::nullopt;
  const std::optional<CallHistory::Snapshot> other = CallMonitor::history_in(found->second);
  if (!other) return std::nullopt;
  CallHistory::Snapshot own = calls_.history->snapshot();
  // A small call may run before it is enqueued, and is added to the history after that.
  if (call_.kind != Collective::kMessage) own.last[signature_.number() % CallHistory::kCalls] = signature_;
  return first_difference(own, *other);
}

// Throws if the rank that it waits for has enqueued other calls than this one.
void SharedRun::ask_for_history() {
  ask_pause_ns_ = std::min(2 * ask_pause_ns_, kAskPauseNs);
  const int rank = static_cast<int>(whom_);
  const auto difference = difference_from(rank, kAnswerTime);
  ask_ns_ = now_ns() + ask_pause_ns_;
  if (difference) throw CallMismatch(calls_.rank, difference->first, rank, difference->second);
}

// Without saying which: look_for_trouble() does. Throws a mismatch.
bool SharedRun::in_trouble() {
  if (calls_.aborted.load(std::memory_order_relaxed) || (calls_.host && calls_.host->failed()) ||
      calls_.bootstrap.broken())
    return true;
  if (awaits_who_left()) return true;
  compare_with_posted();
  const std::int64_t now = now_ns();
  if (deadline_ns_ == 0) {
    deadline_ns_ = now + calls_.timeout_ns;
    ask_pause_ns_ = kAskAfterNs;
    ask_ns_ = now + kAskAfterNs;
  }
  return now > deadline_ns_ || (now > ask_ns_ && on_link() && !calls_.in_turns);
}

void SharedRun::look_for_trouble() {
  if (!in_trouble()) return;
  if (calls_.aborted.load(std::memory_order_relaxed))  // relaxed: nothing else is passed with it
    throw Error(Code::kAborted, fmt::format("rank {}: aborted in {}", calls_.rank, signature_.text()), {});
  calls_.throw_failure();
  if (calls_.bootstrap.broken()) throw_loss();
  if (awaits_who_left()) throw_left(on_link() ? static_cast<int>(whom_) : next_rank_);
  if (on_link() && !calls_.in_turns) ask_for_history();
  if (now_ns() > deadline_ns_) time_out();
}

// Whether it has not come to this call, or not as far as is waited for.
bool SharedRun::is_missing(int rank) const {
  if (rank == calls_.rank) return false;
  if (waits_for_ == Wait::kTurn) return false;
  if (whom_ != kEverybody && whom_ != static_cast<std::uint64_t>(rank)) return false;
  if (on_link()) return true;
  const std::uint64_t last = calls_.host->last_posted(rank);
  if (waits_for_ == Wait::kRoom) return last < value_;
  return last < slot_ || (last == slot_ && waits_for_ == Wait::kPhase);
}

void SharedRun::time_out() const {
  std::vector<int> missing;
  for (int rank = 0; rank < calls_.nranks; ++rank) {
    if (is_missing(rank)) missing.push_back(rank);
  }
  const char* const what = !on_link() ? "" : link_sends_ ? ", to take what it sends" : ", to send";
  throw Error(Code::kTimeout,
              fmt::format("rank {} waited {:.1f} s in {} for {}{}", calls_.rank,
                          static_cast<double>(calls_.timeout_ns) / 1e9, signature_.text(),
                          missing.empty() ? "its own earlier call" : whereabouts(calls_.bootstrap, missing), what),
              {});
}

}  // namespace slip
