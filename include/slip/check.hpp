// check_trace(): finds synchronisation faults of the program that recorded a trace. It reports races with the edges
// that would order them (race.hpp), superfluous waits with their cost, false dependencies, and deadlocks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slip/race.hpp"
#include "slip/trace.hpp"

namespace slip {

// A wait that can be removed: all conflicts stay ordered without it, and without the other reported waits.
struct SuperfluousWait {
  OpPlace after, before;  // first occurrence: the last op that it waited for, and the first op that it delayed
  std::string_view file = {};
  std::int32_t line = 0;
  std::uint64_t times = 1;
  bool implied = false;    // true: at every occurrence an earlier wait implied it. False: no two ops need it
  Picos cost = 0;          // how much shorter the run would have been without it
  bool cost_known = true;  // false: the work limit was reached before the run without it was simulated
};

// An op that was ready but waited for an unrelated op. Either both only share a hardware queue, or the legacy stream's
// rule ordered them although they share no bytes.
struct FalseDependency {
  OpPlace held, by;    // first occurrence: the delayed op, and the op it waited for
  bool queue = false;  // true: a shared hardware queue; false: the legacy stream's rule
  std::uint64_t times = 1;
  Picos cost = 0;          // queue: sum of the ops' waiting times; legacy: how much shorter the run would have been
  bool cost_known = true;  // see SuperfluousWait
};

// A cycle of ops: each waits for the next, the last for the first.
struct Deadlock {
  struct Step {
    OpPlace op;
    std::string_view because = {};  // why it waits for the next op
  };
  std::vector<Step> cycle;
};

struct CheckReport {
  RaceReport races;
  std::vector<SuperfluousWait> superfluous;         // highest cost first
  std::vector<FalseDependency> false_dependencies;  // highest cost first
  std::vector<Deadlock> deadlocks;
  bool foreign = false;  // another program's trace: it declares no accesses, so nothing could be checked

  bool clean() const;        // no race, no deadlock, and the trace is complete enough to be sure of that
  std::string text() const;  // human-readable
};

CheckReport check_trace(const TraceData& trace);

}  // namespace slip
