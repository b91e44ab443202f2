// The order of a program's work (ProgramOrder), the edges that its conflicting accesses need (NeededEdges), and the
// edges that it lacks (FixFinder). Used by RaceCheck.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "watch/race/clocks.hpp"
#include "watch/race/shadow.hpp"

namespace slip::watch {

// NeededEdges: finds the edges (dependencies) of a program that its conflicting accesses need. An edge that no conflict
// needs costs time and protects nothing. Used by check_trace() and verify().
//
// RaceCheck passes it every edge: a wait, a barrier, a sync of the host, or the host's order of submission. It also
// passes every pair of accesses that must be ordered. For each pair it marks the edges of one path from the first to
// the second. It prefers the latest edges, which serve most pairs. All edges that stay unmarked can be removed
// together.
class NeededEdges {
 public:
  struct Edge {
    Clocks::Point from;
    std::shared_ptr<const Clocks::Clock> clock;  // of `from`: the other work that the edge orders
    std::uint32_t to = 0;                        // the slot that waits
    std::uint64_t position = 0;                  // the edge applies to the ops of `to` after this position
    std::uint32_t record = 0;                    // see current_record
    bool implied = false;                        // earlier edges already establish the same order
    bool needed = false;                         // a conflict needs it
    bool used = false;                           // an op of `to` follows it
    bool with_waits = false;  // it also covers the waits after the point, as a wait for a whole device does
  };

  std::uint32_t current_record = 0;  // index in the trace of the record that is being checked

  // Later ops of `to` come after the point, and after everything that the point comes after.
  void add_edge(std::uint32_t to, Clocks::Point from, std::shared_ptr<const Clocks::Clock> clock, bool implied,
                bool with_waits = false);
  // The slot has reached the point: edges added from now on apply only to later ops.
  void reach(Clocks::Point point) { slot(point.slot).end = std::max(slot(point.slot).end, point.position); }
  // An op of the slot was submitted, with this clock.
  void add_op(Clocks::Point point, const Clocks::Clock& clock);
  // The slot's next op comes after the point, and must stay so: marks the edges of one path as needed.
  void require_order(Clocks::Point earlier, std::uint32_t slot) { need(earlier, slot, ~std::uint64_t{0}); }
  // The submitted op may touch any memory, or it signals that everything before it is done.
  void add_opaque(Clocks::Point point, const Clocks::Clock& clock);
  // The submitted op touches host memory: after a sync, the host may read that memory without a view.
  void add_host_visible(Clocks::Point point) {
    if (!gave_up_) slot(point.slot).host_visible.push_back(point.position);
  }
  void host_waited(const Clocks::Clock& host);  // call after the edges of the wait were added

  const std::vector<Edge>& edges() const { return edges_; }

  // Stops: there are too many streams or edges to track which are needed. Then nothing is known.
  void give_up();
  bool gave_up() const { return gave_up_; }

 private:
  // From position `since` on, needed edges alone order the other slot's work up to `covers` before this slot's ops.
  struct CoveredRange {
    std::uint64_t covers = 0;
    std::uint64_t since = 0;
  };
  struct SlotEdges {
    std::uint64_t end = 0;                    // position of its last op
    std::vector<std::uint32_t> edges;         // incoming edges, without implied ones
    std::size_t used = 0;                     // number of these edges that an op follows
    std::vector<CoveredRange> kept;           // by the other slot
    std::vector<std::uint64_t> opaque;        // positions, increasing
    std::vector<std::uint64_t> host_visible;  // positions, increasing
  };
  SlotEdges& slot(std::uint32_t index) {
    if (slots_.size() <= index) slots_.resize(index + 1);
    return slots_[index];
  }
  // Returns the position of the slot up to which the edge orders its work.
  std::uint64_t covers(const Edge& edge, std::uint32_t slot) const {
    const std::uint64_t position = Clocks::position_in(*edge.clock, slot);
    return edge.from.slot == slot ? std::max(position, edge.from.position) : position;
  }
  void need(Clocks::Point earlier, std::uint32_t slot, std::uint64_t before);
  void need_last(const std::vector<std::uint64_t>& positions, std::uint32_t of, const Clocks::Clock& clock,
                 std::uint32_t slot);

  std::vector<Edge> edges_;
  std::vector<SlotEdges> slots_;
  std::size_t entries_ = 0;  // in the clocks of all edges
  bool some_opaque_ = false;
  bool gave_up_ = false;
};

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
