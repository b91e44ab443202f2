// Recording, and the accessors of TraceData.
#include <atomic>
#include <thread>

#include "runtime/core.hpp"
#include "support.hpp"

namespace slip::test_trace {
namespace {

using watch_test::expect_same;

Record submit(const Op& op, std::uint64_t stream, std::uint64_t position, Name name, Picos queued = 0) {
  return {.kind = RecordKind::kSubmit,
          .engine = op.engine,
          .device = 1,
          .stream = stream,
          .position = position,
          .thread = 1,
          .queued = queued,
          .op = &op,
          .name = name,
          .here = {"a.cpp", 7}};
}

Record run(std::uint64_t stream, std::uint64_t position, Picos started, Picos ended, Engine engine = Engine::kCompute) {
  return {.kind = RecordKind::kRun,
          .engine = engine,
          .device = 1,
          .queue = 2,
          .stream = stream,
          .position = position,
          .thread = 5,
          .started = started,
          .ended = ended};
}

TEST(Trace, SpanJoinsSubmissionAndRun) {
  Trace trace;
  const Range reads[] = {{nullptr, 3, 16, 32}};
  const Range writes[] = {{nullptr, 4, 0, 8}, {nullptr, 4, 64, 8}};
  const Op op{.kind = OpKind::kKernel,
              .engine = Engine::kCompute,
              .reads = std::span<const Range>(reads),
              .writes = std::span<const Range>(writes),
              .cost = {.bytes = 48, .flops = 7, .width = 0.25, .time = 12}};
  trace.on(submit(op, 2, 1, "add", 100));
  trace.on(run(2, 1, 150, 400));
  const TraceData data = trace.data();
  const std::vector<TraceSpan> spans = data.spans();
  ASSERT_EQ(spans.size(), 1U);
  const TraceSpan& span = spans[0];
  EXPECT_EQ(span.name, "add");
  EXPECT_EQ(span.file, "a.cpp");
  EXPECT_EQ(span.line, 7);
  EXPECT_EQ(span.queue, 2);
  EXPECT_EQ(span.queued, 100);
  EXPECT_EQ(span.started, 150);
  EXPECT_EQ(span.ended, 400);
  ASSERT_EQ(span.reads.size(), 1U);
  EXPECT_EQ(span.reads[0], (TraceRange{3, 16, 32}));
  ASSERT_EQ(span.writes.size(), 2U);
  EXPECT_EQ(span.writes[1], (TraceRange{4, 64, 8}));
  EXPECT_EQ(span.submit->cost.width, 0.25);
  EXPECT_EQ(span.run->name, "add");  // the op's
}

TEST(Trace, ARunMayBeRecordedBeforeItsSubmission) {
  Trace trace;
  const Op op{.engine = Engine::kCompute};
  trace.on(run(1, 1, 10, 20));
  trace.on(submit(op, 1, 1, "early"));
  const TraceData data = trace.data();
  ASSERT_EQ(data.spans().size(), 1U);
  EXPECT_EQ(data.spans()[0].name, "early");
  EXPECT_EQ(data.spans()[0].ended, 20);
}

TEST(Trace, HalfSeenOpsAreSpansToo) {
  Trace trace;
  const Op op{.engine = Engine::kCopyIn};
  trace.on(run(1, 7, 10, 20));
  trace.on(submit(op, 1, 8, "never ran"));
  const TraceData data = trace.data();
  const auto spans = data.spans();
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].run, nullptr);
  EXPECT_EQ(spans[0].name, "never ran");
  EXPECT_EQ(spans[1].submit, nullptr);
  EXPECT_EQ(spans[1].position, 7U);
}

TEST(Trace, EdgesStreamsAndHostRecords) {
  Trace trace;
  trace.on({.kind = RecordKind::kStreamOpen, .device = 1, .stream = 4, .thread = 1, .name = "load"});
  trace.on({.kind = RecordKind::kEventWait,
            .device = 1,
            .stream = 5,
            .position = 3,
            .other_stream = 4,
            .other_position = 9});
  trace.on(
      {.kind = RecordKind::kBarrier, .device = 1, .stream = 4, .position = 9, .other_stream = 5, .other_position = 3});
  trace.on(
      {.kind = RecordKind::kSync, .whole_device = true, .device = 1, .other_position = ~std::uint64_t{0}, .thread = 1});
  const TraceData data = trace.data();
  const auto edges = data.edges();
  ASSERT_EQ(edges.size(), 2U);
  EXPECT_EQ(edges[0].from_stream, 4U);
  EXPECT_EQ(edges[0].from_position, 9U);
  EXPECT_EQ(edges[0].to_stream, 5U);
  EXPECT_FALSE(edges[0].barrier);
  EXPECT_TRUE(edges[1].barrier);
  const auto streams = data.streams();
  ASSERT_EQ(streams.size(), 2U);
  EXPECT_EQ(streams[0].name, "load");
  EXPECT_EQ(streams[1].name, "");
  const auto syncs = data.of({RecordKind::kSync, RecordKind::kQuery});
  ASSERT_EQ(syncs.size(), 1U);
  EXPECT_TRUE(syncs[0]->whole_device);
  EXPECT_EQ(syncs[0]->other_position, ~std::uint64_t{0});
}

TEST(Trace, BuffersAreKnownByWhateverTouchedThem) {
  runtime::Block block;
  block.id = 12;
  block.bytes = 4096;
  block.kind = MemoryKind::kPinned;
  block.name = "weights";
  Trace trace;
  const Range reads[] = {{&block, 12, 0, 64}};
  const Op op{.engine = Engine::kCompute, .reads = std::span<const Range>(reads)};
  for (std::uint64_t i = 1; i < 100; ++i) trace.on(submit(op, 1, i, "use"));
  const TraceData data = trace.data();
  ASSERT_EQ(data.buffers.size(), 1U);
  ASSERT_NE(data.buffer(12), nullptr);
  EXPECT_EQ(data.buffer(12)->name, "weights");
  EXPECT_EQ(data.buffer(12)->bytes, 4096U);
  EXPECT_EQ(data.buffer(12)->kind, MemoryKind::kPinned);
  EXPECT_EQ(data.buffer(11), nullptr);
  EXPECT_EQ(data.records.size(), 99U);
}

TEST(Trace, FullTraceCountsWhatItDrops) {
  Trace trace({.max_bytes = std::size_t{1} << 20});
  for (std::uint64_t i = 1; i <= 50'000; ++i) trace.on(run(1, i, 1, 2));
  const TraceData data = trace.data();
  EXPECT_GT(data.dropped, 0U);
  EXPECT_GT(data.records.size(), 5'000U);
  EXPECT_EQ(data.records.size() + data.dropped, 50'000U);
}

TEST(Trace, OpWithVeryManyRanges) {
  Trace trace;
  const std::vector<Range> many(40'000, Range{nullptr, 5, 8, 16});  // larger than a chunk
  const Op op{.engine = Engine::kCompute, .reads = many};
  trace.on(submit(op, 1, 1, "wide"));
  trace.on(submit(op, 1, 2, "wide"));
  const TraceData data = trace.data();
  ASSERT_EQ(data.records.size(), 2U);
  EXPECT_EQ(data.reads(data.records[1]).size(), many.size());
  EXPECT_EQ(data.reads(data.records[1]).back(), (TraceRange{5, 8, 16}));
}

TEST(Trace, StopsOnRequestAndTwiceIsFine) {
  Trace trace;
  trace.stop();
  trace.stop();
  EXPECT_TRUE(trace.data().records.empty());
}

// Several threads record while another looks: nothing is lost, each thread's records are in order, and numbers are
// unique.
TEST(TraceThreads, RecordTogetherAndAreReadMeanwhile) {
  constexpr std::uint64_t kThreads = 4, kEach = 20'000;
  Trace trace;
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done.load()) {
      const TraceData data = trace.data();
      for (std::size_t i = 1; i < data.records.size(); ++i)
        ASSERT_LT(data.records[i - 1].sequence, data.records[i].sequence);
    }
  });
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&trace, t] {
      const Range reads[] = {{nullptr, t + 1, 0, 64}};
      const Op op{.engine = Engine::kCompute, .reads = std::span<const Range>(reads)};
      for (std::uint64_t i = 1; i <= kEach; ++i) {
        Record record = submit(op, t, i, "op");
        record.thread = t;  // two of them share a shard with others of the process, or not: both must work
        trace.on(record);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  done.store(true);
  reader.join();
  const TraceData data = trace.data();
  ASSERT_EQ(data.records.size(), kThreads * kEach);
  std::vector<std::uint64_t> last(kThreads, 0);
  for (std::size_t i = 0; i < data.records.size(); ++i) {
    const TraceRecord& record = data.records[i];
    EXPECT_EQ(record.sequence, i + 1);
    ASSERT_EQ(record.position, last[record.stream] + 1);
    last[record.stream] = record.position;
    ASSERT_EQ(data.reads(record)[0].buffer, record.stream + 1);
  }
}

// A record made after another one, on another thread, has the higher sequence number: the race check relies on it.
TEST(TraceThreads, OrderFollowsCause) {
  Trace trace;
  std::atomic<std::uint64_t> turn{0};
  constexpr std::uint64_t kTurns = 2'000;
  const auto body = [&](std::uint64_t me) {
    for (std::uint64_t i = me; i < kTurns; i += 2) {
      while (turn.load(std::memory_order_acquire) != i) std::this_thread::yield();
      trace.on({.kind = RecordKind::kSync, .position = i, .thread = me + 1});
      turn.store(i + 1, std::memory_order_release);
    }
  };
  std::thread a(body, 0), b(body, 1);
  a.join();
  b.join();
  const TraceData data = trace.data();
  ASSERT_EQ(data.records.size(), kTurns);
  for (std::uint64_t i = 0; i < kTurns; ++i) EXPECT_EQ(data.records[i].position, i);
}

}  // namespace
}  // namespace slip::test_trace
