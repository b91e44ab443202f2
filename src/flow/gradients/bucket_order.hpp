// In which order calls that come at different times are made, one after the other, so that the one that is most behind
// its time is least behind: one machine with release and due dates.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "slip/op.hpp"

namespace slip {

struct TimedCall {
  Picos ready = 0, time = 0, due = 0;
};

struct CallOrder {
  std::vector<std::uint32_t> calls = {};  // indices, in the order of the calls
  Picos lateness = 0;                     // the most that a call ends after its due time; below 0 if all are early
  bool exact = false;                     // no order is better
};

// Always the call that is due first among those that are ready (Schrage's rule): quick, and never idle without need.
CallOrder due_first(std::span<const TimedCall> calls);

// Carlier's branch and bound, which starts from that rule and also waits for a call that comes soon where that pays;
// looks at no more than `nodes` orders.
CallOrder best_order(std::span<const TimedCall> calls, int nodes);

}  // namespace slip
