#include "watch/trace/record_log.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <queue>
#include <utility>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/thread.hpp"
#include "runtime/core.hpp"
#include "watch/trace/trace_data.hpp"

namespace slip::watch {
namespace {

// Bits of Entry::parts: the optional parts that follow an Entry, in this order. Then follow the ranges of an operation.
// Most records have few parts: an op with two ranges takes about 220 bytes.
enum Part : std::uint16_t {
  kTimes = 1,
  kPoint = 2,  // AwaitedPoint
  kNamed = 4,
  kPlaced = 8,   // SourceLine
  kRanged = 16,  // Record::range
  kOperation = 32,
  kCosted = 64,
};

constexpr std::uint8_t kBufferInfo = 0xFF;  // Entry::kind of an entry that describes a buffer and is not a record

struct Entry {
  std::uint64_t sequence = 0;
  std::uint64_t stream = 0;    // kBufferInfo: id
  std::uint64_t position = 0;  // kBufferInfo: bytes
  std::uint64_t thread = 0;    // kBufferInfo: address, see TraceBuffer
  Picos queued = 0;
  std::uint32_t device = 0;
  std::int32_t queue = -1;
  std::uint8_t kind = 0;
  std::uint8_t engine = 0;
  std::uint8_t whole_device = 0;
  std::uint8_t memory = 0;  // kBufferInfo
  std::uint16_t parts = 0;
};
struct Times {
  Picos started, ended;
};
struct AwaitedPoint {
  std::uint64_t stream, position;
};
struct SourceLine {
  const char* file;
  std::int64_t line;
};
struct Operation {
  std::uint64_t bytes;
  std::uint32_t value, reads, writes;
  std::uint8_t kind, opaque;
};

class Packer {
 public:
  explicit Packer(std::byte* at) : at_(at) {}
  template <class T>
  void put(const T& value) {
    static_assert(sizeof(T) % 8 == 0 && std::is_trivially_copyable_v<T>);
    std::memcpy(at_, &value, sizeof(T));
    at_ += sizeof(T);
  }
  void put(const Range& range) { put(TraceRange{range.id, range.offset, range.bytes}); }

 private:
  std::byte* at_;
};

class Unpacker {
 public:
  explicit Unpacker(const std::byte* at) : at_(at) {}
  template <class T>
  T take() {
    T value{};
    std::memcpy(&value, at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  const std::byte* at() const { return at_; }

 private:
  const std::byte* at_;
};

bool has_cost(const Cost& cost) { return cost.bytes != 0 || cost.flops != 0 || cost.width != 1.0 || cost.time != 0; }

std::uint16_t parts_of(const Record& record) {
  unsigned parts = 0;
  if (record.kind == RecordKind::kRun || record.ended > record.started) parts |= kTimes;
  if ((record.other_stream | record.other_position) != 0) parts |= kPoint;
  if (record.name) parts |= kNamed;
  if (record.here.line != 0) parts |= kPlaced;
  if (record.range.id != 0) parts |= kRanged;
  if (record.kind == RecordKind::kSubmit && record.op) {
    parts |= kOperation;
    if (has_cost(record.op->cost)) parts |= kCosted;
  }
  return static_cast<std::uint16_t>(parts);
}

std::size_t bytes_of(const Record& record, unsigned parts) {
  std::size_t bytes = sizeof(Entry);
  if (parts & kTimes) bytes += sizeof(Times);
  if (parts & kPoint) bytes += sizeof(AwaitedPoint);
  if (parts & kNamed) bytes += sizeof(Name);
  if (parts & kPlaced) bytes += sizeof(SourceLine);
  if (parts & kRanged) bytes += sizeof(TraceRange);
  if (parts & kCosted) bytes += sizeof(Cost);
  if (parts & kOperation)
    bytes += sizeof(Operation) + sizeof(TraceRange) * (record.op->reads.size() + record.op->writes.size());
  return bytes;
}

void pack_operation(Packer& packer, const Op& op, unsigned parts) {
  packer.put(Operation{op.bytes, op.value, static_cast<std::uint32_t>(op.reads.size()),
                       static_cast<std::uint32_t>(op.writes.size()), static_cast<std::uint8_t>(op.kind),
                       static_cast<std::uint8_t>(op.opaque)});
  if (parts & kCosted) packer.put(op.cost);
  for (const Range& range : op.reads) packer.put(range);
  for (const Range& range : op.writes) packer.put(range);
}

// Number of forks between the first process and this one. A forked child inherits its parent's logs, perhaps with a
// lock that a thread of the parent held. That thread does not exist in the child, so the child must not use the logs.
std::atomic<unsigned> g_forks{0};

unsigned forks() {
  [[maybe_unused]] static const bool kCounting = [] {
    base::at_fork([] {}, [] {},
                  [] { g_forks.fetch_add(1, std::memory_order_relaxed); });  // relaxed: a child has one thread
    return true;
  }();
  return g_forks.load(std::memory_order_relaxed);
}

}  // namespace

RecordLog::RecordLog(std::size_t max_bytes) : max_bytes_(max_bytes), forks_(forks()) {}

std::byte* RecordLog::allocate(Shard& shard, std::size_t bytes) noexcept {
  if (static_cast<std::size_t>(shard.end - shard.at) < bytes) [[unlikely]] {
    const std::size_t size = std::max(bytes, kChunkBytes);
    // relaxed: a count that publishes no data.
    if (taken_.fetch_add(size, std::memory_order_relaxed) + size > max_bytes_) {
      taken_.fetch_sub(size, std::memory_order_relaxed);
      return nullptr;
    }
    try {
      shard.chunks.reserve(shard.chunks.size() + 1);
      std::unique_ptr<std::byte[]> data = std::make_unique_for_overwrite<std::byte[]>(size);
      if (!shard.chunks.empty())
        shard.chunks.back().used = static_cast<std::size_t>(shard.at - shard.chunks.back().data.get());
      shard.at = data.get();
      shard.end = shard.at + size;
      shard.chunks.push_back({std::move(data), 0});
    } catch (const std::bad_alloc&) {
      taken_.fetch_sub(size, std::memory_order_relaxed);
      return nullptr;
    }
  }
  return std::exchange(shard.at, shard.at + bytes);
}

// Adds the name and size of a buffer when a record of the shard first refers to it. Its allocation may be older than
// the trace, so no record describes it. If another buffer has overwritten its entry in `described`, it is described
// again; normalise() removes duplicates.
void RecordLog::describe(Shard& shard, const Range& range) noexcept {
  const runtime::Block* block = range.block;
  std::uint64_t& described = shard.described[range.id % kDescribed];
  if (!block || described == range.id) return;
  std::byte* at = allocate(shard, sizeof(Entry) + sizeof(Name));
  if (!at) return;
  described = range.id;
  Packer packer(at);
  packer.put(Entry{.stream = range.id,
                   .position = block->bytes,
                   .thread = block->owned ? 0 : reinterpret_cast<std::uintptr_t>(block->data),
                   .device = block->core ? block->core->id : 0,
                   .kind = kBufferInfo,
                   .memory = static_cast<std::uint8_t>(block->kind),
                   .parts = kNamed});
  packer.put(block->name);
}

// relaxed: see forks()
bool RecordLog::is_inherited() const noexcept { return g_forks.load(std::memory_order_relaxed) != forks_; }

void RecordLog::add(const Record& record) noexcept {
  if (is_inherited()) [[unlikely]]
    return;
  const std::uint16_t parts = parts_of(record);
  Shard& shard = shards_[record.thread % kShards];
  const base::LockGuard lock(shard.lock);
  if (parts & kRanged) describe(shard, record.range);
  if (parts & kOperation) {
    for (const Range& range : record.op->reads) describe(shard, range);
    for (const Range& range : record.op->writes) describe(shard, range);
  }
  std::byte* at = allocate(shard, bytes_of(record, parts));
  if (!at) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  Packer packer(at);
  // relaxed: if one record happens before another, so do their increments, and all increments of one atomic are totally
  // ordered.
  packer.put(Entry{.sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1,
                   .stream = record.stream,
                   .position = record.position,
                   .thread = record.thread,
                   .queued = record.kind == RecordKind::kRun ? 0 : record.queued,
                   .device = record.device,
                   .queue = record.queue,
                   .kind = static_cast<std::uint8_t>(record.kind),
                   .engine = static_cast<std::uint8_t>(record.engine),
                   .whole_device = static_cast<std::uint8_t>(record.whole_device),
                   .parts = parts});
  if (parts & kTimes) packer.put(Times{record.started, std::max(record.started, record.ended)});
  if (parts & kPoint) packer.put(AwaitedPoint{record.other_stream, record.other_position});
  if (parts & kNamed) packer.put(record.name);
  if (parts & kPlaced) packer.put(SourceLine{record.here.file, record.here.line});
  if (parts & kRanged) packer.put(record.range);
  if (parts & kOperation) pack_operation(packer, *record.op, parts);
}

// --- Reading records back ---

namespace {

// Iterates over the records of one shard, from first to last.
struct Cursor {
  struct Unread {  // of one chunk
    const std::byte* at;
    const std::byte* end;
  };
  std::vector<Unread> chunks;
  std::size_t current = 0;

  bool next() {  // moves to a chunk that has records left; false: there is none
    while (current < chunks.size() && chunks[current].at == chunks[current].end) ++current;
    return current < chunks.size();
  }
  const std::byte*& at() { return chunks[current].at; }
  Entry peek() const { return Unpacker(chunks[current].at).take<Entry>(); }
};

void unpack_operation(Unpacker& from, unsigned parts, TraceRecord& record, std::vector<TraceRange>& ranges) {
  const Operation operation = from.take<Operation>();
  record.op = static_cast<OpKind>(operation.kind);
  record.opaque = operation.opaque != 0;
  record.value = operation.value;
  record.bytes = operation.bytes;
  record.reads = operation.reads;
  record.writes = operation.writes;
  record.first_range = ranges.size();
  if (parts & kCosted) record.cost = from.take<Cost>();
  const std::size_t count = std::size_t{operation.reads} + operation.writes;
  for (std::size_t i = 0; i < count; ++i) ranges.push_back(from.take<TraceRange>());
}

TraceBuffer unpack_buffer(Unpacker& from) {
  const Entry entry = from.take<Entry>();
  return {.id = entry.stream,
          .device = entry.device,
          .kind = static_cast<MemoryKind>(entry.memory),
          .bytes = entry.position,
          .name = from.take<Name>().text(),
          .address = entry.thread};
}

TraceRecord unpack_record(Unpacker& from, std::vector<TraceRange>& ranges) {
  const Entry entry = from.take<Entry>();
  TraceRecord record{.kind = static_cast<RecordKind>(entry.kind),
                     .engine = static_cast<Engine>(entry.engine),
                     .whole_device = entry.whole_device != 0,
                     .device = entry.device,
                     .queue = entry.queue,
                     .sequence = entry.sequence,
                     .stream = entry.stream,
                     .position = entry.position,
                     .thread = entry.thread,
                     .queued = entry.queued};
  if (entry.parts & kTimes) {
    const Times times = from.take<Times>();
    record.started = times.started;
    record.ended = times.ended;
  }
  if (entry.parts & kPoint) {
    const AwaitedPoint target = from.take<AwaitedPoint>();
    record.other_stream = target.stream;
    record.other_position = target.position;
  }
  if (entry.parts & kNamed) record.name = from.take<Name>().text();
  if (entry.parts & kPlaced) {
    const SourceLine place = from.take<SourceLine>();
    record.file = place.file ? place.file : "";
    record.line = static_cast<std::int32_t>(place.line);
  }
  if (entry.parts & kRanged) record.range = from.take<TraceRange>();
  if (entry.parts & kOperation) unpack_operation(from, entry.parts, record, ranges);
  return record;
}

TraceProcess this_process() {
  TraceProcess process;
  const std::optional<base::JobRank> rank = base::job_rank();
  if (!rank || rank->ranks < 2) return process;
  process.rank = rank->rank;
  process.ranks = rank->ranks;
  const base::ClockOrigin origin = base::clock_origin();
  process.since_boot_ns = origin.since_boot_ns;
  process.since_1970_ns = origin.since_1970_ns;
  static const std::string* const kBoot =
      new std::string(base::boot_id());  // never destroyed, because traces refer to it
  process.boot = *kBoot;
  return process;
}

}  // namespace

TraceData RecordLog::collect() const {
  if (is_inherited()) return {};
  std::vector<Cursor> cursors;
  for (const Shard& shard : shards_) {
    Cursor cursor;
    {
      const base::LockGuard lock(shard.lock);  // held briefly: bytes below `at` do not change any more
      for (const Chunk& chunk : shard.chunks) {
        const bool last = &chunk == &shard.chunks.back();
        cursor.chunks.push_back({chunk.data.get(), last ? shard.at : chunk.data.get() + chunk.used});
      }
    }
    if (cursor.next()) cursors.push_back(std::move(cursor));
  }

  // Merge the shards. The records of a shard are in order. A description of a buffer has sequence 0, so it is taken as
  // soon as it is the next entry of its shard.
  using Head = std::pair<std::uint64_t, std::size_t>;  // the sequence of a shard's next entry, and the cursor's index
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads;
  for (std::size_t i = 0; i < cursors.size(); ++i) heads.emplace(cursors[i].peek().sequence, i);
  TraceData data;
  while (!heads.empty()) {
    const std::size_t i = heads.top().second;
    heads.pop();
    Cursor& cursor = cursors[i];
    Unpacker from(cursor.at());
    if (cursor.peek().kind == kBufferInfo) data.buffers.push_back(unpack_buffer(from));
    else data.records.push_back(unpack_record(from, data.ranges));
    cursor.at() = from.at();
    if (cursor.next()) heads.emplace(cursor.peek().sequence, i);
  }
  data.dropped = dropped_.load(std::memory_order_relaxed);
  data.process = this_process();
  normalise(data);
  return data;
}

}  // namespace slip::watch

namespace slip {
using namespace watch;

// --- Trace: the observer that fills a log ---

Trace::Trace(const TraceOptions& options)
    : log_(std::make_unique<watch::RecordLog>(options.max_bytes)), attached_(true) {
  attach_observer(*this);
}

Trace::~Trace() { stop(); }

void Trace::stop() {
  if (attached_) detach_observer(*this);
  attached_ = false;
}

void Trace::on(const Record& record) { log_->add(record); }
TraceData Trace::data() const { return log_->collect(); }
void Trace::write(const std::string& path, Here here) const { write_trace(data(), path, here); }

}  // namespace slip
