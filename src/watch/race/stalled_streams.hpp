// StalledStreams: records of streams that cannot go on yet.
//
// A stream that waits for a flag (a stream memory operation) stalls until an op is issued that writes the flag, and
// with it stall the streams that wait for it. The write may be issued later than the wait, and everything before the
// write then comes before everything behind the wait. Therefore the race checker must look at the records of a stalled
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

namespace slip {

class StalledStreams {
 public:
  using Perform = std::function<void(const TraceRecord& record, std::span<const TraceRange> reads,
                                     std::span<const TraceRange> writes)>;
  // `perform` looks at a record whose turn has come. `needed` may be null.
  StalledStreams(ProgramOrder& order, const FlagWrites& flags, NeededEdges* needed, Perform perform)
      : order_(order), flags_(flags), needed_(needed), perform_(std::move(perform)) {}

  // True: the record was deferred; perform() is called with it later. False: it is the caller's to perform now.
  bool defer(const TraceRecord& record, std::span<const TraceRange> reads, std::span<const TraceRange> writes) {
    const bool waits_for_flag = record.kind == RecordKind::kSubmit && record.op == OpKind::kWaitValue;
    if (!waits_for_flag && stalls_.empty()) [[likely]]
      return false;
    if (!must_defer(record, reads)) return false;
    store(record, reads, writes);
    return true;
  }
  // An op wrote the flag: performs the records of streams whose wait it ends.
  void flag_written(const TraceRange& flag);
  // Performs all that is still deferred: the flags were written by something that the program did not declare.
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
    std::uint64_t stream = 0, position = 0;  // that point
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

}  // namespace slip
