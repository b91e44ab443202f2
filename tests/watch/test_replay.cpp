// Properties of replay, slack and idle time that must hold for random traces.
#include <gtest/gtest.h>

#include "made_trace.hpp"
#include "support.hpp"
#include "watch/analysis/starts.hpp"

namespace slip::test_replay {
namespace {

using watch_test::Analysed;
using watch_test::MadeOp;
using watch_test::MadeTrace;

// A random program on streams, engines and two host threads, scheduled as a device would schedule it.
MadeTrace random_program(std::uint64_t seed, int ops, bool latencies) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t limit) { return static_cast<Picos>(random() % limit); };
  MadeTrace made;
  std::map<std::uint64_t, std::vector<Picos>> ends;  // by stream: of its ops
  std::map<Engine, Picos> engine_free;
  std::map<std::uint64_t, Picos> held, clock;  // by stream; by thread
  for (int i = 0; i < ops; ++i) {
    const std::uint64_t thread = 1 + static_cast<std::uint64_t>(below(2)),
                        stream = 1 + static_cast<std::uint64_t>(below(4));
    const std::uint64_t other = 1 + static_cast<std::uint64_t>(below(4));
    const auto known = ends[other].size();
    const std::uint64_t point = known == 0 ? 0 : 1 + random() % known;
    const Picos point_end = point == 0 ? 0 : ends[other][point - 1];
    if (below(3) == 0 && point > 0 && other != stream) {
      made.wait(stream, other, point, below(2) ? RecordKind::kEventWait : RecordKind::kBarrier);
      held[stream] = std::max(held[stream], point_end);
    }
    if (below(6) == 0 && point > 0) {
      made.sync(other, point, thread);
      clock[thread] = std::max(clock[thread], point_end);
    }
    clock[thread] += below(30);
    MadeOp op{.stream = stream, .engine = below(2) ? Engine::kCompute : Engine::kCopyIn, .queued = clock[thread]};
    op.thread = thread;
    op.started = std::max({op.queued, held[stream], engine_free[op.engine]}) + (latencies ? below(3) : 0);
    op.ended = op.started + 1 + below(40);
    engine_free[op.engine] = held[stream] = op.ended;
    ends[stream].push_back(op.ended);
    made.op(op);
  }
  return made;
}

void expect_idle_adds_up(const Analysed& run) {
  const Picos total = figures(run.spans).total;
  for (const EngineTime& engine : run.result.engines) {
    Picos sum = engine.busy + engine.done;
    for (const Picos idle : engine.idle) {
      EXPECT_GE(idle, 0);
      sum += idle;
    }
    EXPECT_EQ(sum, total) << engine_name(engine.engine);
  }
}

TEST(Replay, WithNothingLeftOutTheRecordedLengthComesOut) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    const Analysed run(random_program(seed, 200, seed % 2 == 0));
    EXPECT_EQ(watch::replayed_length({run.data, run.spans}), figures(run.spans).total);
    expect_idle_adds_up(run);
  }
}

// The definition of slack: an op that is longer by its slack costs nothing; each picosecond more costs one.
TEST(Replay, SlackIsWhatAnOpMayTakeLonger) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    const Analysed run(random_program(seed, 120, seed % 2 == 0));
    const watch::RunModel model(run.data, run.spans);
    const Picos length = watch::replayed_length(model);
    std::vector<Picos> longer(run.spans.size());
    for (std::size_t i = 0; i < run.spans.size(); ++i) {
      longer[i] = run.result.slack[i];
      EXPECT_EQ(watch::replayed_length(model, {}, longer), length) << "span " << i;
      longer[i] += 3;
      EXPECT_EQ(watch::replayed_length(model, {}, longer), length + 3)
          << "span " << i << " slack " << run.result.slack[i];
      longer[i] = 0;
      if (HasFailure()) return;
    }
    for (const std::uint32_t span : run.result.critical) EXPECT_EQ(run.result.slack[span], 0) << "span " << span;
  }
}

TEST(Replay, AWaitLeftOutSetsTheOpFree) {
  MadeTrace made;
  made.op({.stream = 1, .engine = Engine::kCopyIn, .queued = 0, .started = 0, .ended = 50});
  made.wait(2, 1, 1);
  made.op({.stream = 2, .queued = 5, .started = 52, .ended = 70});  // 2 of latency
  const Analysed run(made);
  const watch::RunModel model(run.data, run.spans);
  EXPECT_EQ(watch::replayed_length(model), 70);
  std::vector<bool> left_out;
  for (const TraceRecord& record : run.data.records) left_out.push_back(record.kind == RecordKind::kEventWait);
  EXPECT_EQ(watch::replayed_length(model, left_out), 50) << "the kernel ran from 7 to 25 beside the copy";
}

TEST(Replay, AHostWaitLeftOutLetsTheHostGoOn) {
  MadeTrace made;
  made.op({.stream = 1, .engine = Engine::kCopyIn, .queued = 0, .started = 0, .ended = 50});
  made.sync(1, 1);
  made.op({.stream = 2, .queued = 55, .started = 55, .ended = 60});
  made.op({.stream = 2, .queued = 65, .started = 65, .ended = 90});
  const Analysed run(made);
  const watch::RunModel model(run.data, run.spans);
  std::vector<bool> left_out;
  for (const TraceRecord& record : run.data.records) left_out.push_back(record.kind == RecordKind::kSync);
  EXPECT_EQ(watch::replayed_length(model), 90);
  EXPECT_EQ(watch::replayed_length(model, left_out), 50) << "submitted at 5 and 15, the last ends at 40";
}

// Records of every kind with times that contradict each other: nothing breaks, and sums still hold.
TEST(Replay, NonsenseIsSurvived) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    Trace trace;
    watch_test::Generator(seed).send(trace, 400);
    trace.stop();
    const Analysed run(trace.data());
    expect_idle_adds_up(run);
    EXPECT_EQ(watch::replayed_length({run.data, run.spans}), figures(run.spans).total);
    for (const Picos slack : run.result.slack) EXPECT_GE(slack, 0);
    ASSERT_FALSE(run.result.critical.empty());
    for (const TraceSpan& span : run.spans) EXPECT_LE(span.ended, run.spans[run.result.critical.back()].ended);
  }
}

}  // namespace
}  // namespace slip::test_replay
