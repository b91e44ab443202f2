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
#include <span>
#include <vector>

#include "watch/race/flag_writes.hpp"
#include "watch/race/program_order.hpp"

namespace slip::watch {

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
  void finish();

 private:
  struct Deferred {
    TraceRecord record;
    std::vector<TraceRange> reads, writes;
    ProgramOrder::HostState host;
    std::uint32_t trace_index = 0;  // see NeededEdges::current_record
  };
  struct Stall {
    TraceRange flag;  // bytes 0: the stream stalls for a point of another stream
    std::uint32_t value = 0;
    std::uint64_t stream = 0, position = 0;  // this point, if flag.bytes is 0
    std::deque<Deferred> deferred;
  };
  bool must_defer(const TraceRecord& record, std::span<const TraceRange> reads);
  void store(const TraceRecord& record, std::span<const TraceRange> reads, std::span<const TraceRange> writes);
  void resume(std::uint64_t stream);
  void resume_synced(const TraceRecord& sync);
  std::uint64_t root_of(std::uint64_t stream) const;

  ProgramOrder& order_;
  const FlagWrites& flags_;
  NeededEdges* const needed_;
  const Perform perform_;
  std::map<std::uint64_t, Stall> stalls_;  // by stream
};

}  // namespace slip::watch
