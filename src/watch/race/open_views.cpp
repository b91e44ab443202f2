#include "watch/race/open_views.hpp"

#include <algorithm>

namespace slip::watch {
namespace {

// Maximum number of source lines whose ops are kept for one view. More would make the report longer, not better.
constexpr std::size_t kMaxPlaces = 256;

bool same_place(const Access& a, const Access& b) {
  return a.point.slot == b.point.slot && a.side.line == b.side.line && a.side.writes == b.side.writes &&
         a.side.file == b.side.file && a.side.name == b.side.name;
}

}  // namespace

void OpenViews::open(ShadowMemory::TrackedBuffer& buffer, const TraceRecord& record, bool writes) {
  const std::uint64_t begin = buffer.begin_of(record.range);
  views_[&buffer.shadow()].push_back({record, begin, begin + record.range.bytes, writes, {}});
}

void OpenViews::add_op(ShadowMemory::TrackedBuffer& buffer, const TraceRange& range, const Access& access) {
  const auto open = views_.find(&buffer.shadow());
  if (open == views_.end()) return;
  const std::uint64_t begin = buffer.begin_of(range), end = begin + range.bytes;
  for (OpenView& view : open->second) {
    if (!(view.writes || access.side.writes) || begin >= view.end || view.begin >= end) continue;
    const auto known =
        std::find_if(view.ops.begin(), view.ops.end(), [&](const OpInView& op) { return same_place(op.last, access); });
    if (known != view.ops.end()) {
      known->last = access;
      continue;
    }
    if (view.ops.size() >= kMaxPlaces) continue;
    const std::uint64_t first = std::max(begin, view.begin);
    view.ops.push_back({access, access, {range.buffer, first - buffer.address, std::min(end, view.end) - first}});
  }
}

std::optional<OpenView> OpenViews::close(ShadowMemory::TrackedBuffer& buffer, const TraceRecord& record) {
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
