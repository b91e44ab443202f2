#include "watch/race/needs.hpp"

#include <algorithm>

namespace slip {
namespace {
std::uint64_t at(const Clocks::Clock& clock, std::uint32_t slot) { return slot < clock.size() ? clock[slot] : 0; }
constexpr std::size_t kMaxEntries = std::size_t{1} << 27;  // a gigabyte, if no two edges shared a clock
}  // namespace

void Needs::give_up() {
  gave_up_ = true;
  edges_.clear();
  edges_.shrink_to_fit();
  slots_.clear();
}

Needs::Slot& Needs::slot(std::uint32_t index) {
  if (slots_.size() <= index) slots_.resize(index + 1);
  return slots_[index];
}

// How far into the slot's life the edge reaches.
std::uint64_t Needs::covers(const Edge& edge, std::uint32_t slot) const {
  const std::uint64_t followed = at(*edge.followed, slot);
  return edge.from.slot == slot ? std::max(followed, edge.from.position) : followed;
}

void Needs::edge(std::uint32_t to, Clocks::Point from, std::shared_ptr<const Clocks::Clock> followed, bool implied,
                 bool with_waits) {
  if (gave_up_) return;
  mark(from);
  entries_ += followed->size();
  if (entries_ > kMaxEntries) return give_up();
  Slot& target = slot(to);
  if (!implied) target.edges.push_back(static_cast<std::uint32_t>(edges_.size()));
  edges_.push_back({from, std::move(followed), to, target.end, record, implied, false, false, with_waits});
}

void Needs::op(Clocks::Point point, const Clocks::Clock& followed) {
  if (gave_up_) return;
  mark(point);
  Slot& own = slot(point.slot);
  for (; own.held < own.edges.size(); ++own.held) edges_[own.edges[own.held]].held = true;
  if (!some_opaque_) return;
  for (std::uint32_t other = 0; other < slots_.size(); ++other) {
    if (!slots_[other].opaque.empty()) need_last(slots_[other].opaque, other, followed, point.slot);
  }
}

// The last of the positions that the slot knows of needs to stay known.
void Needs::need_last(const std::vector<std::uint64_t>& positions, std::uint32_t of, const Clocks::Clock& known,
                      std::uint32_t slot) {
  const auto later = std::upper_bound(positions.begin(), positions.end(), at(known, of));
  if (later != positions.begin()) conflict({of, *std::prev(later)}, slot);
}

void Needs::opaque(Clocks::Point point, const Clocks::Clock& followed) {
  if (gave_up_) return;
  for (std::uint32_t other = 0; other < followed.size(); ++other) {
    if (followed[other] > 0) conflict({other, followed[other]}, point.slot);
  }
  slot(point.slot).opaque.push_back(point.position);
  some_opaque_ = true;
}

void Needs::for_host(Clocks::Point point) {
  if (!gave_up_) slot(point.slot).for_host.push_back(point.position);
}

void Needs::host_waited(std::uint32_t host_slot, const Clocks::Clock& known) {
  if (gave_up_) return;
  slot(host_slot);
  for (std::uint32_t other = 0; other < slots_.size(); ++other) {
    if (!slots_[other].for_host.empty()) need_last(slots_[other].for_host, other, known, host_slot);
  }
}

// From the end back to the point, by the latest edge into each slot that reaches so far. Each step goes to an earlier
// edge, so it ends.
void Needs::need(Clocks::Point earlier, std::uint32_t index, std::uint64_t before) {
  if (gave_up_) return;
  std::uint64_t surely_before = before;  // for what is known by position alone
  auto until = static_cast<std::uint32_t>(edges_.size());
  while (index != earlier.slot) {
    Slot& target = slot(index);
    if (target.kept.size() <= earlier.slot) target.kept.resize(earlier.slot + 1);
    Kept& kept = target.kept[earlier.slot];
    if (kept.covers >= earlier.position && kept.since < surely_before) return;
    auto edge = std::partition_point(target.edges.begin(), target.edges.end(),
                                     [&](std::uint32_t i) { return i < until && edges_[i].position < before; });
    while (edge != target.edges.begin() && covers(edges_[*std::prev(edge)], earlier.slot) < earlier.position) --edge;
    if (edge == target.edges.begin()) return;  // not ordered by what we know
    // Of those that came together, as in a wait for a whole device, the straight one.
    auto straight = edge;
    const std::uint64_t position = edges_[*std::prev(edge)].position;
    while (straight != target.edges.begin() && edges_[*std::prev(straight)].position == position &&
           (edges_[*std::prev(straight)].from.slot != earlier.slot ||
            edges_[*std::prev(straight)].from.position < earlier.position))
      --straight;
    if (straight != target.edges.begin() && edges_[*std::prev(straight)].position == position) edge = straight;
    Edge& found = edges_[*std::prev(edge)];
    found.needed = true;
    const std::uint64_t sure = found.from.slot == earlier.slot ? found.from.position : earlier.position;
    if (sure > kept.covers) kept = {sure, found.position};
    surely_before = found.from.position;
    // With the waits behind the point: those told before this edge; later ones may have the same position.
    before = surely_before + (found.with_waits ? 1 : 0);
    until = found.with_waits ? *std::prev(edge) : static_cast<std::uint32_t>(edges_.size());
    index = found.from.slot;
  }
}

}  // namespace slip
