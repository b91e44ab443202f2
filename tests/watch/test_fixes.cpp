// The fixes of a race report: which of them are needed, and how much work it takes to find out.
#include <gtest/gtest.h>

#include "watch/race/race_check.hpp"
#include "watch/race/trace_checks.hpp"

namespace slip::test_fixes {
namespace {

// A racy program as records: ops of one line are one place.
class Program {
 public:
  std::uint64_t stream() { return ++streams_; }
  std::uint64_t buffer() { return ++buffers_; }
  void op(std::uint64_t stream, std::int32_t line, std::vector<std::uint64_t> reads,
          std::vector<std::uint64_t> writes) {
    TraceRecord& record = add(RecordKind::kSubmit, stream, ++position_);
    record.line = line;
    record.op = OpKind::kKernel;
    record.first_range = trace.ranges.size();
    record.reads = static_cast<std::uint32_t>(reads.size());
    record.writes = static_cast<std::uint32_t>(writes.size());
    for (const auto* list : {&reads, &writes}) {
      for (const std::uint64_t id : *list) trace.ranges.push_back({id, 0, 8});
    }
  }
  TraceRecord& host(RecordKind kind, std::uint64_t buffer, std::int32_t line) {
    TraceRecord& record = add(kind, 0, 0);
    record.line = line;
    record.range = {buffer, 0, 8};
    return record;
  }
  void barrier(std::uint64_t stream, std::uint64_t other, std::uint64_t position) {
    TraceRecord& record = add(RecordKind::kBarrier, stream, 0);
    record.other_stream = other;
    record.other_position = position;
  }
  std::uint64_t next_position() const { return position_ + 1; }

  TraceData trace;

 private:
  TraceRecord& add(RecordKind kind, std::uint64_t stream, std::uint64_t position) {
    trace.records.push_back({.kind = kind,
                             .device = 1,
                             .sequence = trace.records.size() + 1,
                             .stream = stream,
                             .position = position,
                             .name = "op",
                             .file = "f"});
    return trace.records.back();
  }
  std::uint64_t streams_ = 0, buffers_ = 0, position_ = 0;
};

// A and B conflict from the start. Later C conflicts with both, and the fixes A to C and C to B order A and B as well.
// With `chain`, X and Y of the same streams need the fix from A to B nevertheless.
void add_triple(Program& program, bool chain) {
  const std::uint64_t a = program.stream(), b = program.stream(), c = program.stream();
  const std::uint64_t x = program.buffer(), y = program.buffer(), z = program.buffer(), w = program.buffer();
  program.op(a, 1, {}, {x}), program.op(c, 3, {}, {}), program.op(b, 2, {x}, {});
  program.op(a, 1, {}, {y}), program.op(c, 3, {y}, {z}), program.op(b, 2, {z}, {});
  if (!chain) return;
  program.op(a, 4, {}, {w}), program.op(a, 1, {}, {}), program.op(b, 2, {}, {}), program.op(b, 5, {w}, {});
}

Program triples(int count, bool chain) {
  Program program;
  for (int i = 0; i < count; ++i) add_triple(program, chain);
  return program;
}

struct Reduced {
  RaceReport report;
  std::uint64_t steps = 0;
};

Reduced reduced(const TraceData& trace) {
  watch::RaceCheck check;
  for (const TraceRecord& record : trace.records) check.step(record, trace.reads(record), trace.writes(record));
  Reduced result{check.report()};
  watch::FixReduction reduction(trace, false);
  reduction.run(result.report);
  result.steps = reduction.steps();
  return result;
}

TEST(Fixes, AnEdgeThatLaterOnesMakeUnnecessaryIsLeftOut) {
  const Program program = triples(1, false);
  const RaceReport report = check_races(program.trace);
  ASSERT_EQ(report.fixes.size(), 2U) << report.text();
  EXPECT_EQ(report.fixes[0].after.line, 1);
  EXPECT_EQ(report.fixes[0].before.line, 3);
  EXPECT_EQ(report.fixes[1].after.line, 3);
  EXPECT_EQ(report.fixes[1].before.line, 2);
  EXPECT_TRUE(report.fixes_needed);
}

TEST(Fixes, AnEdgeThatIsNeededForOthersBehindItStays) {
  const Program program = triples(1, true);
  const RaceReport report = check_races(program.trace);
  EXPECT_EQ(report.fixes.size(), 3U) << report.text();
  EXPECT_TRUE(report.fixes_needed);
}

// Measures work in records looked at, not in time: trying each edge alone would take one pass over the trace each.
TEST(Fixes, WorkGrowsWithTheTrace) {
  for (const bool unnecessary : {false, true}) {
    SCOPED_TRACE(unnecessary);
    const auto program = [&](int count) {
      if (unnecessary) return triples(count, false);
      Program pairs;
      for (int i = 0; i < count; ++i) {
        const std::uint64_t a = pairs.stream(), b = pairs.stream(), x = pairs.buffer();
        pairs.op(a, 1, {}, {x}), pairs.op(b, 2, {x}, {});
      }
      return pairs;
    };
    const Program one = program(500), two = program(1000);
    const Reduced small = reduced(one.trace), large = reduced(two.trace);
    EXPECT_TRUE(small.report.fixes_needed && large.report.fixes_needed);
    EXPECT_EQ(large.report.fixes.size(), unnecessary ? 2000U : 1000U);
    EXPECT_LE(large.steps, 2 * small.steps + 100);
    EXPECT_LE(large.steps, 4 * (two.trace.records.size() + 3000));
  }
}

// Only leaving an edge out shows whether it is needed.
TEST(Fixes, PastTheLimitItSaysWhatWasNotTried) {
  const Program one = triples(1000, true), two = triples(2000, true);
  const Reduced small = reduced(one.trace), large = reduced(two.trace);
  for (const Reduced* each : {&small, &large}) {
    EXPECT_FALSE(each->report.fixes_needed);
    EXPECT_GT(each->report.fixes_untried, 0U);
    EXPECT_NE(each->report.text().find(std::to_string(each->report.fixes_untried) + " of "), std::string::npos)
        << each->report.text().substr(0, 1000);
  }
  EXPECT_LE(large.steps, 2 * small.steps + 2 * watch::FixReduction::kMinSteps);
}

TEST(Fixes, AViewEndsBeforeTheFirstOpThatWasIssuedInIt) {
  Program program;
  const std::uint64_t a = program.stream(), b = program.stream(), x = program.buffer();
  program.host(RecordKind::kHostWrite, x, 1);
  program.op(a, 2, {x}, {}), program.op(a, 3, {x}, {}), program.op(b, 4, {x}, {});
  program.host(RecordKind::kHostEnd, x, 1);
  const RaceReport report = check_races(program.trace);
  EXPECT_EQ(report.races.size(), 3U) << report.text();
  ASSERT_EQ(report.fixes.size(), 1U) << report.text();
  EXPECT_EQ(report.fixes[0].after.stream, 0U) << "the view comes first";
  EXPECT_EQ(report.fixes[0].after.line, 1);
  EXPECT_EQ(report.fixes[0].before.line, 2);
  EXPECT_NE(report.text().find("end the host's view (f:1) before 'op' (f:2) is issued"), std::string::npos)
      << report.text();
}

// Two threads, two streams: the record of the second stream's op arrives first, although that op comes second.
TEST(Fixes, AnOpThatIsRecordedLateIsNoRace) {
  Program program;
  const std::uint64_t early = program.stream(), legacy = program.stream(), x = program.buffer();
  const std::uint64_t position = program.next_position() + 1;
  program.barrier(legacy, early, position);
  program.op(legacy, 1, {}, {x});
  program.op(early, 2, {}, {x});
  ASSERT_EQ(program.trace.records.back().position, position);
  EXPECT_TRUE(check_races(program.trace).races.empty()) << check_races(program.trace).text();
}

}  // namespace
}  // namespace slip::test_fixes
