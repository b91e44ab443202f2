// Trace: an observer that keeps everything that happens on streams, for a file (Chrome trace-event JSON, which Perfetto
// and chrome://tracing open), for figures and for checks after the run. `SLIP_TRACE=FILE` does the same for any
// program; each rank of a launched job writes a file of its own.
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

namespace slip {

class RecordLog;

// Some bytes of a buffer, by its identity.
struct TraceRange {
  std::uint64_t buffer = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const TraceRange&, const TraceRange&) = default;
};

// A Record that owns nothing and points at nothing of the runtime. A kRun has the name and place of its op.
struct TraceRecord {
  RecordKind kind = RecordKind::kSubmit;
  Engine engine = Engine::kNone;
  OpKind op = OpKind::kKernel;  // kSubmit
  bool opaque = false;          // kSubmit
  bool whole_device = false;    // kSync
  bool annotation = false;      // kRun: see TraceSpan
  std::uint32_t device = 0;
  std::int32_t queue = -1;  // kRun
  std::int32_t line = 0;
  std::uint32_t value = 0;  // kSubmit of a fill or of a stream memory operation
  std::uint32_t reads = 0;  // kSubmit: how many ranges, see TraceData::reads
  std::uint32_t writes = 0;
  std::uint64_t sequence = 0;  // order in the process, from 1: what happened before has the lower number
  std::uint64_t stream = 0;
  std::uint64_t position = 0;
  std::uint64_t other_stream = 0;  // a foreign trace's kSubmit: the host's call that launched the op
  std::uint64_t other_position = 0;
  std::uint64_t thread = 0;
  std::uint64_t first_range = 0;
  std::uint64_t bytes = 0;  // kSubmit of an alloc or free
  Picos queued = 0;
  Picos started = 0, ended = 0;  // kRun, and other records that took time
  Cost cost = {};                // kSubmit
  TraceRange range = {};         // kHost*, kAlloc, kFree
  std::string_view name = {};    // of the op, stream or buffer; of kError the message
  std::string_view file = {};
};

// One op: its submission and its run, whichever were seen.
struct TraceSpan {
  const TraceRecord* submit = nullptr;  // null: submitted before the trace began
  const TraceRecord* run = nullptr;     // null: not run when the trace ended
  std::string_view name = {};
  std::string_view file = {};
  std::int32_t line = 0;
  OpKind kind = OpKind::kKernel;
  Engine engine = Engine::kNone;
  bool annotation = false;  // a label over other ops, such as a profiler's step: no work, and part of no figure
  std::uint32_t device = 0;
  std::int32_t queue = -1;
  std::uint64_t stream = 0;
  std::uint64_t position = 0;
  Picos queued = 0, started = 0, ended = 0;
  std::span<const TraceRange> reads = {};
  std::span<const TraceRange> writes = {};
};

// Work of `to_stream` after `sequence` waits for `from_stream` up to `from_position`.
struct TraceEdge {
  std::uint64_t from_stream = 0, from_position = 0;
  std::uint64_t to_stream = 0;
  std::uint64_t sequence = 0;
  bool barrier = false;  // not asked for by a wait: the legacy stream's rule, or the allocator
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
  std::uint64_t address = 0;  // of wrapped memory, where two buffers may be of the same bytes; of others 0
};

// The process that recorded a trace, if it is a rank of a launched job: what merging the ranks' traces needs.
struct TraceProcess {
  int rank = 0;
  int ranks = 0;  // 0: of no job
  // The device clocks' zero: since the host booted, and since 1970.
  std::int64_t since_boot_ns = 0, since_1970_ns = 0;
  std::string_view boot = {};  // names the host and its boot: clocks of one boot agree exactly
};

// A device of a merged trace.
struct TraceDevice {
  std::uint32_t id = 0;
  int rank = 0;
  std::uint32_t id_there = 0;  // in the rank's own trace
};

// What a trace holds. Spans refer into it, so keep it while they are used; moving it is fine.
struct TraceData {
  std::vector<TraceRecord> records;  // by sequence
  std::vector<TraceRange> ranges;    // of all ops
  std::vector<TraceBuffer> buffers;  // by id: every buffer that an op or the host touched
  std::uint64_t dropped = 0;         // records lost because the trace was full: then nothing can be proven from it
  bool foreign = false;              // another program's: it says when things ran, not what they touch or wait for
  TraceProcess process = {};
  std::vector<TraceDevice> devices;  // by id; empty unless the traces of several ranks were merged
  std::shared_ptr<const void> text;  // owns the strings, if they are not the program's own

  std::span<const TraceRange> reads(const TraceRecord& record) const;
  std::span<const TraceRange> writes(const TraceRecord& record) const;

  std::vector<TraceSpan> spans() const;      // in the order submitted; ops submitted before the trace began come last
  std::vector<TraceEdge> edges() const;      // event waits and barriers
  std::vector<TraceStream> streams() const;  // by id
  std::vector<const TraceRecord*> of(std::initializer_list<RecordKind> kinds) const;
  const TraceBuffer* buffer(std::uint64_t id) const;  // null: never seen
};

struct TraceOptions {
  std::size_t max_bytes =
      std::size_t{1} << 30;  // of memory, some 4 million ops; what comes later is counted as dropped
};

class Trace final : public Observer {
 public:
  explicit Trace(const TraceOptions& options = {});  // attaches itself
  ~Trace() override;
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  void stop();  // records no more; may be called twice
  void on(const Record& record) override;

  // What was recorded so far; also while it records.
  TraceData data() const;
  // Writes it whole or not at all: a failure throws kIo with the path and the reason and leaves what was there.
  void write(const std::string& path, Here here = Here::at()) const;

 private:
  std::unique_ptr<RecordLog> log_;
  bool attached_ = false;
};

void write_trace(const TraceData& data, const std::string& path, Here here = Here::at());

// Reads a file that write_trace wrote, to the last picosecond, or any other Chrome trace (TraceData::foreign): its
// processes are devices, its threads streams, and it has runs, and submissions where launches can be linked to kernels.
// Either may be compressed with gzip, if the library was built with zlib. Throws kIo when it cannot be read and kParse,
// with the line and byte, when it is cut short, malformed or no trace.
TraceData read_trace(const std::string& path, Here here = Here::at());

// Whether these are traces of several ranks of one job: each of another rank, and recorded at the same time.
bool are_ranks_of_one_job(std::span<const TraceData> traces);
// One trace of theirs, on the clock of the first: devices, streams, buffers and threads get new numbers, in the order
// of the ranks. Throws kInvalidValue if they are no ranks of one job.
TraceData merge_traces(std::span<const TraceData> traces, Here here = Here::at());

}  // namespace slip
