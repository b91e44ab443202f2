#include "comm/host/failure_check.hpp"

#include <algorithm>
#include <vector>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "comm/diagnose/stalls.hpp"
#include "transport/socket/socket.hpp"

namespace slip::comm {
namespace {

using Kind = WaitCondition::Kind;

// A call waits kAskAfterNs for a link before this rank asks the other rank for its history. kAskPauseNs is the longest
// pause between two such requests. They find mismatches that no rank has noticed: only a rank that receives compares
// signatures. An answer takes less than a millisecond; a stopped process does not answer.
constexpr std::int64_t kAskAfterNs = 100'000'000, kAskPauseNs = 10'000'000'000;
constexpr std::chrono::milliseconds kAnswerTime{50}, kMismatchAnswerTime{1000};

// A connection may close before the notification of the reason arrives. with_cause() waits for the notification for
// kReasonNs at most, and polls every kLookNs.
constexpr std::int64_t kReasonNs = 1'000'000'000, kLookNs = 5'000'000;

// A waiting thread looks at least every few milliseconds. After a pause of kLongPauseNs its process may have been
// stopped. kMeasureNs is how long this may take to be measured.
constexpr std::int64_t kLongPauseNs = 300'000'000, kMeasureNs = 500'000'000;

}  // namespace

void CallContext::throw_failure() const {
  if (host && host->failed()) throw host->why();
  if (!bootstrap.broken()) return;
  if (const std::optional<transport::RankFailure> failure = bootstrap.failures().failure())
    throw Error(failure->code, failure->text, {});
}

void FailureCheck::report(ErrorCode code, const std::string& text) const {
  context_.ledger_slot.fail(
      code == ErrorCode::kAborted ? transport::LedgerLife::kAborted : transport::LedgerLife::kFailed, text);
  if (!context_.host || context_.host->fail(code, text)) context_.bootstrap.failures().fail(code, text);
}

// Compares with all ranks that have posted the call, not only with the awaited rank: a rank with a different call may
// wait for this rank.
void FailureCheck::compare_with_posted() {
  if (condition_.kind() != Kind::kMeet && condition_.kind() != Kind::kPhase) return;  // this rank has not posted it
  for (int rank = 0; rank < context_.nranks; ++rank) {
    if (rank != context_.rank && context_.host->has_posted(rank, call_.host_number))
      context_.host->compare(rank, call_.host_number);
  }
}

bool FailureCheck::has_failed() {
  if (context_.has_failed()) return true;
  if (waits_for_departed()) return true;
  compare_with_posted();
  const std::int64_t now = base::now_ns();
  if (deadline_ns_ == 0) {
    deadline_ns_ = now + context_.timeout_ns;
    ask_pause_ns_ = kAskAfterNs;
    ask_ns_ = now + kAskAfterNs;
    suspended_ns_ = context_.bootstrap.suspended_ns();
    may_extend_ = true;
  }
  exclude_suspension(now);
  checked_ns_ = now;
  return now > deadline_ns_ || (now > ask_ns_ && condition_.on_link() && !context_.one_thread);
}

// A job that is stopped and continued as a whole, for example by Ctrl-Z, must not time out. If this thread looks for
// the first time after a long pause, the thread that measures the stop may not have run yet: it gets some time, once.
void FailureCheck::exclude_suspension(std::int64_t now) {
  const std::int64_t suspended_ns = context_.bootstrap.suspended_ns();
  deadline_ns_ += suspended_ns - std::exchange(suspended_ns_, suspended_ns);
  if (now <= deadline_ns_ || now - checked_ns_ < kLongPauseNs || !std::exchange(may_extend_, false)) return;
  deadline_ns_ = now + kMeasureNs;
}

void FailureCheck::throw_if_failed() {
  if (!has_failed()) return;
  if (context_.aborted.load(std::memory_order_relaxed))  // relaxed: no other data is published with it
    base::fail(ErrorCode::kAborted, {}, "rank {}: aborted in {}", context_.rank, call_.signature.text());
  context_.throw_failure();
  if (context_.bootstrap.broken()) throw_loss();
  if (waits_for_departed()) throw_departed(condition_.rank());
  if (condition_.on_link() && !context_.one_thread) ask_for_history();
  if (base::now_ns() > deadline_ns_) throw_timeout();
}

// A rank leaves only after it has done its part of all its calls. So if the condition does not hold when the awaited
// rank has left, it never will.
bool FailureCheck::waits_for_departed() {
  const bool for_rank = condition_.kind() == Kind::kMeet || condition_.kind() == Kind::kPhase;
  if (for_rank) return context_.bootstrap.failures().has_left(condition_.rank()) && !condition_.holds();
  if (condition_.kind() != Kind::kChannels) return condition_.on_link() && link_waits_for_departed();
  for (int channel = 0; channel < call_.channels(); ++channel) {  // each channel may wait for a different rank
    if (context_.running.channels[static_cast<std::size_t>(channel)].over()) continue;
    condition_.set_channel(channel);
    if (link_waits_for_departed()) return true;
  }
  return false;
}

bool FailureCheck::link_waits_for_departed() {
  const int rank = condition_.rank();
  if (condition_.link().reports_departure() || !context_.bootstrap.failures().has_left(rank)) return false;
  // The notification that the rank left may arrive before a connection that it opened earlier.
  if (!context_.links.through_memory(rank) && !context_.bootstrap.failures().gone().contains(rank)) return false;
  while (context_.links.drive()) continue;
  return !condition_.holds();
}

std::optional<std::pair<Signature, Signature>> FailureCheck::difference_from(int rank,
                                                                             std::chrono::milliseconds time) const {
  const auto answers = context_.bootstrap.ask({&rank, 1}, time);
  const auto found = answers.find(rank);
  if (found == answers.end()) return std::nullopt;
  const std::optional<CallHistory::Snapshot> other = CallMonitor::history_in(found->second);
  if (!other) return std::nullopt;
  CallHistory::Snapshot own = context_.history->snapshot();
  // A small call may run while it is enqueued. It is added to the history only afterwards, so it is added here.
  if (call_.call.kind != Collective::kMessage)
    own.last[call_.signature.number() % CallHistory::kCalls] = call_.signature;
  return first_difference(own, *other);
}

// Throws if the awaited rank has enqueued other calls than this rank.
void FailureCheck::ask_for_history() {
  ask_pause_ns_ = std::min(2 * ask_pause_ns_, kAskPauseNs);
  const int rank = condition_.rank();
  const auto difference = difference_from(rank, kAnswerTime);
  ask_ns_ = base::now_ns() + ask_pause_ns_;
  if (difference) throw CallMismatch(context_.rank, difference->first, rank, difference->second);
}

// The received message may belong to an earlier call, if this rank received nothing in that call. Or it may belong to a
// later call, if the other rank had nothing to send in this one. Then an earlier call may differ, and that one explains
// the mismatch.
CallMismatch FailureCheck::first_mismatch(const CallMismatch& met) const {
  const auto is_message = [](const Signature& call) { return call.kind() == Collective::kMessage; };
  if (is_message(met.own) || is_message(met.other) || met.own.number() == met.other.number()) return met;
  if (const auto difference = difference_from(met.other_rank, kMismatchAnswerTime))
    return {context_.rank, difference->first, met.other_rank, difference->second};
  const CallHistory::Snapshot calls = context_.history->snapshot();
  const Signature* const own = calls.find(met.other.number());
  return own && *own != met.other ? CallMismatch(context_.rank, *own, met.other_rank, met.other) : met;
}

// A closed link is only a consequence: the other rank is lost, has left, or failed because of a third rank.
Error FailureCheck::with_cause(const Error& met) const {
  if (const auto* const mismatch = dynamic_cast<const CallMismatch*>(&met)) return first_mismatch(*mismatch);
  const int rank = context_.links.failed_rank();
  if (met.code() != ErrorCode::kRankLost || rank < 0) return met;
  const std::int64_t until = base::now_ns() + kReasonNs;
  const auto known = [&] {
    return (context_.host && context_.host->failed()) || context_.bootstrap.broken() ||
           context_.bootstrap.failures().has_left(rank);
  };
  while (!known() && base::now_ns() < until)
    static_cast<void>(transport::wait_a_moment(kLookNs, {until, &context_.bootstrap.broken_flag()}));
  try {
    context_.throw_failure();
    if (context_.bootstrap.broken()) throw_loss();
    if (context_.bootstrap.failures().has_left(rank)) throw_departed(rank);
  } catch (const Error& cause) {
    return cause;
  }
  return met;
}

void FailureCheck::throw_loss() const {
  const std::optional<transport::Loss> loss = context_.bootstrap.failures().first_loss();
  base::fail(loss ? loss->code() : ErrorCode::kRankLost, {}, "{}; rank {} was in {}",
             loss ? loss->text() : "the connections to the others failed", context_.rank, call_.signature.text());
}

void FailureCheck::throw_departed(int rank) const {
  base::fail(ErrorCode::kRankLost, {}, "rank {} has left the communicator; rank {} waits for it in {}", rank,
             context_.rank, call_.signature.text());
}

void FailureCheck::throw_timeout() const {
  std::vector<int> missing;
  for (int rank = 0; rank < context_.nranks; ++rank) {
    if (condition_.is_missing(rank)) missing.push_back(rank);
  }
  const char* const what = !condition_.on_link()     ? ""
                           : condition_.link_sends() ? ", to receive a message"
                                                     : ", to send a message";
  base::fail(ErrorCode::kTimeout, {}, "rank {} waited {:.1f} s in {} for {}{}", context_.rank,
             static_cast<double>(context_.timeout_ns) / 1e9, call_.signature.text(),
             missing.empty() ? "its own earlier call" : missing_ranks_text(context_.bootstrap, missing), what);
}

}  // namespace slip::comm
