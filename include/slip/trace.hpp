// Trace: an observer that keeps a record of everything that happens on streams. It is written as Chrome trace-event
// JSON, which Perfetto and chrome://tracing open, and is the input of figures() and check_trace(). SLIP_TRACE=FILE
// records any program without a change; each rank of a launched job writes its own file.
//
//   slip::Trace trace;                  // records from here on
//   ...                                 // the program
//   trace.stop();
//   trace.write("run.json");
//   slip::Figures figures = slip::figures(trace.data().spans());
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slip/buffer.hpp"
#include "slip/observer.hpp"

namespace slip::watch {
class RecordLog;
}  // namespace slip::watch

namespace slip {

// Some bytes of a buffer, by the buffer's id.
struct TraceRange {
  std::uint64_t buffer = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const TraceRange&, const TraceRange&) = default;
};

// A Record without pointers into the runtime; see Record for the fields that have no comment. A kRun has the name and
// source position of its op.
struct TraceRecord {
  RecordKind kind = RecordKind::kSubmit;
  Engine engine = Engine::kNone;
  OpKind op = OpKind::kKernel;  // kSubmit
  bool opaque = false;          // kSubmit
  bool whole_device = false;    // kSync
  bool annotation = false;      // kRun: see TraceSpan::annotation
  std::uint32_t device = 0;
  std::int32_t queue = -1;  // kRun
  std::int32_t line = 0;
  std::uint32_t value = 0;  // kSubmit of a fill or of a stream memory operation
  std::uint32_t reads = 0;  // kSubmit: number of ranges that the op reads; TraceData::reads() returns them
  std::uint32_t writes = 0;
  std::uint64_t sequence = 0;  // from 1; an earlier record of the process has a lower number
  std::uint64_t stream = 0;
  std::uint64_t position = 0;
  std::uint64_t other_stream = 0;  // as in Record; kSubmit of a foreign trace: the host call that launched the op
  std::uint64_t other_position = 0;
  std::uint64_t thread = 0;
  std::uint64_t first_range = 0;  // kSubmit: index in TraceData::ranges of the first range read; writes follow reads
  std::uint64_t bytes = 0;        // kSubmit of an alloc or free
  Picos queued = 0;
  Picos started = 0, ended = 0;  // kRun, and other records with a duration
  Cost cost = {};                // kSubmit
  TraceRange range = {};         // kHost*, kAlloc, kFree
  std::string_view name = {};    // of the op, stream or buffer; kError: the message
  std::string_view file = {};
};

// One op: its submission and its run, as far as they were recorded.
struct TraceSpan {
  const TraceRecord* submit = nullptr;  // null: submitted before the trace began
  const TraceRecord* run = nullptr;     // null: it had not run when the trace ended
  std::string_view name = {};
  std::string_view file = {};
  std::int32_t line = 0;
  OpKind kind = OpKind::kKernel;
  Engine engine = Engine::kNone;
  bool annotation = false;  // a label over other ops, such as a profiler's step: not work, and not counted in figures
  std::uint32_t device = 0;
  std::int32_t queue = -1;
  std::uint64_t stream = 0;
  std::uint64_t position = 0;
  Picos queued = 0, started = 0, ended = 0;
  std::span<const TraceRange> reads = {};
  std::span<const TraceRange> writes = {};
};

// Work that `to_stream` gets after `sequence` waits for `from_stream` up to `from_position`.
struct TraceEdge {
  std::uint64_t from_stream = 0, from_position = 0;
  std::uint64_t to_stream = 0;
  std::uint64_t sequence = 0;
  bool barrier = false;  // implicit: by the legacy stream's rule or the allocator, not by an event wait
};

struct TraceStream {
  std::uint64_t id = 0;
  std::uint32_t device = 0;
  std::string_view name = {};
};

struct TraceBuffer {
  std::uint64_t id = 0;
  std::uint32_t device = 0;
  MemoryKind kind = MemoryKind::kDevice;
  std::uint64_t bytes = 0;
  std::string_view name = {};
  std::uint64_t address = 0;  // of wrapped memory, where two buffers may share bytes; otherwise 0
};

// The recording process, if it is a rank of a launched job. merge_traces() needs it.
struct TraceProcess {
  int rank = 0;
  int ranks = 0;  // 0: not a rank of a job
  // The instant when the device clocks were 0, as the time since the host booted and since 1970.
  std::int64_t since_boot_ns = 0, since_1970_ns = 0;
  std::string_view boot = {};  // identifies the host and its boot: processes of one boot share an exact clock
};

// A device of a merged trace.
struct TraceDevice {
  std::uint32_t id = 0;
  int rank = 0;
  std::uint32_t id_there = 0;  // its id in the rank's own trace
};

// The contents of a trace. Spans refer into it, so it must outlive them; moving it is allowed.
struct TraceData {
  std::vector<TraceRecord> records;  // by sequence
  std::vector<TraceRange> ranges;    // of all ops
  std::vector<TraceBuffer> buffers;  // by id: every buffer that an op or the host accessed
  std::uint64_t dropped = 0;         // records lost because the trace was full; if any, nothing can be proven from it
  bool foreign = false;              // another program's trace: times, but no accesses and no dependencies
  TraceProcess process = {};
  std::vector<TraceDevice> devices;  // by id; only in a merged trace
  std::shared_ptr<const void> text;  // owns the strings, unless they are string literals of this program

  std::span<const TraceRange> reads(const TraceRecord& record) const;
  std::span<const TraceRange> writes(const TraceRecord& record) const;

  std::vector<TraceSpan> spans() const;      // in submission order; ops submitted before the trace began come last
  std::vector<TraceEdge> edges() const;      // event waits and barriers
  std::vector<TraceStream> streams() const;  // by id
  std::vector<const TraceRecord*> of(std::initializer_list<RecordKind> kinds) const;
  const TraceBuffer* buffer(std::uint64_t id) const;  // null: unknown
};

struct TraceOptions {
  std::size_t max_bytes = std::size_t{1} << 30;  // memory limit, about 4 million ops; later records are dropped
};

class Trace final : public Observer {
 public:
  explicit Trace(const TraceOptions& options = {});  // attaches itself
  ~Trace() override;
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  void stop();  // ends recording; a second call does nothing
  void on(const Record& record) override;

  // The records so far, also during recording. In a forked child, a trace of the parent is empty.
  TraceData data() const;
  // Replaces the file atomically. A failure throws kIo with the path and the reason, and keeps the old file.
  void write(const std::string& path, Here here = Here::at()) const;

 private:
  std::unique_ptr<watch::RecordLog> log_;
  bool attached_ = false;
};

void write_trace(const TraceData& data, const std::string& path, Here here = Here::at());

// Reads a file of write_trace() without loss, or any other Chrome trace (TraceData::foreign). In a foreign trace
// processes become devices and threads become streams. It has runs, and submissions if launches are linked to kernels.
// The file may be compressed with gzip if the library was built with zlib. Throws kIo if the file cannot be read, and
// kParse with the line and byte if it is truncated, malformed or not a trace.
TraceData read_trace(const std::string& path, Here here = Here::at());

// True for traces of one job: each of a different rank, and recorded at the same time.
bool are_ranks_of_one_job(std::span<const TraceData> traces);
// Merges them into one trace on the clock of the first. Devices, streams, buffers and threads get new numbers, in rank
// order. Throws kInvalidValue if they are not traces of one job.
TraceData merge_traces(std::span<const TraceData> traces, Here here = Here::at());

}  // namespace slip
