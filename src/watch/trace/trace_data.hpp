// Functions shared by the code around TraceData: the normal form of records, and the names and limits of a trace file.
// Also the origin of each device's clock, the names of streams, and the arrows that viewers draw between ops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/env.hpp"
#include "slip/trace.hpp"

namespace slip::watch {

// Whether normalise() gives each kRun the name and source line of its op, or the runs already have them.
enum class RunNames { kFromOps, kKeep };

// Brings a trace into the form that Trace::data() and read_trace() return. Records are sorted by sequence. Buffers are
// sorted by id, without duplicates. Runs have the name and source line of their op.
void normalise(TraceData& data, RunNames names = RunNames::kFromOps);

// The file that SLIP_TRACE names for this process. "%r" becomes the rank (0 outside a job) and "%p" the process id. If
// the pattern has neither, each rank of a job gets its own file: run.json -> run.0.json.
std::string trace_path(const std::string& pattern, std::optional<base::JobRank> rank, int process);

// The names of enumerators in trace files. An unknown name gives nullopt.
inline constexpr std::size_t kRecordKinds = static_cast<std::size_t>(RecordKind::kError) + 1;
inline constexpr std::size_t kMemoryKinds = static_cast<std::size_t>(MemoryKind::kPageable) + 1;

const char* record_kind_name(RecordKind kind);

std::optional<RecordKind> record_kind_of(std::string_view name);
std::optional<OpKind> op_kind_of(std::string_view name);
std::optional<Engine> engine_of(std::string_view name);
std::optional<MemoryKind> memory_kind_of(std::string_view name);

// The limits of a trace file.
inline constexpr std::size_t kMaxRecords = std::size_t{1} << 27;
inline constexpr std::size_t kMaxRanges = std::size_t{1} << 29;
inline constexpr std::uint32_t kMaxRanks = 1U << 20;
inline constexpr Picos kMaxTime = Picos{1} << 61;  // 26 days

// Checks that all times, and the sum of all durations, are within kMaxTime. Then sums of them cannot overflow.
class TimeLimits {
 public:
  bool add(const TraceRecord& record);  // false: they are not

 private:
  Picos sum_ = 0;
};

// By device: the time that a file or page subtracts from the device's times. Clocks that count from the boot of the
// machine are shifted to zero, because viewers compute in doubles. All such devices share one origin, so they stay
// aligned. Virtual clocks start at zero and have origin 0.
std::map<std::uint32_t, Picos> clock_origins(const TraceData& trace);
Picos since_origin(const std::map<std::uint32_t, Picos>& origins, std::uint32_t device, Picos time);

// StreamNames: the names that the program gave to its streams, for the texts of reports. Not thread-safe.
class StreamNames {
 public:
  StreamNames() = default;
  // Of the streams that these records open. The records must outlive this object.
  explicit StreamNames(std::span<const TraceRecord* const> opened);

  // The name must stay valid.
  void open(std::uint64_t stream, std::string_view name);
  // A report may name streams that were closed meanwhile, so the names of the last ones are kept.
  void close(std::uint64_t stream);
  std::string_view of(std::uint64_t stream) const {  // empty: the stream has no name
    const auto found = names_.find(stream);
    return found == names_.end() ? std::string_view() : found->second;
  }

  static constexpr std::size_t kMaxClosed = 4096;

 private:
  std::unordered_map<std::uint64_t, std::string_view> names_;
  std::deque<std::uint64_t> closed_;  // streams with names, in the order in which they were closed
};

// The submitted ops of each stream, to find the ops before and after a wait. One thread uses it.
enum class SpanChoice { kSubmitted, kSubmittedAndRun };
class OpsOfStreams {
 public:
  OpsOfStreams(std::span<const TraceSpan> spans, SpanChoice choice);
  // The last op of the stream up to a position, and its first op submitted after a sequence number. Null: there is
  // none.
  const TraceSpan* last_until(std::uint64_t stream, std::uint64_t position) const;
  const TraceSpan* first_after(std::uint64_t stream, std::uint64_t sequence) const;

 private:
  struct OpsOfStream {
    std::vector<const TraceSpan*> ops;
    mutable std::size_t last = 0;  // the last result of count_first()
  };
  template <class Before>
  const OpsOfStream* count_first(std::uint64_t stream, const Before& before) const;
  std::unordered_map<std::uint64_t, OpsOfStream> streams_;
};

// An arrow between two ops (span indices): from the last op that a wait covers to the first op that the wait delays.
struct Arrow {
  std::uint32_t from = 0, to = 0;
  bool barrier = false;
};

// Returns the arrows in the order of the waits. Ops that did not run, or whose submission is not in the trace, have
// none.
std::vector<Arrow> arrows(const TraceData& trace, std::span<const TraceSpan> spans);

}  // namespace slip::watch
