// What a call finds out about ranks that are gone.
#include <fmt/format.h>

#include "base/clock.hpp"
#include "comm/host/shared_run.hpp"
#include "transport/socket/socket.hpp"

namespace slip {
namespace {

constexpr std::int64_t kNewsNs = 1'000'000'000;  // a connection closes before the news of why has come round
constexpr std::int64_t kLookNs = 5'000'000;
constexpr std::chrono::milliseconds kMismatchAnswerTime{1000};

}  // namespace

// Who leaves has done all that others count on: what is not there by then never comes.
bool SharedRun::awaits_who_left() {
  const bool for_rank = waits_for_ == Wait::kMeet || waits_for_ == Wait::kPhase;
  if (for_rank) return calls_.bootstrap.has_left(next_rank_) && !is_there();
  if (waits_for_ != Wait::kChannels) return on_link() && link_awaits_who_left();
  for (int channel = 0; channel < channels(); ++channel) {  // each may wait for another rank
    if (calls_.channels[static_cast<std::size_t>(channel)].over()) continue;
    look_at(channel);
    if (link_awaits_who_left()) return true;
  }
  return false;
}

bool SharedRun::link_awaits_who_left() {
  if (link_->says_when_over() || !calls_.bootstrap.has_left(static_cast<int>(whom_))) return false;
  // A connection that it made before it left may come behind the news.
  if (!calls_.links.through_memory(static_cast<int>(whom_)) &&
      !calls_.bootstrap.failures().gone().contains(static_cast<int>(whom_)))
    return false;
  while (calls_.links.drive()) continue;
  return !is_there();
}

void SharedRun::throw_loss() const {
  const std::optional<Loss> loss = calls_.bootstrap.lost();
  throw Error(loss ? loss->code() : Code::kRankLost,
              fmt::format("{}; rank {} was in {}", loss ? loss->text() : "the connections to the others failed",
                          calls_.rank, signature_.text()),
              {});
}

void SharedRun::throw_left(int rank) const {
  throw Error(Code::kRankLost,
              fmt::format("rank {} has left the communicator; rank {} waits for it in {}", rank, calls_.rank,
                          signature_.text()),
              {});
}

// A message may be of an earlier call, which this rank did not receive, or of a later one, because the other rank had
// nothing to send in this call. Then another call than these two is the first that differs.
CallMismatch SharedRun::first_mismatch(const CallMismatch& met) const {
  const auto is_message = [](const Signature& call) { return call.kind() == Collective::kMessage; };
  if (is_message(met.own) || is_message(met.other) || met.own.number() == met.other.number()) return met;
  if (const auto difference = difference_from(met.other_rank, kMismatchAnswerTime))
    return {calls_.rank, difference->first, met.other_rank, difference->second};
  const std::optional<Signature> own = calls_.history->find(met.other.number());
  return own && *own != met.other ? CallMismatch(calls_.rank, *own, met.other_rank, met.other) : met;
}

// A link that closed is only what follows from something: the rank is lost, has left, or failed because of another.
Error SharedRun::with_cause(const Error& met) const {
  if (const auto* const mismatch = dynamic_cast<const CallMismatch*>(&met)) return first_mismatch(*mismatch);
  const int rank = calls_.links.failed();
  if (met.code() != Code::kRankLost || rank < 0) return met;
  const std::int64_t until = now_ns() + kNewsNs;
  const auto known = [&] {
    return (calls_.host && calls_.host->failed()) || calls_.bootstrap.broken() || calls_.bootstrap.has_left(rank);
  };
  while (!known() && now_ns() < until)
    static_cast<void>(wait_a_moment(kLookNs, {until, &calls_.bootstrap.broken_flag()}));
  try {
    calls_.throw_failure();
    if (calls_.bootstrap.broken()) throw_loss();
    if (calls_.bootstrap.has_left(rank)) throw_left(rank);
  } catch (const Error& cause) {
    return cause;
  }
  return met;
}

}  // namespace slip
