#include "watch/race/program_order.hpp"

#include <algorithm>

namespace slip::watch {
namespace {
// NeededEdges gives up beyond these limits.
constexpr std::size_t kMaxSlots = 1024;
constexpr std::size_t kMaxClockEntries = std::size_t{1} << 27;  // at most 1 GiB; less, because edges share clocks
}  // namespace

// --- NeededEdges ---

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

void NeededEdges::host_waited(const Clocks::Clock& host) {
  if (gave_up_) return;
  slot(Clocks::kHostSlot);
  for (std::uint32_t other = 0; other < slots_.size(); ++other) {
    if (!slots_[other].host_visible.empty()) need_last(slots_[other].host_visible, other, host, Clocks::kHostSlot);
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

// --- FixFinder ---

void FixFinder::add(const RaceSide& after, const RaceSide& before, Clocks::Point point) {
  if (after.stream == 0 && after.name == kOpenView) {
    of_views_.emplace(std::pair(key_of(after), key_of(before)), fixes_.size());
  } else {
    by_after_[key_of(after)].push_back(fixes_.size());
    by_before_[key_of(before)].push_back(fixes_.size());
  }
  fixes_.push_back({after, before});
  last_.push_back(point);
  needed_.push_back(false);
}

void FixFinder::apply(const Access& access) {
  applied_.clear();
  const auto held = by_before_.find(key_of(access.side));
  if (held == by_before_.end()) return;
  if (notes_needed_) without_ = clocks.present_clock(access.point.slot);
  for (const std::size_t fix : held->second) {
    if (last_[fix].position == 0) continue;
    order(access.point.slot, last_[fix]);
    if (notes_needed_) applied_.push_back(fix);
  }
}

// A fix is needed if it orders an earlier access before this one, and neither another applied fix nor the stream's own
// clock does. All other fixes are applied meanwhile, so no subset of them orders the two accesses either.
void FixFinder::note_needed(const std::vector<Access>& unordered) {
  constexpr std::size_t kMaxPairs = 4096;  // per access, so that the whole check stays linear
  if (applied_.empty() || unordered.size() * applied_.size() > kMaxPairs) return;
  for (const Access& earlier : unordered) {
    const Clocks::Point point = earlier.point;
    if (point.slot < without_->size() && (*without_)[point.slot] >= point.position) continue;
    std::size_t only = 0, paths = 0;
    for (const std::size_t fix : applied_) {
      if (!clocks.reaches(last_[fix], point)) continue;
      only = fix;
      if (++paths > 1) break;
    }
    if (paths == 1) needed_[only] = true;
  }
}

// If the op must come after several accesses, and one of them already comes after another, the other needs no edge.
// Edges only lead to ops issued later, so an edge that is needed now stays needed whatever edges are added.
void FixFinder::add_missing(const Access& access, const std::vector<Access>& unordered) {
  if (notes_needed_) note_needed(unordered);
  std::vector<Access> missing;  // the last access of each stream
  for (const Access& earlier : unordered) {
    if (clocks.before(earlier.point, access.point.slot)) continue;
    const auto same = std::find_if(missing.begin(), missing.end(),
                                   [&](const Access& other) { return other.point.slot == earlier.point.slot; });
    if (same == missing.end()) missing.push_back(earlier);
    else if (same->point.position < earlier.point.position) *same = earlier;
  }
  for (std::size_t i = 0; i < missing.size();) {
    const bool implied = std::any_of(missing.begin(), missing.end(), [&](const Access& other) {
      return &other != &missing[i] && clocks.reaches(other.point, missing[i].point);
    });
    if (implied) missing.erase(missing.begin() + static_cast<std::ptrdiff_t>(i));
    else ++i;
  }
  for (const Access& earlier : missing) {
    add(earlier.side, access.side, earlier.point);
    order(access.point.slot, earlier.point);
  }
  const auto runs = by_after_.find(key_of(access.side));
  if (runs == by_after_.end()) return;
  for (const std::size_t fix : runs->second) last_[fix] = access.point;
}

void FixFinder::end_view(const RaceSide& view, const std::vector<Access>& ops) {
  const auto first = std::find_if(ops.begin(), ops.end(),
                                  [this](const Access& op) { return !clocks.before(op.point, Clocks::kHostSlot); });
  if (first == ops.end()) return;
  const auto known = of_views_.find({key_of(view), key_of(first->side)});
  // If the view ended only before a later op, this op would still be inside it. So no other fix can replace this one.
  if (known != of_views_.end()) needed_[known->second] = true;
  else add(view, first->side, {});
}

// --- ProgramOrder ---

ProgramOrder::HostState ProgramOrder::host_state() {
  if (issued_with_.clock) return issued_with_;
  const auto store = [](std::shared_ptr<const Clocks::Clock>& stored, const Clocks::Clock& present) {
    if (!stored || *stored != present) stored = std::make_shared<const Clocks::Clock>(present);
  };
  store(present_.clock, clocks_.host());
  if (fixes_) store(present_.fixed, fixes_->clocks.host());
  present_.steps = host_steps_;
  return present_;
}

Clocks::Point ProgramOrder::point_of(std::uint64_t stream, std::uint64_t position) {
  const Clocks::StreamSlot slot = clocks_.slot_of(stream);
  if (fixes_) fixes_->clocks.adopt(stream, slot);
  return slot.at(position);
}

Clocks::Point ProgramOrder::point_of(const TraceRecord& record) {
  if (record.stream == last_stream_) return last_slot_.at(record.position);
  // In a reused slot the order after the closed stream is implicit, so NeededEdges could not see which edges establish
  // it.
  if (needed_ && !needed_->gave_up() && clocks_.slots() > kMaxSlots) needed_->give_up();
  const bool fresh = needed_ && !needed_->gave_up();
  const Clocks::StreamSlot slot =
      fresh ? clocks_.slot_of(record.stream) : clocks_.slot_of(record.stream, record.device);
  if (fixes_) fixes_->clocks.adopt(record.stream, slot);
  std::vector<std::uint32_t>& slots = device_slots_[record.device];
  if (std::find(slots.begin(), slots.end(), slot.slot) == slots.end()) slots.push_back(slot.slot);
  last_stream_ = record.stream;
  last_slot_ = slot;
  return slot.at(record.position);
}

void ProgramOrder::begin_op(std::uint32_t slot) {
  const Clocks::Clock* before = &clocks_.present(slot);
  end_op({slot, 0});
  if (!needed_ || before == &clocks_.present(slot)) return;
  const bool late = issued_with_.clock != nullptr;
  needed_->add_edge(slot, {Clocks::kHostSlot, late ? issued_with_.steps : host_steps_},
                    late ? issued_with_.clock : std::make_shared<const Clocks::Clock>(clocks_.host()), false);
}

void ProgramOrder::end_op(Clocks::Point point) {
  if (issued_with_.clock) [[unlikely]] {
    clocks_.submit(point.slot, point.position, *issued_with_.clock);
    if (fixes_)
      fixes_->clocks.submit(point.slot, point.position, issued_with_.fixed ? *issued_with_.fixed : *issued_with_.clock);
    return;
  }
  clocks_.submit(point.slot, point.position);
  if (fixes_) fixes_->clocks.submit(point.slot, point.position);
}

void ProgramOrder::wait(std::uint32_t slot, Clocks::Point point) {
  if (fixes_) fixes_->clocks.wait(slot, point);
  if (!needed_) {
    clocks_.wait(slot, point);
    return;
  }
  auto clock = clocks_.clock_at(point);
  const bool implied = !clocks_.wait(slot, point);
  needed_->add_edge(slot, point, std::move(clock), implied);
}

void ProgramOrder::host_wait(Clocks::Point point) {
  if (fixes_) fixes_->clocks.host_wait(point);
  auto clock = needed_ ? clocks_.clock_at(point) : nullptr;
  clocks_.host_wait(point);
  // `implied` is false: a wait of the host for one stream is needed even if its waits for other streams order the same
  // ops.
  if (needed_) needed_->add_edge(Clocks::kHostSlot, point, std::move(clock), false);
}

// Waits for the whole stream: its last op, and the waits after that op.
void ProgramOrder::host_wait_all(std::uint32_t slot) {
  if (fixes_) fixes_->clocks.host_wait_all(slot);
  if (needed_) {
    const Clocks::Point end{slot, clocks_.end(slot)};
    needed_->add_edge(Clocks::kHostSlot, end, clocks_.present_clock(slot), false, true);
  }
  clocks_.host_wait_all(slot);
}

void ProgramOrder::host_sync(const TraceRecord& record) {
  if (record.whole_device) {
    for (const std::uint32_t slot : device_slots_[record.device]) host_wait_all(slot);
  } else {
    host_wait(awaited_by(record));
  }
  if (!needed_) return;
  needed_->host_waited(clocks_.host());
  needed_->add_op({Clocks::kHostSlot, ++host_steps_}, clocks_.host());
}

bool ProgramOrder::is_ordered(const Access& earlier, const Access& access, bool at_own_position) {
  const std::uint32_t slot = access.point.slot;
  if (earlier.point.slot == slot) return true;
  const bool before = clocks_.before(earlier.point, slot);
  if (needed_ && before) needed_->require_order(earlier.point, slot);
  if (before || slot == Clocks::kHostSlot) return before;
  // Within a stream, submitting an op and recording it are one atomic step, but not across streams. So the record of
  // another thread's op may arrive first, although that op comes after this one.
  return at_own_position && earlier.point.slot != Clocks::kHostSlot && clocks_.reaches(earlier.point, access.point);
}

}  // namespace slip::watch
