// NeededEdges: finds the edges (dependencies) of a program that its conflicting accesses need. An edge that no conflict
// needs costs time and protects nothing. Used by check_trace() and verify().
//
// RaceCheck passes it every edge: a wait, a barrier, a sync of the host, or the host's order of submission. It also
// passes every pair of accesses that must be ordered. For each pair it marks the edges of one path from the first to
// the second. It prefers the latest edges, which serve most pairs. All edges that stay unmarked can be removed
// together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "watch/race/clocks.hpp"

namespace slip::watch {

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
  void host_waited(std::uint32_t host_slot, const Clocks::Clock& clock);  // call after the edges of the wait were added

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

}  // namespace slip::watch
