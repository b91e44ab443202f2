// Races: two accesses to the same bytes, at least one of them a write, that nothing orders.
//
// RaceChecker watches a program while it runs; check_races() looks at a trace of one that ran. Both see what ops
// declare: an op without ranges is counted as opaque, and nothing can be proven about it. The host's accesses are those
// through Buffer::host_read and host_write.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "slip/observer.hpp"
#include "slip/trace.hpp"

namespace slip {

// An op, and where in the source it was issued. Stream 0 is the host.
struct OpPlace {
  std::uint64_t stream = 0;
  std::uint64_t position = 0;
  std::string_view name = {};
  std::string_view file = {};
  std::int32_t line = 0;

  std::string text() const;  // "'load' in stream 3 (main.cpp:12)"
};

// One of the two accesses.
struct RaceSide : OpPlace {
  bool writes = false;
};

struct Race {
  RaceSide first, second;  // in the order issued
  std::uint64_t buffer = 0;
  std::string_view buffer_name = {};
  std::uint64_t offset = 0, bytes = 0;  // the bytes they share, of the first such place
  std::uint64_t times = 1;              // how often the same two places met like this
};

// An edge that would order what races. Between streams: record an event after `after`, and make the other stream wait
// for it before `before`. Stream 0, the host, as `before`: synchronise that event first; as `after`: end the host's
// access first, which is a view if one was still open when `before` was issued. At every run of the two places.
struct Fix {
  RaceSide after, before;
};

struct RaceReport {
  std::vector<Race> races;   // one for each pair of places in the source, buffer and kind of access
  std::vector<Fix> fixes;    // together they order every conflict seen
  bool fixes_needed = true;  // and none of them can be left out; false: that was not tried (a checker that ran live)
  std::uint64_t fixes_untried = 0;  // of a trace: how many were not tried because the limit of work was reached
  std::uint64_t ops = 0;            // looked at
  std::uint64_t opaque = 0;         // of them without ranges
  std::uint64_t dropped = 0;        // records missing from the trace: then nothing can be proven

  std::string text() const;  // for people
};

// Checks a program from its construction until stop(). Costs a few hundred nanoseconds an op.
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
