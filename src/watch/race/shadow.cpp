#include "watch/race/shadow.hpp"

#include <algorithm>
#include <iterator>

namespace slip {

// The place that begins at `at`; makes one there by cutting, or by adding an untouched one at the end.
Shadow::Places::iterator Shadow::cut(std::uint64_t at) {
  const auto next = places_.lower_bound(at);
  if (next != places_.end() && next->first == at) return next;
  if (next == places_.begin()) {  // nothing touched yet
    if (at > 0) places_.emplace(0, Place{at, false, {}, {}});
    return places_.emplace(at, Place{~std::uint64_t{0}, false, {}, {}}).first;
  }
  const auto before = std::prev(next);
  const auto made = places_.emplace_hint(next, at, before->second);
  before->second.end = at;
  return made;
}

namespace {

bool same(const Access& a, const Access& b) {
  return a.point.slot == b.point.slot && a.point.position == b.point.position;
}

bool same_history(const Shadow::Place& a, const Shadow::Place& b) {
  return a.written == b.written && (!a.written || same(a.write, b.write)) &&
         std::equal(a.reads.begin(), a.reads.end(), b.reads.begin(), b.reads.end(), same);
}

}  // namespace

void Shadow::forget(std::uint64_t offset, std::uint64_t bytes) {
  if (bytes == 0 || places_.empty()) return;
  const std::uint64_t end = offset + bytes;
  const auto first = cut(offset);
  const auto last = cut(end);
  first->second = {end, false, {}, {}};
  places_.erase(std::next(first), last);
  if (first == places_.begin()) return;
  const auto before = std::prev(first);
  if (!same_history(before->second, first->second)) return;
  before->second.end = end;
  places_.erase(first);
}

// Neighbours that a read has made alike.
void Shadow::join(Places::iterator first, Places::iterator last) {
  while (first != last) {
    const auto next = std::next(first);
    if (next == last) return;
    if (same_history(first->second, next->second)) {
      first->second.end = next->second.end;
      places_.erase(next);
    } else {
      first = next;
    }
  }
}

}  // namespace slip
