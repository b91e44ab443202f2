// Damaged and hostile trace files. Each is either refused with kParse or read. A trace that was read can be used in
// every way, and is the same when it is written and read again.
//
// usage: fuzz_traces SECONDS SEED. A file is made from one seed alone, which is printed when it fails. An alarm
// ends hangs and names the seed. Memory is limited, so that a small file that takes much memory fails.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "fuzz/fuzz_loop.hpp"
#include "fuzz/mutator.hpp"
#include "slip/analysis.hpp"
#include "slip/check.hpp"
#include "slip/figures.hpp"
#include "slip/trace.hpp"
#include "watch/trace/trace_reader.hpp"

namespace slip {
namespace {

// A record's fields in one line, to compare and to show.
std::string text_of(const TraceData& data, const TraceRecord& r) {
  std::string text = fmt::format(
      "{} kind {} engine {} op {} {}{} device {} queue {} line {} value {} at {}:{} other {}:{} thread {} bytes {} "
      "times {} {} {} cost {} {} {} {} range {} {} {} '{}' '{}' reads",
      r.sequence, static_cast<int>(r.kind), static_cast<int>(r.engine), static_cast<int>(r.op), r.opaque,
      r.whole_device, r.device, r.queue, r.line, r.value, r.stream, r.position, r.other_stream, r.other_position,
      r.thread, r.bytes, r.queued, r.started, r.ended, r.cost.bytes, r.cost.flops, r.cost.width, r.cost.time,
      r.range.buffer, r.range.offset, r.range.bytes, r.name, r.file);
  for (const TraceRange& range : data.reads(r))
    text += fmt::format(" {} {} {}", range.buffer, range.offset, range.bytes);
  text += " writes";
  for (const TraceRange& range : data.writes(r))
    text += fmt::format(" {} {} {}", range.buffer, range.offset, range.bytes);
  return text;
}

void require_same(const TraceData& a, const TraceData& b) {
  if (a.records.size() != b.records.size() || a.buffers.size() != b.buffers.size() || a.dropped != b.dropped ||
      a.foreign != b.foreign)
    throw std::logic_error(fmt::format("{} records before, {} after", a.records.size(), b.records.size()));
  for (std::size_t i = 0; i < a.records.size(); ++i) {
    const std::string before = text_of(a, a.records[i]), after = text_of(b, b.records[i]);
    if (before != after) throw std::logic_error("written and read again it differs:\n  " + before + "\n  " + after);
  }
  for (std::size_t i = 0; i < a.buffers.size(); ++i) {
    const TraceBuffer &x = a.buffers[i], &y = b.buffers[i];
    if (x.id != y.id || x.device != y.device || x.kind != y.kind || x.bytes != y.bytes || x.name != y.name)
      throw std::logic_error(fmt::format("buffer {} differs", x.id));
  }
}

std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Uses a trace in every way.
void use(const TraceData& data, const std::string& path) {
  const std::vector<TraceSpan> spans = data.spans();
  std::size_t known = data.edges().size() + data.streams().size();
  for (const TraceSpan& span : spans) known += span.reads.size() + span.name.size();
  known += figures(spans).ops;
  known += check_trace(data).text().size();
  known += analyse(data, spans).critical.size();
  if (known == ~std::size_t{0}) throw std::logic_error("counted too much");
  write_trace(data, path);
  const TraceData again = read_trace(path);
  require_same(data, again);
}

TraceRecord record_of(RecordKind kind, std::uint64_t sequence, std::uint64_t stream, std::uint64_t position) {
  return {.kind = kind,
          .device = 1,
          .line = 7,
          .sequence = sequence,
          .stream = stream,
          .position = position,
          .thread = 1,
          .queued = static_cast<Picos>(sequence * 1000),
          .name = "some op",
          .file = "a.cpp"};
}

// Two streams with an event between them, host accesses, memory that comes and goes: one record of each kind.
TraceData small_trace() {
  TraceData data;
  std::uint64_t sequence = 0;
  const auto add = [&](RecordKind kind, std::uint64_t stream, std::uint64_t position) -> TraceRecord& {
    return data.records.emplace_back(record_of(kind, ++sequence, stream, position));
  };
  data.buffers = {{1, 1, MemoryKind::kDevice, 4096, "x"}, {2, 1, MemoryKind::kPinned, 64, "y"}};
  add(RecordKind::kStreamOpen, 2, 0);
  add(RecordKind::kStreamOpen, 3, 0);
  add(RecordKind::kAlloc, 2, 1).range = {1, 0, 4096};
  for (std::uint64_t i = 1; i <= 6; ++i) {
    const std::uint64_t stream = 2 + i % 2;
    TraceRecord& submit = add(RecordKind::kSubmit, stream, i + 1);
    submit.op = static_cast<OpKind>(i % 7);
    submit.engine = static_cast<Engine>(i % 5);
    submit.first_range = data.ranges.size();
    submit.reads = 1;
    submit.writes = 2;
    submit.cost = {i, 2 * i, 0.5, 0};
    for (std::uint64_t range = 0; range < 3; ++range) data.ranges.push_back({1 + range % 2, 16 * i, 64});
    TraceRecord& run = add(RecordKind::kRun, stream, i + 1);
    run.queued = 0;
    run.started = static_cast<Picos>(i * 5000);
    run.ended = run.started + 700;
    add(RecordKind::kEventRecord, stream, i + 1);
    TraceRecord& wait = add(i % 3 ? RecordKind::kEventWait : RecordKind::kBarrier, 5 - stream, i);
    wait.other_stream = stream;
    wait.other_position = i + 1;
  }
  for (const RecordKind kind :
       {RecordKind::kSync, RecordKind::kQuery, RecordKind::kHostRead, RecordKind::kHostWrite, RecordKind::kHostEnd,
        RecordKind::kFree, RecordKind::kError, RecordKind::kStreamClose}) {
    TraceRecord& record = add(kind, 2, 9);
    record.range = {2, 8, 16};
    record.other_stream = 3;
    record.other_position = 4;
    record.whole_device = kind == RecordKind::kSync;
    record.ended = kind == RecordKind::kSync ? 20 : 0;
  }
  return data;
}

constexpr const char* kForeign = R"({"schemaVersion": 1, "displayTimeUnit": "ms", "traceEvents": [
{"ph":"M","name":"process_name","pid":0,"tid":0,"args":{"name":"python"}},
{"ph":"M","name":"thread_name","pid":0,"tid":7,"args":{"name":"stream 7"}},
{"ph":"X","cat":"cpu_op","name":"aten::add","pid":99,"tid":99,"ts":1759312345678901.5,"dur":30.25,"args":{"seq":1}},
{"ph":"X","cat":"kernel","name":"add","pid":0,"tid":7,"ts":1759312345678911.5,"dur":3.25,"args":{"stream":7}},
{"ph":"X","cat":"gpu_memcpy","name":"Memcpy HtoD","pid":0,"tid":"7","ts":1759312345678915.5,"dur":1e1},
{"ph":"B","cat":"x","name":"outer","pid":"a","tid":"b","ts":1759312345678920},
{"ph":"B","cat":"x","name":"inner","pid":"a","tid":"b","ts":1759312345678921},
{"ph":"E","pid":"a","tid":"b","ts":1759312345678922},
{"ph":"s","id":1,"pid":0,"tid":7,"ts":1759312345678911.5,"name":"ac2g","cat":"ac2g"},
{"ph":"i","s":"g","name":"mark","pid":0,"tid":7,"ts":1759312345678930}
], "traceName": "t"})";

MutatorWords words(const std::string& path) {
  MutatorWords words;
  write_trace(small_trace(), path);
  words.originals = {contents(path), kForeign};
  const std::string& foreign = words.originals[1];
  words.originals.push_back(foreign.substr(foreign.find('['), foreign.rfind(']') - foreign.find('[')));
  words.values = {"NaN",
                  "Infinity",
                  "-Infinity",
                  "1e400",
                  "-1e400",
                  "1e-400",
                  "-1",
                  "0",
                  "-0",
                  "18446744073709551615",
                  "18446744073709551616",
                  "9223372036854775807",
                  "9223372036854.775807",
                  "-9223372036854.775808",
                  "4294967295",
                  "4294967296",
                  "1759312345678901.25",
                  "null",
                  "true",
                  "false",
                  "[]",
                  "{}",
                  "[1,2]",
                  "[[1,2,3]]",
                  "[[1,18446744073709551615,0]]",
                  "[[7,1,18446744073709551614],[7,0,18446744073709551615]]",
                  "\"\"",
                  "\"x\"",
                  "\"stream open\"",
                  "\"submit\"",
                  "\"event wait\"",
                  "\"free\"",
                  "\"host read\"",
                  "\"sync\"",
                  "\"X\"",
                  "\"B\"",
                  "\"E\"",
                  "\"i\"",
                  "\"wait value\"",
                  "\"\\ud800\"",
                  "\"\xFF\xC0\x80\"",
                  "\"a:b:1\"",
                  "00",
                  "1.",
                  ".5",
                  "1e5"};
  words.pieces = {"[", "{\"a\":", "[{\"args\":", "{\"traceEvents\":[", "[[1,"};
  words.deep_begin = "{\"traceEvents\":[{\"ph\":\"X\",\"args\":{\"reads\":";
  return words;
}

}  // namespace
}  // namespace slip

int main(int argc, char** argv) {
  const std::string path = fmt::format("fuzz_traces.{}.json", ::getpid());
  const slip::MutatorWords words = slip::words(path);
  const int status = slip::fuzz_main(argc, argv, "fuzz_traces", [&](std::uint64_t seed, std::string& input) {
    input = slip::Mutator(seed, words).make();
    std::optional<slip::TraceData> data;
    try {
      data = slip::watch::parse_trace(input, "mutated");
    } catch (const slip::Error& error) {
      if (error.code() != slip::ErrorCode::kParse) throw;
      return false;
    }
    slip::use(*data, path);
    return true;
  });
  std::filesystem::remove(path);
  return status;
}
