// Orders calls that become ready at different times and run one after the other, so that the maximum lateness is
// minimal. In scheduling theory: one machine with release dates and due dates. plan_buckets uses it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "slip/op.hpp"

namespace slip::flow {

struct TimedCall {
  Picos ready = 0, time = 0, due = 0;
};

struct CallOrder {
  std::vector<std::uint32_t> calls = {};  // indices into the given calls
  Picos lateness = 0;                     // the maximum of end minus due time; negative if all calls are early
  bool exact = false;                     // the order is proven optimal
};

// Schrage's rule: always runs the ready call that is due first. Fast. It never stays idle while a call is ready.
CallOrder due_first(std::span<const TimedCall> calls);

// Carlier's branch and bound, which starts from Schrage's rule. It may also stay idle to wait for a call that becomes
// ready soon. It evaluates at most `nodes` orders.
CallOrder best_order(std::span<const TimedCall> calls, int nodes);

}  // namespace slip::flow
