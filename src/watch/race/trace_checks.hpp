// Finds the races and the deadlocks of a whole trace. Used by check_trace() and verify().
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "slip/check.hpp"
#include "watch/race/program_order.hpp"
#include "watch/trace/trace_data.hpp"

namespace slip::watch {

// A source line or, if that is unknown, the name of the op.
using SourceLine = std::tuple<std::string_view, std::int32_t, std::string_view>;
template <class Op>
SourceLine source_of(const Op& op) {
  return {op.file, op.line, op.file.empty() ? op.name : std::string_view()};
}

// Finds the races of a trace, or of a plan that was converted to a trace (`by_op`, see FixFinder), and reduces the
// fixes. `needed` collects the edges that conflicts need; may be null.
RaceReport check_races(const TraceData& trace, bool by_op, NeededEdges* needed);

// Fills in the names of the streams: the checks themselves only use ids.
void name_streams(RaceReport& report, const StreamNames& names);

// Removes from a report the fixes that the others make unnecessary. A fix that was found late may also order accesses
// for which an earlier fix was found. The work is limited to a few passes over the trace.
class FixReduction {
 public:
  FixReduction(const TraceData& trace, bool by_op) : trace_(trace), by_op_(by_op) {}
  void run(RaceReport& report);
  std::uint64_t steps() const { return steps_; }  // records checked and fixes assumed, so far

  static constexpr std::uint64_t kMaxPasses = 8;
  static constexpr std::uint64_t kMinSteps = 50'000;  // always allowed, so that a small trace is reduced completely

 private:
  bool orders_all(const std::vector<RaceFix>& fixes);
  std::vector<RaceFix> kept() const;
  void leave_out(std::span<const std::size_t> doubtful);

  const TraceData& trace_;
  const bool by_op_;
  std::uint64_t steps_ = 0, limit_ = 0;
  std::vector<bool> needed_;  // of the fixes tried last, see FixFinder::needed()
  std::vector<RaceFix> fixes_;
  std::vector<bool> left_out_;  // by fix
  std::uint64_t untried_ = 0;   // number of fixes that were kept untried, because steps_ reached limit_
};

// Whether the trace has no race without these records (by index), which are waits.
bool is_clean_without(const TraceData& trace, const std::vector<bool>& left_out);
// Maximum number of records checked, in total, to find out which waits can be left out: about a second.
inline constexpr std::uint64_t kMaxTrialSteps = 1'000'000;

// The ops that an op waits for, by index: every one of `all`, and, unless it is empty, at least one of `any`.
struct OpWaits {
  std::vector<std::uint32_t> all;
  std::vector<std::uint32_t> any;
};

// Returns a cycle of ops that can never run: each waits for the next, and the last waits for the first. Empty: there is
// none. Takes time linear in the number of waits.
std::vector<std::uint32_t> find_cycle(const std::vector<OpWaits>& ops);

// Removes from each `any` the ops that can only run after the op that waits for them: they do not end its wait. If all
// of them are such ops, keeps them, so that find_cycle() finds the deadlock. Takes time linear in the number of waits
// for each op that has several ops in `any`.
void remove_later_writers(std::vector<OpWaits>& ops);

// Cycles of waits among the ops of a trace that never ran: at most one is reported.
std::vector<Deadlock> find_deadlocks(const TraceData& trace, std::span<const TraceSpan> spans);

}  // namespace slip::watch
