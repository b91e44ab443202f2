// Why ops started, slack, the critical path and idle time, on traces made by hand.
#include <gtest/gtest.h>

#include <random>

#include "made_trace.hpp"
#include "support.hpp"
#include "watch/analysis/op_graph.hpp"

namespace slip::test_analysis {
namespace {

using watch_test::Analysed;
using watch_test::MadeOp;
using watch_test::MadeTrace;

constexpr Picos kLong = 1'000'000'000;  // longer than any latency

void expect_start(const Analysed& run, std::size_t span, StartCause cause, std::uint32_t after, Picos ready) {
  SCOPED_TRACE("span " + std::to_string(span));
  EXPECT_STREQ(start_cause_name(run.result.starts[span].cause), start_cause_name(cause));
  EXPECT_EQ(run.result.starts[span].after, after);
  EXPECT_EQ(run.result.starts[span].ready, ready);
}

TEST(Analysis, NothingGivesNothing) {
  const Analysed run{MadeTrace()};
  EXPECT_TRUE(run.result.starts.empty());
  EXPECT_TRUE(run.result.critical.empty());
  EXPECT_TRUE(run.result.engines.empty());
}

TEST(Analysis, AnOpThatNeverRanHasNoTimes) {
  MadeTrace made;
  made.submit({.queued = 5});
  made.op({.queued = 7, .started = 10, .ended = 20});
  const Analysed run(made);
  ASSERT_EQ(run.result.slack.size(), 2U);
  EXPECT_EQ(run.result.critical, std::vector<std::uint32_t>{1});
  EXPECT_EQ(run.result.engines.at(0).busy, 10);
}

TEST(Analysis, TheHostWasLate) {
  MadeTrace made;
  made.op({.queued = 0, .started = 0, .ended = 10});
  made.op({.queued = 40, .started = 40, .ended = 50});
  const Analysed run(made);
  expect_start(run, 1, StartCause::kHost, kNoSpan, 40);
  EXPECT_EQ(run.result.slack, (std::vector<Picos>{30, 0}));
  EXPECT_EQ(run.result.critical, std::vector<std::uint32_t>{1});
  EXPECT_EQ(run.result.engines.at(0).idle_for(StartCause::kHost), 30);
}

// The call takes 4: an op that ended during the call is not the reason.
TEST(Analysis, TheTimeOfACallIsTheHosts) {
  MadeTrace made;
  made.op({.stream = 1, .queued = 0, .started = 4, .ended = 26});
  made.op({.stream = 2, .queued = 24, .started = 28, .ended = 30});
  const Analysed run(made);
  expect_start(run, 0, StartCause::kHost, kNoSpan, 0);
  expect_start(run, 1, StartCause::kHost, kNoSpan, 24);
}

TEST(Analysis, TheHostWaitedForAnOp) {
  MadeTrace made;
  made.op({.stream = 1, .queued = 0, .started = 0, .ended = 100});
  made.op({.stream = 2, .engine = Engine::kCopyIn, .queued = 1, .started = 1, .ended = 30});
  made.sync(1, 1);
  made.op({.stream = 2, .engine = Engine::kCopyIn, .queued = 105, .started = 105, .ended = 125});
  const Analysed run(made);
  expect_start(run, 2, StartCause::kHost, 0, 105);
  EXPECT_EQ(run.result.critical, (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(run.result.slack, (std::vector<Picos>{0, 75, 0})) << "the copy's stream would wait for it";
}

TEST(Analysis, TheHostWaitedForTheDevice) {
  MadeTrace made;
  made.op({.stream = 1, .queued = 0, .started = 0, .ended = 60});
  made.op({.stream = 2, .engine = Engine::kCopyIn, .queued = 1, .started = 1, .ended = 100});
  made.sync_device();
  made.op({.stream = 3, .queued = 110, .started = 110, .ended = 120});
  made.sync_device();
  made.op({.stream = 4, .queued = 125, .started = 125, .ended = 130});
  const Analysed run(made);
  expect_start(run, 2, StartCause::kHost, 1, 110);
  expect_start(run, 3, StartCause::kHost, 2, 125);
  EXPECT_EQ(run.result.slack, (std::vector<Picos>{40, 0, 0, 0}));
  EXPECT_EQ(run.result.critical, (std::vector<std::uint32_t>{1, 2, 3}));
}

TEST(Analysis, AStreamsOrderIsADependency) {
  MadeTrace made;
  made.op({.engine = Engine::kCopyIn, .queued = 0, .started = 0, .ended = 70});
  made.op({.engine = Engine::kCompute, .queued = 10, .started = 70, .ended = 90});
  const Analysed run(made);
  expect_start(run, 1, StartCause::kDependency, 0, 70);
  EXPECT_EQ(run.result.critical, (std::vector<std::uint32_t>{0, 1}));
  const EngineTime& compute = run.result.engines.at(0);
  ASSERT_EQ(compute.engine, Engine::kCompute);
  EXPECT_EQ(compute.idle_for(StartCause::kHost), 10);
  EXPECT_EQ(compute.idle_for(StartCause::kDependency), 60);
  EXPECT_EQ(compute.done, 0);
  EXPECT_EQ(run.result.engines.at(1).done, 20);
}

TEST(Analysis, AWaitIsADependencyFromTheNextOpOn) {
  MadeTrace made;
  made.op({.stream = 1, .engine = Engine::kCopyIn, .queued = 0, .started = 0, .ended = 50});   // 0
  made.op({.stream = 1, .engine = Engine::kCopyIn, .queued = 1, .started = 50, .ended = 80});  // 1
  made.op({.stream = 2, .queued = 2, .started = 2, .ended = 20});                              // 2
  made.wait(2, 1, 1);
  made.op({.stream = 2, .queued = 3, .started = 50, .ended = 60});  // 3: not behind op 1
  const Analysed run(made);
  expect_start(run, 3, StartCause::kDependency, 0, 50);
  EXPECT_EQ(watch::op_graph(run.data, run.spans).predecessors(3), (std::vector<std::uint32_t>{2, 0}));
}

// Another program's trace has no waits. A damaged file may have both the mark of such a trace and a wait, which has no
// span.
TEST(Analysis, AWaitInADamagedForeignFileIsFollowed) {
  MadeTrace made;
  made.op({.stream = 1, .queued = 0, .started = 0, .ended = 50});  // 0
  made.wait(2, 1, 1);
  made.op({.stream = 2, .queued = 1, .started = 50, .ended = 60});  // 1
  TraceData trace = made.data();
  trace.foreign = true;
  const watch_test::Folder folder;
  write_trace(trace, folder.file("t.json"));
  const TraceData read = read_trace(folder.file("t.json"));
  ASSERT_TRUE(read.foreign);
  ASSERT_EQ(read.of({RecordKind::kEventWait}).size(), 1U);
  const std::vector<TraceSpan> spans = read.spans();
  EXPECT_EQ(watch::op_graph(read, spans).predecessors(1), std::vector<std::uint32_t>{0});
  EXPECT_EQ(analyse(read, spans).starts.size(), 2U);
}

// Stream 2 has no op between its wait and its event. The event must cover the wait nevertheless.
TEST(Analysis, AWaitIsPassedOnWithoutAnOp) {
  MadeTrace made;
  made.op({.stream = 1, .engine = Engine::kCopyIn, .queued = 0, .started = 0, .ended = 50});
  const std::uint64_t early = made.event(2);
  made.wait(2, 1, 1, RecordKind::kBarrier);
  const std::uint64_t late = made.event(2);
  made.wait(3, 2, early);
  made.op({.stream = 3, .queued = 1, .started = 1, .ended = 5});
  made.wait(4, 2, late);
  made.op({.stream = 4, .queued = 2, .started = 50, .ended = 60});
  const Analysed run(made);
  expect_start(run, 1, StartCause::kHost, kNoSpan, 1);
  expect_start(run, 2, StartCause::kDependency, 0, 50);
  EXPECT_EQ(watch::op_graph(run.data, run.spans).predecessors(2), std::vector<std::uint32_t>{0});
}

TEST(Analysis, ASerialEngineWasBusy) {
  MadeTrace made;
  made.op({.stream = 1, .engine = Engine::kCopyIn, .queued = 0, .started = 0, .ended = 40});
  made.op({.stream = 2, .engine = Engine::kCopyIn, .queued = 5, .started = 41, .ended = 60});
  const Analysed run(made);
  expect_start(run, 1, StartCause::kEngine, 0, 5);
  EXPECT_EQ(run.result.slack, (std::vector<Picos>{0, 0}));
  EXPECT_EQ(run.result.engines.at(0).idle_for(StartCause::kEngine), 1);
}

TEST(Analysis, ACopyEngineForBothDirectionsWasBusy) {
  MadeTrace made;
  made.op({.stream = 1, .engine = Engine::kCopyIn, .queued = 0, .started = 0, .ended = 40});
  made.op({.stream = 2, .engine = Engine::kCopyOut, .queued = 0, .started = 40, .ended = 60});
  made.op({.stream = 1, .engine = Engine::kCopyIn, .queued = 0, .started = 60, .ended = 70});
  made.op({.stream = 3, .engine = Engine::kCopyOut, .queued = 80, .started = 80, .ended = 90});
  const Analysed run(made);
  expect_start(run, 1, StartCause::kEngine, 0, 0);
  expect_start(run, 2, StartCause::kEngine, 1, 40);
  expect_start(run, 3, StartCause::kHost, kNoSpan, 80);
}

TEST(Analysis, AnEngineThatIsSharedByWidthWasFull) {
  MadeTrace made;
  made.op({.stream = 1, .queued = 0, .started = 0, .ended = 30, .width = 0.5});
  made.op({.stream = 2, .queued = 0, .started = 0, .ended = 40, .width = 0.5});
  made.op({.stream = 3, .queued = 0, .started = 33, .ended = 50, .width = 0.5});   // with a latency of 3
  made.op({.stream = 4, .queued = 44, .started = 47, .ended = 52, .width = 0.1});  // room enough
  const Analysed run(made);
  expect_start(run, 1, StartCause::kHost, kNoSpan, 0);
  expect_start(run, 2, StartCause::kEngine, 0, 0);
  expect_start(run, 3, StartCause::kHost, kNoSpan, 44);
}

TEST(Analysis, TheQueueHeldItBehindAnotherStreamsOp) {
  MadeTrace made;
  made.op({.stream = 1, .queued = 0, .started = 0, .ended = 100, .queue = 0, .width = 0.1});
  made.wait(2, 1, 1);
  made.op({.stream = 2, .queued = 1, .started = 100, .ended = 110, .queue = 0, .width = 0.1});
  made.op({.stream = 3, .queued = 2, .started = 100, .ended = 150, .queue = 0, .width = 0.1});
  made.op({.stream = 4, .queued = 3, .started = 3, .ended = 9, .queue = 1, .width = 0.1});
  const Analysed run(made);
  expect_start(run, 1, StartCause::kDependency, 0, 100);
  expect_start(run, 2, StartCause::kQueue, 1, 2);
  expect_start(run, 3, StartCause::kHost, kNoSpan, 3);
  EXPECT_EQ(run.result.critical, (std::vector<std::uint32_t>{0, 2})) << "op 1 ran beside, it only stood ahead";
  EXPECT_EQ(run.result.slack, (std::vector<Picos>{0, 40, 0, 141}));
}

TEST(Analysis, WhatNothingExplainsIsUnknown) {
  MadeTrace made;
  made.op({.queued = 0, .started = 0, .ended = 10});
  made.op({.queued = 0, .started = kLong, .ended = kLong + 5});
  const Analysed run(made);
  expect_start(run, 1, StartCause::kUnknown, 0, 10);
  EXPECT_EQ(run.result.engines.at(0).idle_for(StartCause::kUnknown), kLong - 10);
  EXPECT_EQ(run.result.critical, (std::vector<std::uint32_t>{0, 1}));
}

// As in a trace of another program: only runs and their streams are known.
TEST(Analysis, WithoutSubmissionsOnlyWhatFollowsAtOnceIsExplained) {
  MadeTrace made;
  made.run({.stream = 1, .started = 0, .ended = 10}, 0);
  made.run({.stream = 1, .started = 10, .ended = 20}, 0);
  made.run({.stream = 1, .started = kLong, .ended = kLong + 10}, 0);
  const Analysed run(made);
  expect_start(run, 0, StartCause::kUnknown, kNoSpan, 0);
  expect_start(run, 1, StartCause::kDependency, 0, 10);
  expect_start(run, 2, StartCause::kUnknown, 1, 20);
}

// Two devices with different clocks: a wait of the host for one says nothing about times on the other.
TEST(Analysis, AnotherClockIsNoReason) {
  MadeTrace made;
  made.op({.stream = 1, .queued = 0, .started = 0, .ended = 1000});
  made.sync(1, 1);
  made.op({.stream = 2, .queued = 5, .started = 5, .ended = 20, .device = 2});
  const Analysed run(made);
  expect_start(run, 1, StartCause::kHost, kNoSpan, 5);
  EXPECT_EQ(run.result.slack, (std::vector<Picos>{0, 980}));
}

TEST(Analysis, AWaitForAFlagFollowsTheOpThatWritesIt) {
  MadeTrace made;
  made.op({.stream = 1, .engine = Engine::kCopyIn, .queued = 0, .started = 0, .ended = 50});
  made.flag_op(OpKind::kWriteValue, 1, 1);
  made.flag_op(OpKind::kWaitValue, 2, 2);
  made.op({.stream = 2, .queued = 3, .started = 50, .ended = 60});
  const Analysed run(made);
  expect_start(run, 3, StartCause::kDependency, 0, 50);
}

// A program may submit the waits for a counter before the writes. Each wait follows the first write that ends it.
TEST(Analysis, AWaitFollowsAWriteThatIsSubmittedLater) {
  MadeTrace made;
  for (std::uint32_t turn = 1; turn <= 3; ++turn) {
    made.flag_op(OpKind::kWaitValue, 2, 0, turn);
    made.op({.stream = 2, .queued = 0, .started = 40 * turn, .ended = 40 * turn + 10});  // spans 1, 3, 5
  }
  for (std::uint32_t turn = 1; turn <= 3; ++turn) {
    made.op({.stream = 1, .engine = Engine::kCopyIn, .queued = 1, .started = 40 * turn - 40, .ended = 40 * turn});
    made.flag_op(OpKind::kWriteValue, 1, 1, turn);
  }
  const Analysed run(made);
  expect_start(run, 1, StartCause::kDependency, 6, 40);
  expect_start(run, 3, StartCause::kDependency, 8, 80);
  expect_start(run, 5, StartCause::kDependency, 10, 120);
  EXPECT_EQ(run.result.critical, (std::vector<std::uint32_t>{6, 8, 10, 5}));
  EXPECT_EQ(run.result.slack.at(1), 60) << "the next op of its stream takes 10, and the one behind starts at 120";
  EXPECT_EQ(run.result.slack.at(6), 0);
}

// The flag is set back and counts again.
TEST(Analysis, AWaitDoesNotFollowAWriteOfAnEarlierCount) {
  MadeTrace made;
  made.op({.stream = 1, .engine = Engine::kCopyIn, .queued = 0, .started = 0, .ended = 50});  // 0
  made.flag_op(OpKind::kWriteValue, 1, 0, 7);
  made.flag_op(OpKind::kWriteValue, 1, 0, 0);
  made.flag_op(OpKind::kWaitValue, 2, 0, 3);
  made.op({.stream = 2, .queued = 0, .started = 90, .ended = 95});                             // 4
  made.op({.stream = 1, .engine = Engine::kCopyIn, .queued = 1, .started = 50, .ended = 90});  // 5
  made.flag_op(OpKind::kWriteValue, 1, 1, 3);
  const Analysed run(made);
  expect_start(run, 4, StartCause::kDependency, 5, 90);
}

// Each stream waits for a flag that the other writes behind its wait, and an op of it is said to have run: a damaged
// file. The analysis must end.
TEST(Analysis, WaitsInACircleEnd) {
  TraceData data;
  {
    MadeTrace made;
    made.flag_op(OpKind::kWaitValue, 1, 0, 1);
    made.op({.stream = 1, .queued = 0, .started = 5, .ended = 10});
    made.flag_op(OpKind::kWriteValue, 1, 0, 2);
    made.flag_op(OpKind::kWaitValue, 2, 0, 2);
    made.op({.stream = 2, .queued = 0, .started = 5, .ended = 20});
    made.flag_op(OpKind::kWriteValue, 2, 0, 1);
    data = made.data();
  }
  const Analysed run(std::move(data));
  EXPECT_EQ(run.result.critical.back(), 4U);
  watch::OpGraph graph = watch::op_graph(run.data, run.spans);
  ASSERT_EQ(graph.order.size(), graph.nodes.size());
  std::vector<bool> visited(graph.nodes.size());
  for (const std::uint32_t node : graph.order) {
    for (const std::uint32_t before : {graph.nodes[node].prev, graph.nodes[node].other}) {
      EXPECT_TRUE(before == watch::kNoNode || visited[before]);
    }
    visited[node] = true;
  }
}

TEST(Analysis, ASecondRunOfAnOpComesBetweenItAndTheNext) {
  MadeTrace made;
  made.op({.engine = Engine::kCopyOut, .queued = 0, .started = 0, .ended = 10});
  made.run({.engine = Engine::kCopyIn, .started = 10, .ended = 30, .device = 2}, 1);
  made.op({.queued = 1, .started = 30, .ended = 35});
  const Analysed run(made);
  ASSERT_EQ(run.spans.size(), 3U);
  expect_start(run, 2, StartCause::kDependency, 0, 10);
  expect_start(run, 1, StartCause::kDependency, 2, 30);
  EXPECT_EQ(run.result.critical, (std::vector<std::uint32_t>{0, 2, 1}));
}

}  // namespace
}  // namespace slip::test_analysis
