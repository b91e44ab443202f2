// check: what a trace says against the program that made it. Races, with what would order them (race.hpp); waits that
// protect nothing, with what they cost; ops that were held up by somebody they have nothing to do with; circles of
// waits.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slip/race.hpp"
#include "slip/trace.hpp"

namespace slip {

// A wait that can go: every conflict is ordered without it, and without all the others that are told.
struct SuperfluousWait {
  OpPlace after, before;  // the last op that it waited for and the first that it held, the first time
  std::string_view file = {};
  std::int32_t line = 0;
  std::uint64_t times = 1;
  bool implied = false;    // every time: earlier waits said the same. False: no two ops need it
  Picos cost = 0;          // how much shorter the run would have been without it
  bool cost_known = true;  // false: the limit of work was reached before it was played without
};

// An op that was ready and had to wait for another with which it shares nothing but a hardware queue, or that the
// legacy stream's rule put before it although no bytes of the two meet.
struct FalseDependency {
  OpPlace held, by;  // the first time
  bool queue = false;
  std::uint64_t times = 1;
  Picos cost = 0;          // queue: time that ops waited, added; legacy: how much shorter the run would have been
  bool cost_known = true;  // see SuperfluousWait
};

// Ops that wait for each other: each for the next, the last for the first.
struct Deadlock {
  struct Step {
    OpPlace op;
    std::string_view because = {};  // why it waits for the next
  };
  std::vector<Step> circle;
};

struct CheckReport {
  RaceReport races;
  std::vector<SuperfluousWait> superfluous;         // dearest first
  std::vector<FalseDependency> false_dependencies;  // dearest first
  std::vector<Deadlock> deadlocks;
  bool foreign = false;  // the trace names no accesses: nothing could be checked

  bool clean() const;        // no race and no deadlock, and nothing is missing to be sure of that
  std::string text() const;  // for people
};

CheckReport check(const TraceData& trace);

}  // namespace slip
