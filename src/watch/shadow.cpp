#include "watch/shadow.hpp"

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

void Shadow::note_read(Place& place, const Access& access) {
  for (Access& read : place.reads) {
    if (read.point.slot != access.point.slot) continue;
    read = access;
    return;
  }
  place.reads.push_back(access);
}

}  // namespace slip
