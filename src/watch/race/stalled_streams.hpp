// StalledStreams: the records of streams that wait for a flag which no op has written yet. Used by RaceCheck.
//
// A stream that waits for a flag (a stream memory operation) stalls until an op is issued that writes the flag. Streams
// that wait for a stalled stream stall, too. The program may issue the write later than the wait. Everything before the
// write then comes before everything after the wait. Therefore the race checker must check the records of a stalled
// stream after the write. They are deferred here, with the host state of the time of their issue.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "slip/trace.hpp"
#include "watch/analysis/op_graph.hpp"
#include "watch/race/program_order.hpp"

namespace slip::watch {

using FlagAddress = std::pair<std::uint64_t, std::uint64_t>;  // buffer and offset

// The stream memory operations that wrote each flag. A flag is a 32-bit value in memory that streams write
// (write_value) and wait for (wait_value).
class FlagWrites {
 public:
  void write(const TraceRange& flag, Clocks::Point point, std::uint32_t value);
  // Another op wrote these bytes: earlier writes of flags in them no longer count.
  void forget(const TraceRange& range);

  bool is_written(const TraceRange& flag, std::uint32_t value) const;
  // Returns the write that has certainly happened when a wait for the value ends: the first one that reaches the value.
  // Returns nullopt if several streams wrote such values, because any of these writes may have ended the wait.
  std::optional<Clocks::Point> write_before(const TraceRange& flag, std::uint32_t value) const;

 private:
  struct Write {
    Clocks::Point point;
    std::uint32_t value;
  };
  const std::vector<Write>* writes_of(const TraceRange& flag) const {
    const auto found = flags_.find({flag.buffer, flag.offset});
    return found == flags_.end() ? nullptr : &found->second;
  }
  std::map<FlagAddress, std::vector<Write>> flags_;
};

class StalledStreams {
 public:
  using Perform = std::function<void(const TraceRecord& record, std::span<const TraceRange> reads,
                                     std::span<const TraceRange> writes)>;
  // `perform` checks a record that no longer has to wait. `needed` may be null.
  StalledStreams(ProgramOrder& order, const FlagWrites& flags, NeededEdges* needed, Perform perform)
      : order_(order), flags_(flags), needed_(needed), perform_(std::move(perform)) {}

  // True: the record is deferred, and `perform` gets it later. False: the caller must perform it now.
  bool defer(const TraceRecord& record, std::span<const TraceRange> reads, std::span<const TraceRange> writes) {
    const bool waits_for_flag = record.kind == RecordKind::kSubmit && record.op == OpKind::kWaitValue;
    if (!waits_for_flag && stalls_.empty()) [[likely]]
      return false;
    if (!must_defer(record, reads)) return false;
    store(record, reads, writes);
    return true;
  }
  // An op wrote the flag: performs the records of the streams whose wait has ended.
  void flag_written(const TraceRange& flag);
  // Performs all records that are still deferred. Their flags were written by work that the program did not declare.
  void finish() {
    while (!stalls_.empty()) resume(root_of(stalls_.begin()->first));
  }

 private:
  struct Deferred {
    TraceRecord record;
    std::vector<TraceRange> reads, writes;
    ProgramOrder::HostState host;
    std::uint32_t trace_index = 0;  // see NeededEdges::current_record
  };
  struct StallState {
    TraceRange flag;  // bytes 0: the stream stalls for a point of another stream
    std::uint32_t value = 0;
    std::uint64_t stream = 0, position = 0;  // this point, if flag.bytes is 0
    std::deque<Deferred> deferred;
  };
  bool must_defer(const TraceRecord& record, std::span<const TraceRange> reads);
  void store(const TraceRecord& record, std::span<const TraceRange> reads, std::span<const TraceRange> writes);
  void stall(std::uint64_t stream, const StallState& what);
  std::deque<Deferred> end_stall(std::uint64_t stream);
  void resume(std::uint64_t stream);
  void resume_synced(const TraceRecord& sync);
  std::uint64_t root_of(std::uint64_t stream) const;

  ProgramOrder& order_;
  const FlagWrites& flags_;
  NeededEdges* const needed_;
  const Perform perform_;
  std::map<std::uint64_t, StallState> stalls_;                  // by stream
  std::set<std::pair<FlagAddress, std::uint64_t>> by_flag_;     // the streams that stall for each flag
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_point_;  // the same for a point of each stream
};

}  // namespace slip::watch
