// SharedRun, as far as a wait is long: how its thread lets others run, what the ledger says of it, and how the thread
// that comes back learns when.
#include "base/clock.hpp"
#include "base/cores.hpp"
#include "base/sync.hpp"
#include "comm/host/shared_run.hpp"

namespace slip {
namespace {

constexpr int kYieldsNet = 9;  // for a network, before the thread sleeps
// A yield that took longer lost the core for a whole scheduler slice to other work than ranks, and the next one would
// again. Where ranks share cores the thread sleeps instead: it has the core when it wakes, for it has not used up its
// share. Where every rank has a core, so many of the next waits for messages through memory spin before they yield,
// longer than the other rank takes for a chunk: a message has many of them. A call in phases waits once or twice, and
// mostly for a rank that has lost its own core, so it yields.
constexpr double kLostCoreUs = 1000, kSpinWaiterUs = 1000;
constexpr int kContendedWaits = 16;
constexpr std::int64_t kSleepNs = 20'000;

}  // namespace

// Looks until what it waits for is there, or `limit` ticks have passed since `begun`, and lets others run meanwhile.
bool SharedRun::yield_until_there(std::uint64_t begun, std::uint64_t limit, bool by_net) {
  const bool has_turn = waits_for_ != Wait::kTurn;  // and so the fields of the calls
  const bool spins = by_ == By::kWaiter && !calls_.crowded && !by_net && on_link() && calls_.contended_waits > 0;
  if (spins) --calls_.contended_waits;
  const auto spin_limit = static_cast<std::uint64_t>((spins ? kSpinWaiterUs : 0) * ticks_per_us());
  const auto lost_ticks = static_cast<std::uint64_t>(kLostCoreUs * ticks_per_us());
  int yields = 0;
  bool lost_core = false;
  for (std::uint64_t now = begun; now - begun < limit; now = ticks()) {
    if (is_there()) return true;
    if (now - begun < spin_limit) {
      cpu_relax();
    } else if (by_net) {
      if (++yields <= kYieldsNet || !calls_.links.rest()) yield_thread();
    } else if (lost_core) {
      sleep_ns(kSleepNs);
    } else {
      yield_thread();
      if (ticks() - now < lost_ticks) continue;
      lost_core = calls_.crowded;
      if (has_turn) calls_.contended_waits = kContendedWaits;
    }
  }
  return false;
}

// Only now: until then nobody will ask. A call that waits for its turn has not begun, and another one has.
void SharedRun::note_wait() {
  if (waits_for_ == Wait::kTurn) return;
  int rank = on_link() ? static_cast<int>(whom_) : next_rank_;
  for (int one = 0; waits_for_ == Wait::kRoom && one < calls_.nranks; ++one) {
    if (is_missing(one)) rank = one;
  }
  calls_.seat.wait(rank);
  noted_ = true;
}

// Not where ranks share cores: what the others send at once is found sooner by looks than by two wake-ups.
bool SharedRun::tell(Sleeper& sleeper) noexcept {
  told_ = begun_ && !calls_.crowded && on_link() && calls_.links.tell(sleeper);
  return told_;
}

void SharedRun::tell_nobody() noexcept {
  told_ = false;
  calls_.links.tell_nobody();
  calls_.links.attend(true);
}

bool SharedRun::can_advance() noexcept {
  try {
    return in_trouble() || is_there();
  } catch (...) {
    return true;  // advance() meets it again, and can tell
  }
}

}  // namespace slip
