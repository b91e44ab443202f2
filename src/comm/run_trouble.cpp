// SharedRun, as far as something goes wrong: how it is noticed, and what is told.
#include <fmt/format.h>

#include "base/clock.hpp"
#include "comm/shared_run.hpp"
#include "comm/whereabouts.hpp"

namespace slip {

// Told to the ranks of this host and to all others, unless somebody has told why before.
void SharedRun::fail(Code code, const std::string& text) const {
  calls_.seat.fail(code == Code::kAborted ? LedgerLife::kAborted : LedgerLife::kFailed, text);
  if (!calls_.host || calls_.host->fail(code, text)) calls_.bootstrap.fail(code, text);
}

// Without saying which: look_for_trouble() does.
bool SharedRun::in_trouble() {
  if (calls_.aborted.load(std::memory_order_relaxed) || (calls_.host && calls_.host->failed()) ||
      calls_.bootstrap.broken())
    return true;
  if (awaits_who_left()) return true;
  if (deadline_ns_ == 0) deadline_ns_ = now_ns() + calls_.timeout_ns;
  return now_ns() > deadline_ns_;
}

void SharedRun::look_for_trouble() {
  if (!in_trouble()) return;
  if (calls_.aborted.load(std::memory_order_relaxed))  // relaxed: nothing else is passed with it
    throw Error(Code::kAborted, fmt::format("rank {}: aborted in {}", calls_.rank, signature_.text()), {});
  calls_.throw_failure();
  if (calls_.bootstrap.broken()) throw_loss();
  if (awaits_who_left()) throw_left(on_link() ? static_cast<int>(whom_) : next_rank_);
  time_out();
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
