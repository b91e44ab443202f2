// Random records, comparison of traces, and a scratch folder.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "slip/figures.hpp"
#include "slip/trace.hpp"

namespace slip::watch_test {

// A folder that is removed with the object.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "slip_watch_XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::runtime_error("mkdtemp " + name);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) result.push_back(entry.path().filename());
    return result;
  }

 private:
  std::filesystem::path path_;
};

inline std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

inline void expect_same(const TraceRecord& a, const TraceRecord& b) {
  SCOPED_TRACE("sequence " + std::to_string(a.sequence));
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.engine, b.engine);
  EXPECT_EQ(a.op, b.op);
  EXPECT_EQ(a.opaque, b.opaque);
  EXPECT_EQ(a.whole_device, b.whole_device);
  EXPECT_EQ(a.device, b.device);
  EXPECT_EQ(a.queue, b.queue);
  EXPECT_EQ(a.line, b.line);
  EXPECT_EQ(a.value, b.value);
  EXPECT_EQ(a.sequence, b.sequence);
  EXPECT_EQ(a.stream, b.stream);
  EXPECT_EQ(a.position, b.position);
  EXPECT_EQ(a.other_stream, b.other_stream);
  EXPECT_EQ(a.other_position, b.other_position);
  EXPECT_EQ(a.thread, b.thread);
  EXPECT_EQ(a.bytes, b.bytes);
  EXPECT_EQ(a.queued, b.queued);
  EXPECT_EQ(a.annotation, b.annotation);
  EXPECT_EQ(a.started, b.started);
  EXPECT_EQ(a.ended, b.ended);
  EXPECT_EQ(a.cost.bytes, b.cost.bytes);
  EXPECT_EQ(a.cost.flops, b.cost.flops);
  EXPECT_EQ(a.cost.width, b.cost.width);
  EXPECT_EQ(a.cost.time, b.cost.time);
  EXPECT_EQ(a.range, b.range);
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.file, b.file);
}

inline void expect_same(const TraceData& a, const TraceData& b) {
  ASSERT_EQ(a.records.size(), b.records.size());
  for (std::size_t i = 0; i < a.records.size(); ++i) {
    expect_same(a.records[i], b.records[i]);
    EXPECT_TRUE(std::ranges::equal(a.reads(a.records[i]), b.reads(b.records[i])));
    EXPECT_TRUE(std::ranges::equal(a.writes(a.records[i]), b.writes(b.records[i])));
    if (::testing::Test::HasFailure()) return;  // the first difference is enough
  }
  ASSERT_EQ(a.buffers.size(), b.buffers.size());
  for (std::size_t i = 0; i < a.buffers.size(); ++i) {
    EXPECT_EQ(a.buffers[i].id, b.buffers[i].id);
    EXPECT_EQ(a.buffers[i].device, b.buffers[i].device);
    EXPECT_EQ(a.buffers[i].kind, b.buffers[i].kind);
    EXPECT_EQ(a.buffers[i].bytes, b.buffers[i].bytes);
    EXPECT_EQ(a.buffers[i].name, b.buffers[i].name);
  }
  EXPECT_EQ(a.dropped, b.dropped);
}

// Records of every kind with random fields, as a runtime might send them.
class Generator {
 public:
  explicit Generator(std::uint64_t seed, Picos start = 0) : random_(seed), now_(start) {}

  void send(Trace& trace, int count) {
    for (int i = 0; i < count; ++i) one(trace);
  }

 private:
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }
  Name name() {
    static const char* const kNames[] = {"add",
                                         "mul",
                                         "a \"quoted\" one",
                                         "tab\there",
                                         "<script>alert(1)</script>",
                                         "\xC3\xA9t\xC3\xA9 \xF0\x9F\x9A\x80",
                                         "back\\slash",
                                         "line\nbreak",
                                         "\x01\x1F\x7F"};
    return kNames[below(std::size(kNames))];
  }
  Record base(RecordKind kind) {
    now_ += static_cast<Picos>(below(2'000'000));
    return {.kind = kind,
            .device = static_cast<std::uint32_t>(1 + below(3)),
            .stream = 1 + below(5),
            .thread = 1 + below(4),
            .queued = now_,
            .here = {below(2) ? "dir/a file.cpp" : "C:\\x:y.cpp", static_cast<int>(1 + below(500))}};
  }
  Range range() { return {nullptr, 1 + below(20), below(1 << 20), 1 + below(std::uint64_t{1} << 40)}; }

  void one(Trace& trace) {
    const std::uint64_t dice = below(20);
    if (dice < 12) return op(trace);
    Record record = base(static_cast<RecordKind>(below(static_cast<std::uint64_t>(RecordKind::kError) + 1)));
    if (record.kind == RecordKind::kSubmit || record.kind == RecordKind::kRun) return op(trace);
    if (below(3) == 0) record.queued = 0;
    if (below(2)) record.name = name();
    if (below(4) == 0) record.started = now_ + 1, record.ended = now_ + 100;
    switch (record.kind) {
      case RecordKind::kEventWait:
      case RecordKind::kBarrier:
      case RecordKind::kQuery: record.other_stream = 1 + below(5), record.other_position = below(100); break;
      case RecordKind::kSync:
        record.stream = 0, record.whole_device = true, record.other_position = ~std::uint64_t{0};
        break;
      case RecordKind::kHostRead:
      case RecordKind::kHostWrite:
      case RecordKind::kHostEnd:
      case RecordKind::kAlloc:
      case RecordKind::kFree: record.range = range(); break;
      default: break;
    }
    trace.on(record);
  }

  void op(Trace& trace) {
    Record record = base(RecordKind::kSubmit);
    std::vector<Range> reads(below(4)), writes(below(3));
    for (Range& each : reads) each = range();
    for (Range& each : writes) each = range();
    Op op{.kind = static_cast<OpKind>(below(kOpKinds)),
          .engine = static_cast<Engine>(below(kEngines)),
          .opaque = below(5) == 0,
          .value = static_cast<std::uint32_t>(below(3) ? 0 : random_()),
          .reads = reads,
          .writes = writes,
          .bytes = below(3) ? 0 : below(4096)};
    if (below(2))
      op.cost = {random_(), below(1000), 1.0 / static_cast<double>(1 + below(7)), static_cast<Picos>(below(99))};
    record.position = ++position_;
    record.engine = op.engine;
    record.op = &op;
    if (below(8)) record.name = name();
    Record run{.kind = RecordKind::kRun,
               .engine = below(9) ? op.engine : Engine::kHost,
               .device = record.device,
               .queue = static_cast<std::int32_t>(below(4)) - 1,
               .stream = record.stream,
               .position = record.position,
               .thread = 9,
               .started = now_ + static_cast<Picos>(below(1000)),
               .name = record.name};
    run.ended = run.started + static_cast<Picos>(below(5'000'000));
    const std::uint64_t seen = below(10);  // mostly both records, in either order; sometimes one of them
    if (seen == 0) return trace.on(run);
    if (seen == 1) return trace.on(record);
    trace.on(seen == 2 ? run : record);
    trace.on(seen == 2 ? record : run);
  }

  std::mt19937_64 random_;
  Picos now_;
  std::uint64_t position_ = 0;
};

}  // namespace slip::watch_test
