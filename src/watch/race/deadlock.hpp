// Deadlocks: ops that wait for each other in a cycle, in a plan (verify()) or among the ops of a trace that never ran
// (check_trace()).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "slip/check.hpp"

namespace slip::watch {

// The ops that an op waits for, by index: every one of `all`, and, unless it is empty, at least one of `any`.
struct OpWaits {
  std::vector<std::uint32_t> all;
  std::vector<std::uint32_t> any;
};

// Returns a cycle of ops that can never run: each waits for the next, and the last waits for the first. Empty: there is
// none. Takes time linear in the number of waits.
std::vector<std::uint32_t> find_cycle(const std::vector<OpWaits>& ops);

// Cycles of waits among the ops of a trace that never ran: at most one is reported.
std::vector<Deadlock> find_deadlocks(const TraceData& trace, std::span<const TraceSpan> spans);

}  // namespace slip::watch
