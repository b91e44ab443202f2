// FixFinder: the edges that a racy program lacks.
#include <algorithm>

#include "watch/race/program_order.hpp"

namespace slip::watch {

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

}  // namespace slip::watch
