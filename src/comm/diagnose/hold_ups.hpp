// Who holds up whom: read from the ledgers of all ranks that can be seen, over all their communicators. A pure function
// of what was seen.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/diagnose/rank_sight.hpp"

namespace slip {

struct HoldUp {
  enum class Kind {
    kNotCome,   // a rank that others wait for
    kStopped,   // a process that others wait for, and that is stopped
    kDeadlock,  // a circle of waits that nothing can end
    kCircle,    // a circle, unless a rank's host thread comes by itself: it may wait for the call that it is in
    kEnded,     // failed, aborted or left, while others are in a call
  };
  Kind kind = Kind::kNotCome;
  std::string text;
};

const char* hold_up_name(HoldUp::Kind kind);

// Circles first. A rank that only waits for one that is held up itself is not named again.
std::vector<HoldUp> hold_ups(std::span<const RankSight> ranks);

}  // namespace slip
