// SharedRun, as far as a wait is long: what the ledger says of it, and how the thread that comes back learns when.
#include "comm/shared_run.hpp"

namespace slip {

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
