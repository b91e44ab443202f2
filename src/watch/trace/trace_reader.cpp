#include "watch/trace/trace_reader.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <utility>

#include "watch/trace/trace_data.hpp"

namespace slip::watch {
namespace {

// Memory for one record, or one range, is reserved per this many bytes of the file. So a long list is not copied as it
// grows. Reserved memory costs nothing until it is used, so a large file with few records does no harm.
constexpr std::size_t kBytesPerRecord = 160;
constexpr std::size_t kBytesPerRange = 192;
constexpr std::size_t kMaxReserved = std::size_t{1} << 22;

// Reserves memory and requests huge pages for it. Page faults on small pages take a tenth of the time of reading a
// trace.
template <class Item>
void reserve(std::vector<Item>& items, std::size_t count) {
  items.reserve(count);
  constexpr std::uintptr_t kLargePage = std::uintptr_t{2} << 20;
  const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(items.data()) / kLargePage * kLargePage + kLargePage;
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(items.data() + items.capacity());
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), (end - begin) / kLargePage * kLargePage, MADV_HUGEPAGE);
}

// Records in the order of their sequence numbers. Each record is stored at its final index when it is read: records are
// large, and moving them afterwards costs more than reading them.
class OrderedRecords {
 public:
  std::vector<TraceRecord>& storage() { return records_; }
  std::size_t size() const { return records_.size() + rest_.size(); }

  // Returns the storage for the record with this sequence number, which starts at 1. The caller must fill it. It is
  // valid until the next call. Null: a record with this number is stored already. finish_own() finds duplicates in
  // rest_.
  TraceRecord* add(std::uint64_t sequence) {
    const std::uint64_t index = sequence - 1;
    const std::size_t end = records_.size();
    if (index < end) {
      if (records_[index].sequence != 0) return nullptr;
      --holes_;
      return &records_[index];
    }
    if (index - end > kMaxHoles - holes_) return &rest_.emplace_back();
    holes_ += index - end;
    records_.resize(index + 1);
    return &records_.back();
  }

  // True: every record was stored at its index, so the list is in order without duplicates.
  bool in_order() const { return rest_.empty(); }

  // Returns all records. The records of rest_ are at the end.
  std::vector<TraceRecord> take() {
    if (holes_ > 0) std::erase_if(records_, [](const TraceRecord& record) { return record.sequence == 0; });
    records_.insert(records_.end(), rest_.begin(), rest_.end());
    rest_ = {};
    return std::move(records_);
  }

 private:
  // Maximum number of indices without a record. One event has an op's submission and its run, so the indices between
  // the two are empty until their records are read.
  static constexpr std::size_t kMaxHoles = 16'384;
  std::vector<TraceRecord> records_;  // by index; sequence 0: a hole
  std::vector<TraceRecord> rest_;     // records whose index would make too many holes
  std::size_t holes_ = 0;
};

class TraceReader {
 public:
  TraceReader(base::JsonReader& json, std::size_t file_bytes) : json_(json), file_bytes_(file_bytes) {}

  TraceData read() {
    static_cast<void>(json_.take_bytes("\xEF\xBB\xBF"));  // skips a byte order mark
    bare_ = json_.next_is('[');
    if (bare_) read_events();
    else read_sections();
    json_.finish();
    if (version_ == 0 && writer_ == Writer::kOwn) json_.fail("no \"slip\" section: the trace was cut short or edited");
    if (version_ == 0 && !events_) json_.fail("no \"traceEvents\": not a trace");
    if (version_ != 0) {
      finish_own();
    } else {
      data_ = foreign_.finish();
      normalise(data_, RunNames::kKeep);
      TimeLimits limits;
      for (const TraceRecord& record : data_.records) check_times(limits, record);
    }
    data_.text = texts_.owner();
    return std::move(data_);
  }

 private:
  // The program that wrote the file: this library or another. Known from the section "slip", or from the first event
  // that look_ahead() recognizes.
  enum class Writer { kUnknown, kOwn, kForeign };

  void read_sections() {
    json_.members([this](std::string_view key) {
      if (key == "traceEvents") read_events();
      else if (key == "slip") read_tables();
      else json_.skip();
    });
  }

  void read_events() {
    json_.begin_array();
    events_ = !bare_;
    if (version_ != 0) writer_ = Writer::kOwn;
    reserve_records();
    while (next_event()) {
      events_ = true;
      if (writer_ == Writer::kUnknown) writer_ = look_ahead();
      if (writer_ == Writer::kOwn) read_own();
      else foreign_.read();
    }
  }

  void reserve_records() {
    reserve(records_.storage(), std::min(file_bytes_ / kBytesPerRecord, kMaxReserved));
    reserve(data_.ranges, std::min(file_bytes_ / kBytesPerRange, kMaxReserved));
  }

  // A bare array may end without its bracket: the format allows that, because a program may crash while it writes.
  bool next_event() { return bare_ ? json_.next_item_or_end() : json_.next_item(); }

  // Reads the next event without consuming it. Events of this library have a "seq". Events that are only for viewers
  // show nothing about the writer.
  Writer look_ahead() {
    static constexpr std::string_view kForViewers = "MstfC";
    char phase = 0;
    bool ordered = false;
    const base::JsonReader::Position place = json_.position();
    json_.mark();
    json_.members([&](std::string_view key) {
      if (key == "ph" && json_.next_is('"')) {
        phase = first_letter(json_.text());
      } else if (key == "args" && json_.next_is('{')) {
        json_.members([&](std::string_view arg) {
          ordered = ordered || (arg == "seq" && json_.next_is('['));
          json_.skip();
        });
      } else {
        json_.skip();
      }
    });
    json_.back();
    if (ordered) return Writer::kOwn;
    if (kForViewers.find(phase) != std::string_view::npos) return Writer::kUnknown;
    first_foreign_ = place;
    return Writer::kForeign;
  }

  void read_own() {
    static constexpr base::JsonKey kPhase = "ph";
    if (json_.skip_flat(kPhase, 's') || json_.skip_flat(kPhase, 'f')) return;  // arrows are only for viewers
    const TraceEvent& event = own_.read();
    if (event.phase != 'X' && event.phase != 'i') return;
    if (event.lasts < 0) json_.fail("an event that ends before it starts");
    if (event.recorded) add_host(event);
    else if (event.phase == 'X') add_op(event);
  }

  void finish_own() {
    if (writer_ == Writer::kForeign) json_.fail_at(first_foreign_, "a record without its sequence number (\"seq\")");
    const bool in_order = records_.in_order();
    data_.records = records_.take();
    shift_times();
    normalise(data_, runs_are_named_ ? RunNames::kKeep : RunNames::kFromOps);
    if (in_order) return;
    const auto twice = std::ranges::adjacent_find(data_.records, {}, &TraceRecord::sequence);
    if (twice != data_.records.end()) fail_twice(twice->sequence);
  }
  [[noreturn]] void fail_twice(std::uint64_t sequence) const {
    json_.fail(fmt::format("two records with the same sequence number, so the same place in the order (\"seq\" {})",
                           sequence));
  }

  Picos end_of(const TraceEvent& event) const {
    Picos end = event.at;
    shift(end, event.lasts);
    return end;
  }

  TraceRecord& add(std::uint64_t sequence) {
    if (records_.size() >= kMaxRecords) json_.fail(fmt::format("more than {} records", kMaxRecords));
    if (sequence == 0) json_.fail("a record without its sequence number (\"seq\")");
    TraceRecord* record = records_.add(sequence);
    if (!record) fail_twice(sequence);
    return *record;
  }

  void add_host(const TraceEvent& event) {
    if (event.record.kind == RecordKind::kRun) json_.fail("a record of kind \"run\": a run is given by an op's event");
    const Picos end = end_of(event);
    TraceRecord& record = add(event.record.sequence) = event.record;
    if (event.phase == 'X' && event.lasts > 0) {
      record.started = event.at;
      record.ended = end;
    }
    if (record.kind == RecordKind::kSubmit) add_ranges(record);
  }

  void add_ranges(TraceRecord& submit) {
    const std::vector<TraceRange>& reads = own_.reads();
    const std::vector<TraceRange>& writes = own_.writes();
    std::vector<TraceRange>& ranges = data_.ranges;
    if (ranges.size() + reads.size() + writes.size() > kMaxRanges)
      json_.fail(fmt::format("more than {} ranges", kMaxRanges));
    submit.first_range = ranges.size();
    submit.reads = static_cast<std::uint32_t>(reads.size());
    submit.writes = static_cast<std::uint32_t>(writes.size());
    for (const TraceRange& range : reads) ranges.push_back(range);
    for (const TraceRange& range : writes) ranges.push_back(range);
    follow_positions(submit);
  }

  void add_op(const TraceEvent& event) {
    const TraceRecord& op = event.record;
    const std::uint32_t device = require_small(json_, event.pid, "pid");
    const std::string_view name = event.unnamed ? std::string_view() : event.title;
    if (op.sequence != 0) {
      TraceRecord& submit = add(op.sequence) = op;
      submit.kind = RecordKind::kSubmit;
      submit.device = device;
      submit.name = name;
      submit.queue = -1;
      add_ranges(submit);
    } else {
      runs_are_named_ = false;
    }
    add(event.run_sequence) = {.kind = RecordKind::kRun,
                               .engine = event.engine,
                               .annotation = event.annotation,
                               .device = device,
                               .queue = op.queue,
                               .line = op.line,
                               .sequence = event.run_sequence,
                               .stream = op.stream,
                               .position = op.position,
                               .thread = event.run_thread,
                               .started = event.at,
                               .ended = end_of(event),
                               .name = name,
                               .file = op.file};
  }

  // If positions increase in each stream, no op has two submissions. Then each run keeps the name in its own event.
  void follow_positions(const TraceRecord& submit) {
    constexpr std::size_t kMaxStreams = std::size_t{1} << 16;
    if (submit.stream >= last_positions_.size()) {
      if (submit.stream >= kMaxStreams) {
        runs_are_named_ = false;
        return;
      }
      last_positions_.resize(submit.stream + 1);
    }
    runs_are_named_ = runs_are_named_ && submit.position > last_positions_[submit.stream];
    last_positions_[submit.stream] = submit.position;
  }

  void read_tables() {
    json_.members([this](std::string_view key) {
      if (key == "version") {
        version_ = json_.unsigned_number();
        if (version_ != 1) json_.fail(fmt::format("a trace of version {}; this library reads version 1", version_));
      } else if (key == "foreign") {
        data_.foreign = json_.boolean();
      } else if (key == "process") {
        read_process();
      } else if (key == "dropped") {
        data_.dropped = json_.unsigned_number();
      } else if (key == "devices") {
        json_.items([this] { read_device(); });
      } else if (key == "buffers") {
        json_.items([this] { read_buffer(); });
      } else {
        json_.skip();
      }
    });
  }

  void read_process() {
    TraceProcess& process = data_.process;
    const auto number = [this](const char* what) {
      const std::uint32_t value = require_small(json_, json_.unsigned_number(), what);
      if (value > kMaxRanks) json_.fail(fmt::format("{} {} is too large", what, value));
      return static_cast<int>(value);
    };
    json_.members([&](std::string_view key) {
      if (key == "rank") process.rank = number("rank");
      else if (key == "ranks") process.ranks = number("number of ranks");
      else if (key == "since_boot_ns") process.since_boot_ns = json_.signed_number();
      else if (key == "since_1970_ns") process.since_1970_ns = json_.signed_number();
      else if (key == "boot") process.boot = texts_.keep(json_.text());
      else json_.skip();
    });
  }

  void read_device() {
    Picos origin = 0;
    TraceDevice merged;
    bool of_rank = false;
    json_.members([&](std::string_view key) {
      if (key == "id") merged.id = require_small(json_, json_.unsigned_number(), "device");
      else if (key == "origin_ps") origin = json_.signed_number();
      else if (key == "rank") {
        merged.rank = static_cast<int>(std::min<std::uint64_t>(json_.unsigned_number(), kMaxRanks));
        of_rank = true;
      } else if (key == "id_there") {
        merged.id_there = require_small(json_, json_.unsigned_number(), "device");
      } else {
        json_.skip();
      }
    });
    origins_[merged.id] = origin;
    if (of_rank) data_.devices.push_back(merged);
  }

  void read_buffer() {
    TraceBuffer buffer;
    json_.members([&](std::string_view key) {
      if (key == "id") buffer.id = json_.unsigned_number();
      else if (key == "device") buffer.device = require_small(json_, json_.unsigned_number(), "device");
      else if (key == "kind") buffer.kind = require_name(json_, memory_kind_of, "kind of memory");
      else if (key == "bytes") buffer.bytes = json_.unsigned_number();
      else if (key == "address") buffer.address = json_.unsigned_number();
      else if (key == "name") buffer.name = texts_.keep(json_.text());
      else json_.skip();
    });
    if (data_.buffers.size() >= kMaxRecords) json_.fail(fmt::format("more than {} buffers", kMaxRecords));
    data_.buffers.push_back(buffer);
  }

  // Converts times back to the clocks of the devices. The origins of the clocks are at the end of the file.
  void shift_times() {
    TimeLimits limits;
    for (TraceRecord& record : data_.records) {
      const auto found = origins_.find(record.device);
      const Picos origin = found == origins_.end() ? 0 : found->second;
      if (record.kind == RecordKind::kRun || record.ended > record.started) {
        shift(record.started, origin);
        shift(record.ended, origin);
      }
      if (record.queued == kNoTime) record.queued = 0;
      else if (record.kind != RecordKind::kRun) shift(record.queued, origin);
      check_times(limits, record);
    }
  }
  void check_times(TimeLimits& limits, const TraceRecord& record) const {
    if (!limits.add(record))
      json_.fail("times are more than 26 days apart, or the durations of all ops together are more than 26 days");
  }

  void shift(Picos& time, Picos origin) const {
    if (__builtin_add_overflow(time, origin, &time)) json_.fail("a time beyond 2^63 picoseconds");
  }

  base::JsonReader& json_;
  std::size_t file_bytes_;
  StringPool texts_;
  EventReader own_{json_, texts_};
  ForeignReader foreign_{json_, texts_};
  Writer writer_ = Writer::kUnknown;
  base::JsonReader::Position first_foreign_;
  bool bare_ = false;    // the file is only an array of events, without sections
  bool events_ = false;  // the file has a list of events, which may be empty
  TraceData data_;
  OrderedRecords records_;
  std::uint64_t version_ = 0;
  std::map<std::uint32_t, Picos> origins_;
  std::vector<std::uint64_t> last_positions_;  // by stream
  bool runs_are_named_ = true;                 // each run's event has its submission, and no op is submitted twice
};

}  // namespace

TraceData read_trace_events(base::JsonReader& json, std::size_t file_bytes) {
  return TraceReader(json, file_bytes).read();
}

}  // namespace slip::watch
