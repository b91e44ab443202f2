// Races: two accesses to the same bytes, at least one of them a write, that no dependency orders.
//
// RaceChecker observes a running program; check_races() examines a trace. Both use the ranges that ops declare. An op
// without ranges counts as opaque: nothing can be proven about it. Host accesses are those through Buffer::host_read
// and host_write.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "slip/observer.hpp"
#include "slip/trace.hpp"

namespace slip {

// An op and the source line that issued it. Stream 0 is the host.
struct OpPlace {
  std::uint64_t stream = 0;
  std::uint64_t position = 0;
  std::string_view name = {};
  std::string_view file = {};
  std::int32_t line = 0;
  std::string_view stream_name = {};  // empty: the stream has no name, or the op is the host's

  std::string text() const;  // "'load' in stream 3 'loads' (main.cpp:12)"
};

// One of the two accesses of a race.
struct RaceSide : OpPlace {
  bool writes = false;
};

struct Race {
  RaceSide first, second;  // in issue order
  std::uint64_t buffer = 0;
  std::string_view buffer_name = {};
  std::uint64_t offset = 0, bytes = 0;  // the first bytes that both access
  std::uint64_t times = 1;              // how often it was observed for the same two source lines
};

// A dependency that would order racing accesses, needed each time the two source lines run. Between streams: record an
// event after `after`, and let the other stream wait for it before `before`. If `before` is the host (stream 0), the
// host synchronises with that event first. If `after` is the host, its access (an open HostView) must end before
// `before` is issued.
struct RaceFix {
  RaceSide after, before;
};

struct RaceReport {
  std::vector<Race> races;          // one per pair of source lines, buffer and kind of access
  std::vector<RaceFix> fixes;       // together they order every observed conflict
  bool fixes_needed = true;         // true: none of them can be omitted; false: not tested (RaceChecker never tests it)
  std::uint64_t fixes_untried = 0;  // check_races(): fixes not tested because the work limit was reached
  std::uint64_t ops = 0;            // number of ops examined
  std::uint64_t opaque = 0;         // ops without declared ranges
  std::uint64_t dropped = 0;        // records missing from the trace; if there are any, nothing can be proven

  std::string text() const;  // human-readable
};

// Checks the running program from construction until stop(). Costs a few hundred nanoseconds per op.
class RaceChecker final : public Observer {
 public:
  RaceChecker();  // attaches itself
  ~RaceChecker() override;
  RaceChecker(const RaceChecker&) = delete;
  RaceChecker& operator=(const RaceChecker&) = delete;

  void stop();
  void on(const Record& record) override;
  RaceReport report() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
  bool attached_ = false;
};

RaceReport check_races(const TraceData& trace);

}  // namespace slip
