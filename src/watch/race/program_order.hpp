// ProgramOrder: follows a program record by record and keeps its clocks. It passes every edge to NeededEdges, if there
// is one. Once a race was found, it also updates the clocks of the fixed program, which a FixFinder owns. Used by
// RaceCheck.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "watch/race/fix_finder.hpp"
#include "watch/race/needed_edges.hpp"

namespace slip::watch {

class ProgramOrder {
 public:
  // `by_op`: see FixFinder. `needed` gets every edge; may be null.
  ProgramOrder(bool by_op, NeededEdges* needed) : by_op_(by_op), needed_(needed) {}

  // The host's clocks when a record was issued. Records of a stalled stream are checked later than they were issued.
  // They come only after the work that the host had waited for when they were issued.
  struct HostState {
    std::shared_ptr<const Clocks::Clock> clock;  // null: the current clock
    std::shared_ptr<const Clocks::Clock> fixed;  // in the fixed program; null: there was none yet
    std::uint64_t steps = 0;
  };
  HostState host_state();  // of the current record
  // The following records were issued with this host state. Returns the previous state.
  HostState issue_with(HostState state) { return std::exchange(issued_with_, std::move(state)); }

  Clocks::Point point_of(const TraceRecord& record);  // the record's own point, in its stream
  Clocks::Point point_of(std::uint64_t stream, std::uint64_t position);
  Clocks::Point awaited_by(const TraceRecord& record) { return point_of(record.other_stream, record.other_position); }
  bool is_past(Clocks::Point point) const { return clocks_.end(point.slot) >= point.position; }

  // Call begin_op() before the op's accesses are checked: it joins the host's clock. Call end_op() afterwards.
  void begin_op(std::uint32_t slot);
  void end_op(Clocks::Point point);
  void close(const TraceRecord& record) { clocks_.close(record.stream, record.device); }

  // Later ops of the stream come after the point.
  void wait(std::uint32_t slot, Clocks::Point point);
  // A kSync or kQuery: the host waited for a point, or for all streams of a device.
  void host_sync(const TraceRecord& record);

  // Steps of the host: its accesses, and its waits if there is a NeededEdges. begin_host_step() begins the next step.
  std::uint64_t next_host_step() const { return host_steps_ + 1; }
  Clocks::Point begin_host_step();
  void end_host_step();

  // Whether the access comes after an earlier access that it conflicts with. `at_own_position`: no other op has the
  // position of the access. It is false for a stream-ordered allocation or free, which may share the position of the
  // previous op.
  bool is_ordered(const Access& earlier, const Access& access, bool at_own_position);

  const Clocks& clocks() const { return clocks_; }
  FixFinder* fixes() { return fixes_.get(); }  // null before the first race
  FixFinder& require_fixes();

 private:
  void host_wait(Clocks::Point point);
  void host_wait_all(std::uint32_t slot);

  const bool by_op_;
  NeededEdges* const needed_;
  Clocks clocks_;
  std::unique_ptr<FixFinder> fixes_;
  HostState issued_with_;
  HostState present_;  // the last result of host_state(), so that equal clocks are stored once
  std::uint64_t host_steps_ = 0;
  // The stream of the last point_of(record), and below its slot. Initially 0, the host, which has no such records.
  std::uint64_t last_stream_ = 0;
  Clocks::StreamSlot last_slot_;
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> device_slots_;
};

}  // namespace slip::watch
