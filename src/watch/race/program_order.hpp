// The order of a program's work, and the edges that would repair it. Used by RaceCheck.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "watch/race/needed_edges.hpp"
#include "watch/race/shadow.hpp"

namespace slip::watch {

// FixFinder: finds the edges (dependencies) that a racy program lacks. FixFinder keeps the clocks of the fixed program
// and adds an edge whenever two accesses are still unordered. From then on the edge applies each time its two source
// lines run, as a wait written there would.
class FixFinder {
 public:
  // `program`: the program's clocks so far. `by_op`: each op counts as a source line of its own. Used for plans, where
  // loops are unrolled.
  FixFinder(const Clocks& program, bool by_op) : clocks(program), by_op_(by_op) {}

  Clocks clocks;  // of the fixed program; the owner passes every record to them, too

  // Call before an access: applies the edges found so far to it.
  void apply(const Access& access);
  // Call after an access. `unordered`: earlier accesses that the unfixed program does not order before it.
  void add_missing(const Access& access, const std::vector<Access>& unordered);
  // The host ends a view that races with these ops, which were issued while the view was open. They are in the order of
  // issue. The fix is to end the view before the first of them.
  void end_view(const RaceSide& view, const std::vector<Access>& ops);
  const std::vector<RaceFix>& fixes() const { return fixes_; }

  // Starts with these fixes, and from now on notes which of them are needed.
  void assume(const std::vector<RaceFix>& fixes) {
    for (const RaceFix& fix : fixes) add(fix.after, fix.before, {});
    notes_needed_ = true;
  }
  // By fix: whether it alone ordered two conflicting accesses. True is certain; false means unknown.
  const std::vector<bool>& needed() const { return needed_; }

 private:
  using PlaceKey = std::tuple<std::uint64_t, std::string_view, std::int32_t, std::string_view, std::uint64_t>;
  PlaceKey key_of(const RaceSide& side) const {
    return {side.stream, side.file, side.line, side.name, by_op_ ? side.position : 0};
  }
  void order(std::uint32_t slot, Clocks::Point point) {
    if (slot == Clocks::kHostSlot) clocks.host_wait(point);
    else clocks.wait(slot, point);
  }
  void add(const RaceSide& after, const RaceSide& before, Clocks::Point point);
  void note_needed(const std::vector<Access>& unordered);

  bool by_op_;
  std::vector<RaceFix> fixes_;
  std::vector<Clocks::Point> last_;  // by fix: the last op at the source line of `after`
  std::map<PlaceKey, std::vector<std::size_t>> by_after_, by_before_;
  // Fixes that end a view, by the source lines of the view and of the op.
  std::map<std::pair<PlaceKey, PlaceKey>, std::size_t> of_views_;

  bool notes_needed_ = false;
  std::vector<bool> needed_;
  std::vector<std::size_t> applied_;              // fixes that were applied to the current access
  std::shared_ptr<const Clocks::Clock> without_;  // the clock of the current access without these fixes
};

// ProgramOrder: follows a program record by record and keeps its clocks. It passes every edge to NeededEdges, if there
// is one. Once a race was found, it also updates the clocks of the fixed program, which a FixFinder owns.
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
  Clocks::Point begin_host_step() {
    const Clocks::Point point{Clocks::kHostSlot, ++host_steps_};
    if (needed_) needed_->add_op(point, clocks_.host());
    return point;
  }
  void end_host_step() {
    clocks_.host_step(host_steps_);
    if (fixes_) fixes_->clocks.host_step(host_steps_);
  }

  // Whether the access comes after an earlier access that it conflicts with. `at_own_position`: no other op has the
  // position of the access. It is false for a stream-ordered allocation or free, which may share the position of the
  // previous op.
  bool is_ordered(const Access& earlier, const Access& access, bool at_own_position);

  const Clocks& clocks() const { return clocks_; }
  FixFinder* fixes() { return fixes_.get(); }  // null before the first race
  FixFinder& require_fixes() {
    if (!fixes_) fixes_ = std::make_unique<FixFinder>(clocks_, by_op_);
    return *fixes_;
  }

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
