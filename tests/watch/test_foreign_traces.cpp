// Traces of other programs: what PyTorch's profiler and browsers write.
#include <fmt/format.h>

#include "slip/race.hpp"
#include "support.hpp"
#include "watch/trace/trace_reader.hpp"

namespace slip::test_foreign_traces {
namespace {

using watch_test::expect_same;
using watch_test::Folder;

// As torch.profiler exports it, cut down to one kernel and two copies.
constexpr const char* kProfile = R"json({
  "schemaVersion": 1,
  "deviceProperties": [
    {"id": 0, "name": "Some GPU", "totalGlobalMem": 84987740160, "computeMajor": 9, "warpSize": 32}
  ],
  "cupti_version": 24, "with_flops": 0,
  "trace_id": "4F2A", "displayTimeUnit": "ms", "baseTimeNanoseconds": 1759300000000000000,
  "traceEvents": [
  {"ph": "X", "cat": "cpu_op", "name": "aten::copy_", "pid": 4242, "tid": 4242,
   "ts": 1759312345678901.500, "dur": 30.250,
   "args": {"External id": 7, "Ev Idx": 0, "Input Dims": [[2, 3], []], "stream": "none", "seq": 12, "kind": 4}},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaMemcpyAsync", "pid": 4242, "tid": 4242,
   "ts": 1759312345678905.000, "dur": 8.0, "args": {"cbid": 41, "correlation": 9}},
  {"ph": "s", "id": 9, "pid": 4242, "tid": 4242, "ts": 1759312345678905.000, "cat": "ac2g", "name": "ac2g"},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "pid": 0, "tid": 7,
   "ts": 1759312345678910.125, "dur": 2.5,
   "args": {"device": 0, "stream": 7, "bytes": 4096, "memory bandwidth (GB/s)": 1.6384, "correlation": 9}},
  {"ph": "f", "id": 9, "pid": 0, "tid": 7, "ts": 1759312345678910.125, "cat": "ac2g", "name": "ac2g", "bp": "e"},
  {"ph": "X", "cat": "kernel", "name": "void add<float, 4>(int, float*)", "pid": 0, "tid": 7,
   "ts": 1759312345678913.000, "dur": 5.000001, "args": {"queued": 0, "grid": [1, 1, 1], "cost": "x", "place": 3}},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)", "pid": 0, "tid": 20,
   "ts": 1759312345678920.0, "dur": 1},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy DtoD (Device -> Device)", "pid": 0, "tid": 20,
   "ts": 1759312345678922.0, "dur": 1},
  {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "pid": 0, "tid": 20, "ts": 1759312345678924.0, "dur": 1},
  {"name": "process_name", "ph": "M", "ts": 1759312345678900.0, "pid": 4242, "tid": 0, "args": {"name": "python"}},
  {"name": "process_labels", "ph": "M", "ts": 1759312345678900.0, "pid": 4242, "tid": 0, "args": {"labels": "CPU"}},
  {"name": "process_sort_index", "ph": "M", "ts": 1.0, "pid": 4242, "tid": 0, "args": {"sort_index": 4242}},
  {"name": "process_name", "ph": "M", "ts": 1759312345678900.0, "pid": 0, "tid": 0, "args": {"name": "python"}},
  {"name": "process_labels", "ph": "M", "ts": 1759312345678900.0, "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
  {"name": "thread_name", "ph": "M", "ts": 1.0, "pid": 0, "tid": 7, "args": {"name": "stream 7"}},
  {"ph": "X", "cat": "Trace", "ts": 1759312345678899.0, "dur": 40, "pid": "Spans", "tid": "PyTorch Profiler",
   "name": "PyTorch Profiler (0)", "args": {"Op count": 0}},
  {"ph": "i", "cat": "", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 1759312345678950.0}
  ],
  "traceName": "run.pt.trace.json"
})json";

TEST(ForeignTrace, PyTorchProfile) {
  const TraceData data = watch::parse_trace(kProfile, "torch");
  EXPECT_TRUE(data.foreign);
  const auto streams = data.streams();
  ASSERT_EQ(streams.size(), 4U);
  EXPECT_EQ(streams[0].name, "python CPU / thread 4242");
  EXPECT_EQ(streams[1].name, "python GPU 0 / stream 7");
  EXPECT_EQ(streams[2].name, "python GPU 0 / thread 20");
  EXPECT_EQ(streams[3].name, "process Spans / thread PyTorch Profiler");
  EXPECT_EQ(streams[0].device, 1U);
  EXPECT_EQ(streams[1].device, 2U);
  EXPECT_EQ(streams[2].device, 2U);
  const auto spans = data.spans();
  ASSERT_EQ(spans.size(), 8U);
  // What was launched by a call of the trace comes first.
  EXPECT_EQ(spans[0].engine, Engine::kCopyIn);
  EXPECT_EQ(spans[0].kind, OpKind::kCopy);
  ASSERT_NE(spans[0].submit, nullptr);
  EXPECT_EQ(spans[0].queued, 6'000'000) << "when cudaMemcpyAsync was called";
  EXPECT_EQ(spans[0].submit->other_stream, 1U);
  EXPECT_EQ(spans[0].submit->other_position, 2U);
  // The others by start, from the earliest.
  EXPECT_EQ(spans[1].name, "PyTorch Profiler (0)");
  EXPECT_EQ(spans[1].started, 0);
  EXPECT_TRUE(spans[1].annotation);
  EXPECT_EQ(spans[2].name, "aten::copy_");
  EXPECT_EQ(spans[2].started, 2'500'000);
  EXPECT_EQ(spans[2].ended, 32'750'000);
  EXPECT_EQ(spans[2].engine, Engine::kHost);
  EXPECT_FALSE(spans[2].annotation);
  EXPECT_EQ(spans[3].position, 2U);  // the second of its track
  EXPECT_EQ(spans[4].engine, Engine::kCompute);
  EXPECT_EQ(spans[4].stream, 2U);
  EXPECT_EQ(spans[4].ended - spans[4].started, 5'000'001);
  EXPECT_EQ(spans[5].engine, Engine::kCopyOut);
  EXPECT_EQ(spans[6].engine, Engine::kCompute);
  EXPECT_EQ(spans[7].engine, Engine::kCompute);
  EXPECT_TRUE(data.edges().empty());
  EXPECT_EQ(figures(spans).copy, 3'500'000);
  EXPECT_EQ(check_races(data).opaque, check_races(data).ops) << "nothing is known of what they touch";
}

TEST(ForeignTrace, WrittenAndReadAgainItIsTheSame) {
  const TraceData data = watch::parse_trace(kProfile, "torch");
  const Folder folder;
  write_trace(data, folder.file("t.json"));
  const TraceData again = read_trace(folder.file("t.json"));
  EXPECT_TRUE(again.foreign);
  expect_same(data, again);
}

TEST(ForeignTrace, BeginsAndEndsAreMatchedByThread) {
  const TraceData data = watch::parse_trace(R"([
    {"ph":"B","pid":1,"tid":1,"ts":10,"name":"outer","cat":"a"},
    {"ph":"B","pid":1,"tid":2,"ts":11,"name":"other"},
    {"ph":"B","pid":1,"tid":1,"ts":12,"name":"inner"},
    {"ph":"E","pid":1,"tid":1,"ts":13},
    {"ph":"E","pid":1,"tid":3,"ts":13.5},
    {"ph":"E","pid":1,"tid":1,"ts":20,"name":"outer"},
    {"ph":"C","pid":1,"tid":1,"ts":21,"name":"memory","args":{"used":5}},
    {"ph":"b","pid":1,"tid":1,"ts":21,"id":"0x1","name":"async"},
    {"ph":"X","pid":1,"tid":1,"ts":2.5e1,"name":"later"}
  ])",
                                            "t");
  const auto spans = data.spans();
  ASSERT_EQ(spans.size(), 4U);
  EXPECT_EQ(spans[0].name, "outer");
  EXPECT_EQ(spans[0].ended, 20'000'000);
  EXPECT_EQ(spans[1].name, "other");  // never ended: to the end of the trace
  EXPECT_EQ(spans[1].ended, 25'000'000);
  EXPECT_EQ(spans[2].name, "inner");
  EXPECT_EQ(spans[2].started, 12'000'000);
  EXPECT_EQ(spans[2].ended, 13'000'000);
  EXPECT_EQ(spans[3].started, 25'000'000);  // times that fit stay as they are
  EXPECT_EQ(spans[3].ended, 25'000'000);
}

TEST(ForeignTrace, ABareArrayMayLackItsEnd) {
  const std::string event = R"({"ph":"X","pid":"p","tid":"t","ts":1,"dur":2,"name":"a"})";
  for (const std::string& text :
       {"[" + event + "]", "[" + event, "[" + event + ",", "[\n" + event + " ,\n", "\xEF\xBB\xBF[" + event + "\n]\n"}) {
    const TraceData data = watch::parse_trace(text, "t");
    EXPECT_TRUE(data.foreign);
    ASSERT_EQ(data.spans().size(), 1U) << text;
    EXPECT_EQ(data.streams()[0].name, "process p / thread t");
  }
  for (const std::string& text : {"[" + event + ",]", "[" + event + event, "[," + event, "[" + event + ",,",
                                  "[" + event + "] x", "[" + event.substr(0, 30), "{\"traceEvents\":[" + event})
    EXPECT_THROW(watch::parse_trace(text, "t"), Error) << text;
}

TEST(ForeignTrace, OddEventsAreShownSafely) {
  const auto one = [](const std::string& fields) {
    return watch::parse_trace("[{\"ph\":\"X\",\"pid\":1,\"tid\":1," + fields + "}]", "t");
  };
  EXPECT_EQ(one("\"ts\":5,\"dur\":-3").spans()[0].ended, 5'000'000);
  EXPECT_EQ(one("\"ts\":-5").spans()[0].started, -5'000'000);
  EXPECT_EQ(one("\"ts\":1,\"name\":null,\"pid\":null,\"args\":3").spans()[0].name, "");
  EXPECT_EQ(one("\"ts\":1,\"name\":17").spans()[0].name, "17");
  EXPECT_THROW(one("\"dur\":1"), Error);     // no time
  EXPECT_THROW(one("\"ts\":1e400"), Error);  // no such time
  EXPECT_THROW(one("\"ts\":NaN"), Error);
  EXPECT_THROW(one("\"ts\":1,\"dur\":1e18"), Error);  // ends in 30,000 years
  EXPECT_THROW(watch::parse_trace(R"([{"ph":"X","ts":0},{"ph":"X","ts":1759312345678901}])", "t"),
               Error);  // years apart
}

}  // namespace
}  // namespace slip::test_foreign_traces
