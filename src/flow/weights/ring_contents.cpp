#include "flow/weights/ring_contents.hpp"

#include <limits>

namespace slip::flow {
namespace {

constexpr std::uint64_t kNoUse = std::numeric_limits<std::uint64_t>::max();

}  // namespace

// Each group has one newest entry, and rarely an older one. So twice as many entries as groups almost always suffice.
// If the table is full, RingLoads erases an entry early (surplus()).
RingContents::RingContents(std::uint64_t bytes, std::size_t groups, std::size_t max_open)
    : bytes_(bytes), entries_(2 * groups + max_open + 2), newest_(groups, kNone) {
  free_.reserve(entries_.size());
  intervals_.reserve(entries_.size());
  uses_.reserve(entries_.size() * RingEntry::kStreams);
  for (std::size_t i = entries_.size(); i > 0; --i) free_.push_back(static_cast<std::uint32_t>(i - 1));
}

std::span<const RingContents::Interval> RingContents::intervals_in(std::uint64_t begin, std::uint64_t end) const {
  // Entries do not overlap, so their ends ascend, too.
  const auto first = std::ranges::upper_bound(intervals_, begin, {}, &Interval::end);
  const auto last = std::ranges::lower_bound(first, intervals_.end(), end, {}, &Interval::begin);
  return {first, last};
}

// The first planned use of any entry in [begin, end), from `position` on; 0 if a use there has not ended.
std::uint64_t RingContents::next_use_in(std::uint64_t begin, std::uint64_t end, std::uint64_t position) const {
  std::uint64_t next = kNoUse;
  for (const Interval& interval : intervals_in(begin, end)) {
    const RingEntry& entry = entries_[interval.entry];
    if (entry.open > 0) return 0;
    if (entry.last_use >= position) next = std::min(next, std::max(entry.first_use, position));
  }
  return next;
}

std::optional<std::uint64_t> RingContents::place_for(std::uint64_t bytes, std::uint64_t position) const {
  // Any interval can be moved down to the end of an entry or to the begin of the ring without overlapping more entries.
  // So only these intervals are tried.
  std::optional<std::uint64_t> best;
  std::uint64_t best_next = 0;
  const auto offer = [&](std::uint64_t begin) {
    if (begin > bytes_ || bytes > bytes_ - begin) return;
    const std::uint64_t next = next_use_in(begin, begin + bytes, position);
    if (next > best_next) best = begin, best_next = next;
  };
  offer(0);
  for (const Interval& interval : intervals_) offer(interval.end);
  return best;
}

std::span<const RingEntry::Used> RingContents::uses_in(std::uint64_t begin, std::uint64_t end) {
  uses_.clear();
  for (const Interval& interval : intervals_in(begin, end)) {
    const RingEntry& entry = entries_[interval.entry];
    for (const RingEntry::Used& used : std::span(entry.used).first(entry.streams)) {
      const auto same = std::ranges::find(uses_, used.stream, &RingEntry::Used::stream);
      if (same == uses_.end()) uses_.push_back(used);
      else if (same->event.point().position < used.event.point().position) *same = used;
    }
  }
  return uses_;
}

const RingEntry* RingContents::unused_in(std::uint64_t begin, std::uint64_t end) const {
  const RingEntry* newest = nullptr;
  for (const Interval& interval : intervals_in(begin, end)) {
    const RingEntry& entry = entries_[interval.entry];
    if (entry.streams == 0 && (!newest || entry.load > newest->load)) newest = &entry;
  }
  return newest;
}

bool RingContents::erase(std::uint64_t begin, std::uint64_t end, std::uint64_t position) {
  const std::span<const Interval> found = intervals_in(begin, end);
  const bool needed = !is_free(begin, end, position);
  for (const Interval& interval : found) {
    RingEntry& entry = entries_[interval.entry];
    if (newest_[entry.group] == interval.entry) newest_[entry.group] = kNone;
    for (RingEntry::Used& used : entry.used) used = {};
    entry.loaded = {};
    free_.push_back(interval.entry);
  }
  const auto first = intervals_.begin() + (found.data() - intervals_.data());
  intervals_.erase(first, first + static_cast<std::ptrdiff_t>(found.size()));
  return needed;
}

RingEntry& RingContents::add(std::uint64_t begin, std::uint64_t end, std::uint32_t group) {
  const std::uint32_t index = free_.back();
  free_.pop_back();
  intervals_.insert(std::ranges::lower_bound(intervals_, begin, {}, &Interval::begin), {begin, end, index});
  newest_[group] = index;
  entries_[index] = {.begin = begin, .end = end, .group = group};
  return entries_[index];
}

const RingEntry* RingContents::surplus(std::uint64_t position) const {
  if (!free_.empty()) return nullptr;
  const RingEntry* best = nullptr;
  for (const Interval& interval : intervals_) {
    const RingEntry& entry = entries_[interval.entry];
    if (entry.open > 0) continue;
    if (!best || (best->is_needed(position) && !entry.is_needed(position))) best = &entry;
  }
  return best;
}

bool RingContents::note_use(RingEntry& entry, std::uint64_t stream, const Event& event) {
  const std::span<RingEntry::Used> noted = std::span(entry.used).first(entry.streams);
  const auto same = std::ranges::find(noted, stream, &RingEntry::Used::stream);
  if (same != noted.end()) {
    same->event = event;
    return true;
  }
  if (entry.streams == RingEntry::kStreams) return false;
  entry.used[entry.streams++] = {stream, event};
  return true;
}

}  // namespace slip::flow
