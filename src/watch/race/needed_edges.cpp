#include "watch/race/needed_edges.hpp"

namespace slip::watch {
namespace {
constexpr std::size_t kMaxClockEntries = std::size_t{1} << 27;  // at most 1 GiB; less, because edges share clocks
}  // namespace

void NeededEdges::give_up() {
  gave_up_ = true;
  edges_.clear();
  edges_.shrink_to_fit();
  slots_.clear();
}

void NeededEdges::add_edge(std::uint32_t to, Clocks::Point from, std::shared_ptr<const Clocks::Clock> clock,
                           bool implied, bool with_waits) {
  if (gave_up_) return;
  reach(from);
  entries_ += clock->size();
  if (entries_ > kMaxClockEntries) return give_up();
  SlotEdges& target = slot(to);
  if (!implied) target.edges.push_back(static_cast<std::uint32_t>(edges_.size()));
  edges_.push_back({from, std::move(clock), to, target.end, current_record, implied, false, false, with_waits});
}

void NeededEdges::add_op(Clocks::Point point, const Clocks::Clock& clock) {
  if (gave_up_) return;
  reach(point);
  SlotEdges& own = slot(point.slot);
  for (; own.used < own.edges.size(); ++own.used) edges_[own.edges[own.used]].used = true;
  if (!some_opaque_) return;
  for (std::uint32_t other = 0; other < slots_.size(); ++other) {
    if (!slots_[other].opaque.empty()) need_last(slots_[other].opaque, other, clock, point.slot);
  }
}

// Of these positions, the last one that the clock covers must stay ordered before the slot's next op.
void NeededEdges::need_last(const std::vector<std::uint64_t>& positions, std::uint32_t of, const Clocks::Clock& clock,
                            std::uint32_t slot) {
  const auto later = std::upper_bound(positions.begin(), positions.end(), Clocks::position_in(clock, of));
  if (later != positions.begin()) require_order({of, *std::prev(later)}, slot);
}

void NeededEdges::add_opaque(Clocks::Point point, const Clocks::Clock& clock) {
  if (gave_up_) return;
  for (std::uint32_t other = 0; other < clock.size(); ++other) {
    if (clock[other] > 0) require_order({other, clock[other]}, point.slot);
  }
  slot(point.slot).opaque.push_back(point.position);
  some_opaque_ = true;
}

void NeededEdges::host_waited(std::uint32_t host_slot, const Clocks::Clock& clock) {
  if (gave_up_) return;
  slot(host_slot);
  for (std::uint32_t other = 0; other < slots_.size(); ++other) {
    if (!slots_[other].host_visible.empty()) need_last(slots_[other].host_visible, other, clock, host_slot);
  }
}

// Marks the edges of one path from the point `earlier` to the slot, using edges at positions below `before`. Walks back
// from the slot to the point: in each slot it takes the latest incoming edge that covers the point. Each step goes to
// an earlier edge, so the walk ends.
void NeededEdges::need(Clocks::Point earlier, std::uint32_t index, std::uint64_t before) {
  if (gave_up_) return;
  std::uint64_t surely_before = before;  // for `kept`, which does not distinguish edges at the same position
  auto until = static_cast<std::uint32_t>(edges_.size());
  while (index != earlier.slot) {
    SlotEdges& target = slot(index);
    if (target.kept.size() <= earlier.slot) target.kept.resize(earlier.slot + 1);
    CoveredRange& kept = target.kept[earlier.slot];
    if (kept.covers >= earlier.position && kept.since < surely_before) return;
    auto edge = std::partition_point(target.edges.begin(), target.edges.end(),
                                     [&](std::uint32_t i) { return i < until && edges_[i].position < before; });
    while (edge != target.edges.begin() && covers(edges_[*std::prev(edge)], earlier.slot) < earlier.position) --edge;
    if (edge == target.edges.begin()) return;  // no known edge orders them
    // If several edges were added at the same position, as in a wait for a whole device, take the one directly from the
    // point's slot.
    auto straight = edge;
    const std::uint64_t position = edges_[*std::prev(edge)].position;
    while (straight != target.edges.begin() && edges_[*std::prev(straight)].position == position &&
           (edges_[*std::prev(straight)].from.slot != earlier.slot ||
            edges_[*std::prev(straight)].from.position < earlier.position))
      --straight;
    if (straight != target.edges.begin() && edges_[*std::prev(straight)].position == position) edge = straight;
    Edge& found = edges_[*std::prev(edge)];
    found.needed = true;
    const std::uint64_t covered = found.from.slot == earlier.slot ? found.from.position : earlier.position;
    if (covered > kept.covers) kept = {covered, found.position};
    surely_before = found.from.position;
    // The edge also covers the waits after its point, but only those added before this edge. Later waits may have the
    // same position.
    before = surely_before + (found.with_waits ? 1 : 0);
    until = found.with_waits ? *std::prev(edge) : static_cast<std::uint32_t>(edges_.size());
    index = found.from.slot;
  }
}

}  // namespace slip::watch
