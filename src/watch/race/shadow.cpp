#include "watch/race/shadow.hpp"

#include <algorithm>
#include <iterator>

namespace slip::watch {

// Returns the segment that begins at `at`. If there is none, cuts the one that contains `at`, or adds an untouched one
// at the end.
Shadow::Segments::iterator Shadow::cut(std::uint64_t at) {
  const auto next = segments_.lower_bound(at);
  if (next != segments_.end() && next->first == at) return next;
  if (next == segments_.begin()) {  // nothing touched yet
    if (at > 0) segments_.emplace(0, Segment{at, false, {}, {}});
    return segments_.emplace(at, Segment{~std::uint64_t{0}, false, {}, {}}).first;
  }
  const auto before = std::prev(next);
  const auto made = segments_.emplace_hint(next, at, before->second);
  before->second.end = at;
  return made;
}

namespace {

bool same(const Access& a, const Access& b) {
  return a.point.slot == b.point.slot && a.point.position == b.point.position;
}

bool same_history(const Shadow::Segment& a, const Shadow::Segment& b) {
  return a.written == b.written && (!a.written || same(a.write, b.write)) &&
         std::equal(a.reads.begin(), a.reads.end(), b.reads.begin(), b.reads.end(), same);
}

}  // namespace

void Shadow::forget(std::uint64_t offset, std::uint64_t bytes) {
  if (bytes == 0 || segments_.empty()) return;
  const std::uint64_t end = offset + bytes;
  const auto first = cut(offset);
  const auto last = cut(end);
  first->second = {end, false, {}, {}};
  segments_.erase(std::next(first), last);
  if (first == segments_.begin()) return;
  const auto before = std::prev(first);
  if (!same_history(before->second, first->second)) return;
  before->second.end = end;
  segments_.erase(first);
}

// Joins neighbours that have the same history after a read.
void Shadow::join(Segments::iterator first, Segments::iterator last) {
  while (first != last) {
    const auto next = std::next(first);
    if (next == last) return;
    if (same_history(first->second, next->second)) {
      first->second.end = next->second.end;
      segments_.erase(next);
    } else {
      first = next;
    }
  }
}

}  // namespace slip::watch
