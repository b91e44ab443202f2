// RaceCheck: finds races in the records of a program. The records come live from an observer (race.cpp) or from a trace
// (trace_races.hpp). Not thread-safe: the caller locks.
#pragma once

#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "base/sync.hpp"
#include "slip/race.hpp"
#include "watch/race/program_order.hpp"
#include "watch/race/shadow.hpp"
#include "watch/race/stalled_streams.hpp"
#include "watch/trace/containers.hpp"

namespace slip::watch {

class RaceCheck : base::NoCopy {
 public:
  // `by_op`: see FixFinder. `needed` collects the edges that conflicts need; may be null.
  explicit RaceCheck(bool by_op = false, NeededEdges* needed = nullptr);

  // Checks the next record, in the order of the process. `reads` and `writes` belong to a kSubmit.
  void step(const TraceRecord& record, std::span<const TraceRange> reads, std::span<const TraceRange> writes) {
    if (!stalled_.defer(record, reads, writes)) perform(record, reads, writes);
  }
  void name_buffer(std::uint64_t id, std::string_view name) { memory_[id].name = name; }
  void mark_host_memory(std::uint64_t id) { memory_[id].on_host = true; }
  // The buffer wraps memory of the program: other buffers of the same address space may contain the same bytes.
  void mark_wrapped(std::uint64_t id, std::uint64_t address, std::uint32_t space) {
    memory_[id].address = address;
    memory_[id].shared = &wrapped_[space];
  }
  // Checks the program as if it contained these edges.
  void assume(const std::vector<RaceFix>& fixes) { order_.require_fixes().assume(fixes); }
  RaceReport report();
  bool is_clean() const { return races_.empty(); }
  const FixFinder* fixes() { return order_.fixes(); }  // null before the first race, if nothing was assumed

 private:
  void perform(const TraceRecord& record, std::span<const TraceRange> reads, std::span<const TraceRange> writes);
  void submit(const TraceRecord& record, std::span<const TraceRange> reads, std::span<const TraceRange> writes);
  void touch(const TraceRange& range, const Access& access, bool at_own_position = true);
  void touch_whole(const TraceRecord& record, std::string_view name);
  void add_race(const RaceSide& first, const RaceSide& second, const TraceRange& where, std::string_view buffer_name);
  // Adds the edges that would order the access after the accesses it races with.
  void add_fixes(const Access& access) {
    if (!order_.fixes() && unordered_.empty()) return;
    order_.require_fixes().add_missing(access, unordered_);
    unordered_.clear();
  }
  void add_needed(const TraceRecord& record, Clocks::Point point, std::span<const TraceRange> reads,
                  std::span<const TraceRange> writes);
  void host_touch(const TraceRecord& record, bool writes);
  void end_view(const TraceRecord& record);
  void end_clean_view(const TraceRecord& record, bool writes);
  void forget(const TraceRange& range);

  const bool by_op_;
  NeededEdges* const needed_;
  ProgramOrder order_;
  CachedMap<TrackedBuffer> memory_;
  std::map<std::uint32_t, Shadow> wrapped_;  // by address space
  FlagWrites flags_;
  StalledStreams stalled_;
  OpenViews views_;
  // A source line and a kind of access; with by_op_ also the op.
  using AccessKey = std::tuple<std::string_view, std::int32_t, bool, std::uint64_t>;
  std::map<std::tuple<AccessKey, AccessKey, std::string_view>, std::size_t> race_index_;  // index in races_
  std::vector<Race> races_;        // one for each pair of source lines, buffer and kind of access
  std::vector<Access> unordered_;  // earlier accesses that the current access races with
  std::uint64_t ops_ = 0, opaque_ = 0;
};

}  // namespace slip::watch
