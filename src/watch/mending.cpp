#include "watch/mending.hpp"

#include <algorithm>

namespace slip {

Mending::Place Mending::place_of(const RaceSide& side) const {
  return {side.stream, side.file, side.line, side.name, by_op_ ? side.position : 0};
}

bool Mending::is_ordered(const Access& earlier, std::uint32_t slot) const {
  if (earlier.point.slot == slot) return true;
  return slot == Clocks::kHostSlot ? clocks.before_host(earlier.point) : clocks.before(earlier.point, slot);
}

void Mending::order(std::uint32_t slot, Clocks::Point point) {
  if (slot == Clocks::kHostSlot) clocks.host_wait(point);
  else clocks.wait(slot, point);
}

void Mending::add(const RaceSide& after, const RaceSide& before, Clocks::Point point) {
  by_after_[place_of(after)].push_back(fixes_.size());
  by_before_[place_of(before)].push_back(fixes_.size());
  fixes_.push_back({after, before});
  last_.push_back(point);
}

void Mending::assume(const std::vector<Fix>& fixes) {
  for (const Fix& fix : fixes) add(fix.after, fix.before, {});
}

void Mending::before(const Access& access) {
  const auto held = by_before_.find(place_of(access.side));
  if (held == by_before_.end()) return;
  for (const std::size_t fix : held->second) {
    if (last_[fix].position > 0) order(access.point.slot, last_[fix]);
  }
}

// Of several accesses that one op must follow, those that others of them follow already need no edge. Edges only ever
// lead to ops issued later, so what is needed now stays needed whatever edges come.
void Mending::after(const Access& access, const std::vector<Access>& unordered) {
  std::vector<Access> missing;  // the last of each stream
  for (const Access& earlier : unordered) {
    if (is_ordered(earlier, access.point.slot)) continue;
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
  const auto runs = by_after_.find(place_of(access.side));
  if (runs == by_after_.end()) return;
  for (const std::size_t fix : runs->second) last_[fix] = access.point;
}

}  // namespace slip
