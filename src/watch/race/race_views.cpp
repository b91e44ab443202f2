// Views of the host that are still open: what is issued meanwhile meets an access that has not ended.
#include <algorithm>

#include "watch/race/race_check.hpp"

namespace slip {
namespace {

// Places in the source whose ops are noted for one view. More of them make the report longer, not better.
constexpr std::size_t kMaxPlaces = 256;

bool same_place(const Access& a, const Access& b) {
  return a.point.slot == b.point.slot && a.side.line == b.side.line && a.side.writes == b.side.writes &&
         a.side.file == b.side.file && a.side.name == b.side.name;
}

}  // namespace

void RaceCheck::note_in_views(const TraceRange& range, const Access& access) {
  const auto open = views_.find(memory_of(range));
  if (open == views_.end()) return;
  const std::uint64_t begin = begin_of(range), end = begin + range.bytes;
  for (View& view : open->second) {
    const std::uint64_t view_begin = begin_of(view.record.range), view_end = view_begin + view.record.range.bytes;
    if (!(view.writes || access.side.writes) || begin >= view_end || view_begin >= end) continue;
    const auto known =
        std::find_if(view.ops.begin(), view.ops.end(), [&](const OpInView& op) { return same_place(op.last, access); });
    if (known != view.ops.end()) {
      known->last = access;
      continue;
    }
    if (view.ops.size() >= kMaxPlaces) continue;
    const std::uint64_t first = std::max(begin, view_begin);
    const TraceRange where{range.buffer, first - buffer(range.buffer).address, std::min(end, view_end) - first};
    view.ops.push_back({access, access, where});
  }
}

// Ops that the host waited for meanwhile are no race: the host may have touched the bytes before and after.
void RaceCheck::end_view(const TraceRecord& record) {
  const auto open = views_.find(memory_of(record.range));
  if (open == views_.end()) return;
  std::vector<View>& views = open->second;
  // The latest one like it: views end in the reverse order of their begin, and those of one line are alike.
  const auto found = std::find_if(views.rbegin(), views.rend(), [&](const View& open_view) {
    const TraceRecord& begin = open_view.record;
    return begin.range == record.range && begin.line == record.line && begin.file == record.file;
  });
  if (found == views.rend()) return;
  const View view = std::move(*found);
  views.erase(std::next(found).base());
  if (views.empty()) views_.erase(open);

  RaceSide side{{0, host_steps_ + 1, kOpenView, record.file, record.line}, view.writes};
  std::vector<Access> racing;
  for (const OpInView& op : view.ops) {
    const Access& access = clocks_.before_host(op.first.point) ? op.last : op.first;
    if (clocks_.before_host(access.point)) continue;
    racing.push_back(access);
    count(access.side, side, op.where);
  }
  if (racing.empty()) return end_clean_view(record, view.writes);
  if (!mending_) mending_ = std::make_unique<Mending>(clocks_, by_op_);
  mending_->end_view(side, racing);
}

// The host's last access of the view. What it follows was said when the view began or, of ops that the host waited for
// since, is noted now.
void RaceCheck::end_clean_view(const TraceRecord& record, bool writes) {
  const Access access{{Clocks::kHostSlot, ++host_steps_},
                      {{0, host_steps_, kOpenView, record.file, record.line}, writes}};
  if (needs_) needs_->op(access.point, clocks_.host());
  buffer(record.range.buffer)
      .shadow()
      .access(
          begin_of(record.range), record.range.bytes, writes, access,
          [&](std::uint64_t, std::uint64_t, const Shadow::Place& place) {
            if (place.written) static_cast<void>(is_ordered(place.write, access));
            if (!writes) return;
            for (const Access& read : place.reads) static_cast<void>(is_ordered(read, access));
          },
          [](const Access&) { return false; });
  clocks_.host_came(host_steps_);
  if (mending_) mending_->clocks.host_came(host_steps_);
}

}  // namespace slip
