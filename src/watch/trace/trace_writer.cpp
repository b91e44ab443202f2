// Writes a trace as Chrome trace-event JSON, one event per line.
//
// - process N > 0 is device N, with a track for each stream: "X" for each op that ran, arrows "s"/"f" for waits and
//   barriers
// - process 0 is the host, with a track for each thread: "i" or "X" for every other record
// - the section "slip" contains the version, the origin of each device's clock, and the buffers
//
// traceEvents comes first, because Perfetto stops at a key that it does not know. Numbers are exact integers, and times
// are decimals made from integers. `args` contains everything else that read_trace() needs to restore the records.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "base/json_text.hpp"
#include "base/output_file.hpp"
#include "base/stream_text.hpp"
#include "slip/trace.hpp"
#include "watch/trace/trace_data.hpp"

namespace slip {
namespace {

constexpr std::size_t kFlushBytes = std::size_t{256} << 10;

std::string title_of(const TraceRecord& record, const watch::StreamNames& names) {
  const auto text_of = [&names](std::uint64_t stream) { return base::stream_text(stream, names.of(stream)); };
  const char* kind = watch::record_kind_name(record.kind);
  if (record.other_stream != 0) return fmt::format("{} of {}", kind, text_of(record.other_stream));
  if (record.whole_device) return fmt::format("{} of device {}", kind, record.device);
  if (!record.name.empty()) return fmt::format("{} {}", kind, record.name);
  return record.stream != 0 ? fmt::format("{}, {}", kind, text_of(record.stream)) : kind;
}

class TraceWriter {
 public:
  TraceWriter(const TraceData& data, base::OutputFile& out)
      : data_(data),
        out_(out),
        spans_(data.spans()),
        names_(data.of({RecordKind::kStreamOpen})),
        origins_(watch::clock_origins(data)) {}

  void write() {
    put("{{\"traceEvents\":[\n");
    put_tracks();
    put_records();
    put_arrows();
    put("\n],\"displayTimeUnit\":\"ns\",\"slip\":");
    put_tables();
    put("}}\n");
    out_.write({text_.data(), text_.size()});
  }

 private:
  template <class... Values>
  void put(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Values>(values)...);
  }
  void put_time(const char* key, std::uint32_t device, Picos time) {
    put("\"{}\":", key);
    base::append_micros(text_, shifted(device, time));
    text_.push_back(',');
  }
  void put_text(const char* key, std::string_view text) {
    put("\"{}\":", key);
    base::append_string(text_, text);
    text_.push_back(',');
  }
  // Begins an event. Writes the buffer to the file if it is large.
  void begin() {
    if (text_.size() > kFlushBytes) {
      out_.write({text_.data(), text_.size()});
      text_.clear();
    }
    if (!first_) put(",\n");
    first_ = false;
  }

  Picos shifted(std::uint32_t device, Picos time) const { return watch::since_origin(origins_, device, time); }

  // Returns the time at which viewers show a record: the last known time of its thread, including this record.
  Picos note_time(const TraceRecord& record) {
    Picos& last = thread_time_.try_emplace(record.thread, 0).first->second;
    const Picos time = record.kind == RecordKind::kRun ? 0 : std::max(record.queued, record.ended);
    if (time > 0) last = std::max(last, shifted(record.device, time));
    return last;
  }

  void put_tracks() {
    const auto name = [this](const char* what, std::uint64_t pid, std::uint64_t tid, std::string_view text) {
      begin();
      put("{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"{}\",\"args\":{{\"name\":", pid, tid, what);
      base::append_string(text_, text);
      put("}}}}");
    };
    std::set<std::uint64_t> threads;
    std::set<std::uint32_t> devices;
    for (const TraceRecord& record : data_.records) {
      if (record.kind != RecordKind::kRun) threads.insert(record.thread);
      if (record.stream != 0) devices.insert(record.device);
    }
    if (!threads.empty()) name("process_name", 0, 0, "host");
    for (const std::uint64_t thread : threads) name("thread_name", 0, thread, fmt::format("thread {}", thread));
    for (const std::uint32_t device : devices) name("process_name", device, 0, fmt::format("device {}", device));
    for (const TraceStream& stream : data_.streams())
      name("thread_name", stream.device, stream.id,
           stream.name.empty() ? fmt::format("stream {}", stream.id) : std::string(stream.name));
  }

  // Writes the records in order of sequence. The event of an op that ran stands in the place of its submission, so that
  // the reader has little to sort. spans_ has one span for each submission, in the same order.
  void put_records() {
    auto span = spans_.begin();
    for (const TraceRecord& record : data_.records) {
      if (record.kind == RecordKind::kRun) continue;
      if (record.kind != RecordKind::kSubmit || !span->run) {
        put_host(record);
      } else {
        note_time(record);
        put_span(*span);
      }
      if (record.kind == RecordKind::kSubmit) ++span;
    }
    for (; span != spans_.end(); ++span) put_span(*span);  // these ops were submitted before the trace began
  }

  void put_span(const TraceSpan& span) {
    const TraceRecord& run = *span.run;
    begin();
    put("{{\"ph\":\"X\",\"pid\":{},\"tid\":{},", run.device, run.stream);
    put_time("ts", run.device, run.started);
    put("\"dur\":");
    base::append_micros(text_, run.ended - run.started);
    put(",\"cat\":\"{}\",", engine_name(run.engine));
    put_text("name", run.name.empty() ? op_kind_name(span.kind) : run.name);
    put("\"args\":{{");
    const TraceRecord& base = span.submit ? *span.submit : run;
    if (span.submit) put_operation(*span.submit);
    if (base.engine != run.engine)
      put("\"engine\":\"{}\",", engine_name(base.engine));  // "cat" is the engine that the op ran on
    put_common(base);
    if (run.name.empty()) put("\"unnamed\":true,");
    if (run.annotation) put("\"annotation\":true,");
    if (base.other_stream != 0) put("\"other\":[{},{}],", base.other_stream, base.other_position);
    if (run.queue != -1) put("\"queue\":{},", static_cast<std::uint32_t>(run.queue));
    const TraceRecord none{};
    const TraceRecord& submit = span.submit ? *span.submit : none;
    put("\"thread\":[{},{}],\"seq\":[{},{}]}}}}", submit.thread, run.thread, submit.sequence, run.sequence);
  }

  // Writes an event on the track of the record's thread: an interval if the record has a duration, otherwise an
  // instant.
  void put_host(const TraceRecord& record) {
    const Picos at = note_time(record);
    begin();
    if (record.ended > record.started) {
      put("{{\"ph\":\"X\",\"pid\":0,\"tid\":{},", record.thread);
      put_time("ts", record.device, record.started);
      put("\"dur\":");
      base::append_micros(text_, record.ended - record.started);
    } else {
      put("{{\"ph\":\"i\",\"pid\":0,\"tid\":{},\"ts\":", record.thread);
      base::append_micros(text_, at);
    }
    text_.push_back(',');
    put_text("name", title_of(record, names_));
    put("\"args\":{{\"record\":\"{}\",\"device\":{},", watch::record_kind_name(record.kind), record.device);
    if (record.kind == RecordKind::kSubmit) put_operation(record);
    if (!record.name.empty()) put_text("name", record.name);
    if (record.engine != Engine::kNone) put("\"engine\":\"{}\",", engine_name(record.engine));
    if (record.stream != 0) put("\"stream\":{},", record.stream);
    put_common(record);
    if (record.queue != -1) put("\"queue\":{},", static_cast<std::uint32_t>(record.queue));
    if (record.other_stream != 0 || record.other_position != 0)
      put("\"other\":[{},{}],", record.other_stream, record.other_position);
    if (record.whole_device) put("\"whole_device\":true,");
    if (record.range != TraceRange{})
      put("\"range\":[{},{},{}],", record.range.buffer, record.range.offset, record.range.bytes);
    put("\"thread\":[{}],\"seq\":[{}]}}}}", record.thread, record.sequence);
  }

  void put_common(const TraceRecord& record) {
    if (record.position != 0) put("\"position\":{},", record.position);
    if (record.queued != 0) put_time("queued", record.device, record.queued);
    if (record.line != 0 || !record.file.empty()) put_text("place", fmt::format("{}:{}", record.file, record.line));
  }

  void put_operation(const TraceRecord& submit) {
    if (submit.op != OpKind::kKernel) put("\"kind\":\"{}\",", op_kind_name(submit.op));
    if (submit.opaque) put("\"opaque\":true,");
    if (submit.reads > 0) put_ranges("reads", data_.reads(submit));
    if (submit.writes > 0) put_ranges("writes", data_.writes(submit));
    if (submit.value != 0) put("\"value\":{},", submit.value);
    if (submit.bytes != 0) put("\"bytes\":{},", submit.bytes);
    const Cost& cost = submit.cost;
    if (cost.bytes == 0 && cost.flops == 0 && cost.width == 1.0 && cost.time == 0) return;
    put("\"cost\":{{\"bytes\":{}", cost.bytes);
    if (cost.flops != 0) put(",\"flops\":{}", cost.flops);
    if (cost.width != 1.0 && std::isfinite(cost.width)) put(",\"width\":{}", cost.width);
    if (cost.time != 0) put(",\"time_ps\":{}", cost.time);
    put("}},");
  }

  void put_ranges(const char* key, std::span<const TraceRange> ranges) {
    put("\"{}\":[", key);
    for (const TraceRange& range : ranges)
      put("{}[{},{},{}]", &range == ranges.data() ? "" : ",", range.buffer, range.offset, range.bytes);
    put("],");
  }

  void put_arrows() {
    for (const watch::Arrow& arrow : watch::arrows(data_, spans_)) {
      const TraceSpan &from = spans_[arrow.from], &to = spans_[arrow.to];
      // A nanosecond before the end: viewers round times, and would bind an arrow at the end itself to the next op.
      const Picos leave = from.ended - std::min<Picos>(1000, from.ended - from.started);
      ++arrows_;
      put_arrow_end("s", from, leave, arrow.barrier);
      put_arrow_end("f", to, to.started, arrow.barrier);
    }
  }

  void put_arrow_end(const char* phase, const TraceSpan& span, Picos at, bool barrier) {
    begin();
    put("{{\"ph\":\"{}\",\"id\":{},\"pid\":{},\"tid\":{},", phase, arrows_, span.device, span.stream);
    put_time("ts", span.device, at);
    put("{}\"cat\":\"edge\",\"name\":\"{}\"}}", phase[0] == 'f' ? "\"bp\":\"e\"," : "", barrier ? "barrier" : "event");
  }

  void put_tables() {
    put("{{\"version\":1,\"dropped\":{},{}", data_.dropped, data_.foreign ? "\"foreign\":true," : "");
    if (const TraceProcess& process = data_.process; process.ranks > 0) {
      put("\n\"process\":{{\"rank\":{},\"ranks\":{},\"since_boot_ns\":{},\"since_1970_ns\":{},", process.rank,
          process.ranks, process.since_boot_ns, process.since_1970_ns);
      put("\"boot\":");
      base::append_string(text_, process.boot);
      put("}},");
    }
    put("\n\"devices\":[");
    bool first = true;
    for (const auto& [device, origin] : origins_) {
      put("{}\n{{\"id\":{},\"origin_ps\":{}", first ? "" : ",", device, origin);
      const auto merged = std::ranges::find(data_.devices, device, &TraceDevice::id);
      if (merged != data_.devices.end()) put(",\"rank\":{},\"id_there\":{}", merged->rank, merged->id_there);
      put("}}");
      first = false;
    }
    put("],\n\"buffers\":[");
    first = true;
    for (const TraceBuffer& buffer : data_.buffers) {
      put("{}\n{{", first ? "" : ",");
      put_text("name", buffer.name);
      if (buffer.address != 0) put("\"address\":{},", buffer.address);
      put("\"id\":{},\"device\":{},\"kind\":\"{}\",\"bytes\":{}}}", buffer.id, buffer.device,
          memory_kind_name(buffer.kind), buffer.bytes);
      first = false;
    }
    put("]}}");
  }

  const TraceData& data_;
  base::OutputFile& out_;
  std::vector<TraceSpan> spans_;
  const watch::StreamNames names_;
  fmt::memory_buffer text_;
  bool first_ = true;
  std::uint64_t arrows_ = 0;                    // number of the last arrow, which is its "id"
  std::map<std::uint32_t, Picos> origins_;      // by device
  std::map<std::uint64_t, Picos> thread_time_;  // by thread: the last known time, shifted
};

}  // namespace

void write_trace(const TraceData& data, const std::string& path, Here here) {
  base::OutputFile out(path, here);
  TraceWriter(data, out).write();
  out.finish();
}

}  // namespace slip
