#include "watch/trace_reader.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <new>

#include "watch/event_reader.hpp"
#include "watch/json_reader.hpp"
#include "watch/spans.hpp"
#include "watch/words.hpp"

namespace slip {
namespace {

constexpr std::size_t kMaxRecords = std::size_t{1} << 27;
constexpr std::size_t kMaxRanges = std::size_t{1} << 29;
// Room made at once, so that a long list is not copied as it grows; little enough that a file's size alone costs
// nothing.
constexpr std::size_t kBytesPerRecord = 160;
constexpr std::size_t kMaxReserved = std::size_t{1} << 22;

class TraceReader {
 public:
  TraceReader(JsonReader& json, std::size_t file_bytes) : json_(json) {
    data_.records.reserve(std::min(file_bytes / kBytesPerRecord, kMaxReserved));
  }

  TraceData read() {
    std::string_view key;
    json_.begin_object();
    while (json_.next_key(key)) {
      if (key == "traceEvents") read_events();
      else if (key == "slip") read_tables();
      else json_.skip();
    }
    json_.finish();
    if (version_ == 0) json_.fail("no \"slip\" section: not a trace written by this library");
    shift_times();
    data_.text = texts_.owner();
    tidy(data_);
    return std::move(data_);
  }

 private:
  void read_events();
  Picos end_of(const TraceEvent& event) const;
  void add_host(const TraceEvent& event);
  void add_submit(const TraceEvent& event, TraceRecord record);
  void add_op(const TraceEvent& event);
  void push(const TraceRecord& record);

  void read_tables();
  void read_device();
  void read_buffer();
  void shift_times();
  void shift(Picos& time, Picos origin) const;

  JsonReader& json_;
  Texts texts_;
  TraceData data_;
  std::uint64_t version_ = 0;
  std::map<std::uint32_t, Picos> origins_;
};

void TraceReader::read_events() {
  EventReader events(json_, texts_);
  json_.begin_array();
  while (json_.next_item()) {
    const TraceEvent& event = events.read();
    if (event.phase != 'X' && event.phase != 'i') continue;
    if (event.lasts < 0) json_.fail("an event that ends before it starts");
    if (event.recorded) add_host(event);
    else if (event.phase == 'X') add_op(event);
  }
}

Picos TraceReader::end_of(const TraceEvent& event) const {
  Picos end = 0;
  if (__builtin_add_overflow(event.at, event.lasts, &end)) json_.fail("a time beyond 2^63 picoseconds");
  return end;
}

void TraceReader::add_host(const TraceEvent& event) {
  TraceRecord record = event.record;
  record.thread = event.threads[0];
  record.sequence = event.sequences[0];
  if (event.phase == 'X' && event.lasts > 0) {
    record.started = event.at;
    record.ended = end_of(event);
  }
  if (record.kind == RecordKind::kRun) json_.fail("a run is told by an op's event, not by a record of its own");
  if (record.kind == RecordKind::kSubmit) add_submit(event, record);
  else push(record);
}

void TraceReader::push(const TraceRecord& record) {
  if (data_.records.size() >= kMaxRecords) json_.fail(fmt::format("more than {} records", kMaxRecords));
  if (record.sequence == 0) json_.fail("a record without its place in the order (\"seq\")");
  data_.records.push_back(record);
}

void TraceReader::add_submit(const TraceEvent& event, TraceRecord record) {
  std::vector<TraceRange>& ranges = data_.ranges;
  if (ranges.size() + event.reads.size() + event.writes.size() > kMaxRanges)
    json_.fail(fmt::format("more than {} ranges", kMaxRanges));
  record.first_range = ranges.size();
  record.reads = static_cast<std::uint32_t>(event.reads.size());
  record.writes = static_cast<std::uint32_t>(event.writes.size());
  ranges.insert(ranges.end(), event.reads.begin(), event.reads.end());
  ranges.insert(ranges.end(), event.writes.begin(), event.writes.end());
  push(record);
}

void TraceReader::add_op(const TraceEvent& event) {
  TraceRecord submit = event.record;
  submit.kind = RecordKind::kSubmit;
  submit.device = require_small(json_, event.pid, "pid");
  submit.name = event.unnamed ? std::string_view() : event.title;
  submit.queue = -1;
  submit.thread = event.threads[0];
  submit.sequence = event.sequences[0];
  if (submit.sequence != 0) add_submit(event, submit);
  const TraceRecord run{.kind = RecordKind::kRun,
                        .engine = event.ran_on.value_or(submit.engine),
                        .device = submit.device,
                        .queue = event.record.queue,
                        .line = submit.line,
                        .sequence = event.sequences[1],
                        .stream = submit.stream,
                        .position = submit.position,
                        .thread = event.threads[1],
                        .started = event.at,
                        .ended = end_of(event),
                        .name = submit.name,
                        .file = submit.file};
  push(run);
}

void TraceReader::read_tables() {
  std::string_view key;
  json_.begin_object();
  while (json_.next_key(key)) {
    if (key == "version") {
      version_ = json_.unsigned_number();
      if (version_ != 1) json_.fail(fmt::format("a trace of version {}; this library reads version 1", version_));
    } else if (key == "dropped") {
      data_.dropped = json_.unsigned_number();
    } else if (key == "devices") {
      json_.begin_array();
      while (json_.next_item()) read_device();
    } else if (key == "buffers") {
      json_.begin_array();
      while (json_.next_item()) read_buffer();
    } else {
      json_.skip();
    }
  }
}

void TraceReader::read_device() {
  std::string_view key;
  std::uint32_t id = 0;
  Picos origin = 0;
  json_.begin_object();
  while (json_.next_key(key)) {
    if (key == "id") id = require_small(json_, json_.unsigned_number(), "device");
    else if (key == "origin_ps") origin = json_.signed_number();
    else json_.skip();
  }
  origins_[id] = origin;
}

void TraceReader::read_buffer() {
  std::string_view key;
  TraceBuffer buffer;
  json_.begin_object();
  while (json_.next_key(key)) {
    if (key == "id") buffer.id = json_.unsigned_number();
    else if (key == "device") buffer.device = require_small(json_, json_.unsigned_number(), "device");
    else if (key == "kind") buffer.kind = require_word(json_, memory_kind_of, "kind of memory");
    else if (key == "bytes") buffer.bytes = json_.unsigned_number();
    else if (key == "name") buffer.name = texts_.keep(json_.text());
    else json_.skip();
  }
  if (data_.buffers.size() >= kMaxRecords) json_.fail(fmt::format("more than {} buffers", kMaxRecords));
  data_.buffers.push_back(buffer);
}

void TraceReader::shift(Picos& time, Picos origin) const {
  if (__builtin_add_overflow(time, origin, &time)) json_.fail("a time beyond 2^63 picoseconds");
}

// Back to the devices' own clocks, which the file gives at its end.
void TraceReader::shift_times() {
  for (TraceRecord& record : data_.records) {
    const auto found = origins_.find(record.device);
    const Picos origin = found == origins_.end() ? 0 : found->second;
    if (record.kind == RecordKind::kRun || record.ended > record.started) {
      shift(record.started, origin);
      shift(record.ended, origin);
    }
    if (record.queued == kNoTime) record.queued = 0;
    else if (record.kind != RecordKind::kRun) shift(record.queued, origin);
  }
}

TraceData parse(JsonReader json, std::size_t file_bytes, const std::string& name, Here here) {
  try {
    return TraceReader(json, file_bytes).read();
  } catch (const std::bad_alloc&) {
    throw Error(Code::kOutOfMemory, fmt::format("reading '{}': its records do not fit into memory", name), here);
  }
}

}  // namespace

TraceData parse_trace(std::string_view text, const std::string& name, Here here) {
  return parse(JsonReader(name, text, here), text.size(), name, here);
}

TraceData read_trace(const std::string& path, Here here) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"), std::fclose);
  if (!file) throw Error(Code::kIo, fmt::format("cannot open '{}': {}", path, std::strerror(errno)), here);
  struct stat status {};
  const bool known = ::fstat(::fileno(file.get()), &status) == 0 && status.st_size > 0;
  return parse(JsonReader(path, file.get(), here), known ? static_cast<std::size_t>(status.st_size) : 0, path, here);
}

}  // namespace slip
