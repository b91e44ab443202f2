#include "watch/race/shadow.hpp"

#include <algorithm>
#include <iterator>

namespace slip::watch {
namespace {

// Maximum number of source lines whose ops are kept for one view. More would make the report longer, not better.
constexpr std::size_t kMaxPlaces = 256;

bool same_place(const Access& a, const Access& b) {
  return a.point.slot == b.point.slot && a.side.line == b.side.line && a.side.writes == b.side.writes &&
         a.side.file == b.side.file && a.side.name == b.side.name;
}

bool same(const Access& a, const Access& b) {
  return a.point.slot == b.point.slot && a.point.position == b.point.position;
}

bool same_history(const Shadow::Segment& a, const Shadow::Segment& b) {
  return a.written == b.written && (!a.written || same(a.write, b.write)) &&
         std::equal(a.reads.begin(), a.reads.end(), b.reads.begin(), b.reads.end(), same);
}

}  // namespace

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

void OpenViews::open(TrackedBuffer& buffer, const TraceRecord& record, bool writes) {
  const std::uint64_t begin = buffer.begin_of(record.range);
  views_[&buffer.shadow()].push_back({record, begin, begin + record.range.bytes, writes, {}});
}

void OpenViews::add_op(TrackedBuffer& buffer, const TraceRange& range, const Access& access) {
  const auto open = views_.find(&buffer.shadow());
  if (open == views_.end()) return;
  const std::uint64_t begin = buffer.begin_of(range), end = begin + range.bytes;
  for (OpenView& view : open->second) {
    if (!(view.writes || access.side.writes) || begin >= view.end || view.begin >= end) continue;
    const auto known = std::ranges::find_if(view.ops, [&](const OpInView& op) { return same_place(op.last, access); });
    if (known != view.ops.end()) {
      known->last = access;
      continue;
    }
    if (view.ops.size() >= kMaxPlaces) continue;
    const std::uint64_t first = std::max(begin, view.begin);
    view.ops.push_back({access, access, {range.buffer, first - buffer.address, std::min(end, view.end) - first}});
  }
}

std::optional<OpenView> OpenViews::close(TrackedBuffer& buffer, const TraceRecord& record) {
  const auto open = views_.find(&buffer.shadow());
  if (open == views_.end()) return std::nullopt;
  std::vector<OpenView>& views = open->second;
  // Takes the latest matching view: views end in the reverse order of their begin, and views of one line are equal.
  const auto found = std::find_if(views.rbegin(), views.rend(), [&](const OpenView& view) {
    const TraceRecord& begin = view.record;
    return begin.range == record.range && begin.line == record.line && begin.file == record.file;
  });
  if (found == views.rend()) return std::nullopt;
  OpenView result = std::move(*found);
  views.erase(std::next(found).base());
  if (views.empty()) views_.erase(open);
  return result;
}

}  // namespace slip::watch
