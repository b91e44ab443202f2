#include "flow/weights/ring_loads.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace slip::flow {
namespace {

constexpr std::uint64_t kNoUse = std::numeric_limits<std::uint64_t>::max();
constexpr std::size_t kWaitingStreams = 16;  // if more streams use the ring, some wait for a load more than once

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

// The first planned use of any entry in [begin, end), from `position` on. kNoUse: none; 0: a use there has not ended.
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

PassTable make_pass_table(const WeightsPlan& plan, Range ring, std::size_t uses) {
  PassTable table;
  table.uses.resize(uses);
  for (const WeightLoad& load : plan.loads) {
    const WeightGroup& group = plan.groups[load.group];
    table.loads.push_back({.to = ring.slice(load.offset, group.bytes + group.room),
                           .group = load.group,
                           .first_use = load.first_op,
                           .last_use = load.last_op,
                           .after_use = load.after_op,
                           .step_before = load.step_before});
    if (load.after_op != kNoOp) table.uses[load.after_op].is_awaited = true;
  }
  std::uint32_t loads = 0;
  for (std::uint32_t i = 0; i < uses; ++i) {
    while (loads < plan.loads.size() && plan.loads[loads].first_op <= i) ++loads;
    table.uses[i].loads = loads;
  }
  return table;
}

RingLoads::RingLoads(const Device& device, Range ring, GroupLoader& loader, std::unique_ptr<RingContents> contents)
    : ring_(ring),
      loader_(loader),
      stream_(device.stream("loads", StreamFlags::kNonBlocking)),
      contents_(std::move(contents)),
      base_(1),  // 0 means that the plan has no use
      position_(1),
      waited_(contents_ ? kWaitingStreams : 0) {}

void RingLoads::begin(PassTable& pass, PassTable& after) {
  const bool expected = cursor_.ahead && after_ == &pass;
  if (pass_) base_ += pass_->uses.size();
  if (expected) cursor_.ahead = false;
  else forget_plan();
  position_ = base_;
  pass_ = &pass;
  after_ = &after;
}

void RingLoads::issue_ahead() {
  for (;;) {
    if (cursor_.load == table().loads.size()) {
      // Steps has one event for each load of a step, so its loads are issued for this step only.
      if (!contents_ || cursor_.ahead) return;
      cursor_ = {.load = 0, .ahead = true};
      continue;
    }
    PlannedLoad& load = table().loads[cursor_.load];
    if (!contents_ || !is_there(load)) {
      if (!may_issue(load)) return;
      issue_planned(load);
    }
    ++cursor_.load;
  }
}

// True if this load can be omitted: its uses have been passed over, or its group lies in its place already. If the uses
// of the load have begun, the group may also lie in another place, since it was loaded on demand. A group that is
// needed later is loaded to its planned place even so: elsewhere it would block loads that the plan has before its use.
bool RingLoads::is_there(const PlannedLoad& load) {
  if (base() + load.last_use < position_) return true;
  RingEntry* const entry = contents_->find(load.group);
  if (!entry) return false;
  const std::uint64_t first = base() + load.first_use;
  if (entry->begin != load.to.offset - ring_.offset && first >= position_) return false;
  if (entry->last_use < position_) entry->first_use = first;
  entry->last_use = base() + load.last_use;
  return true;
}

void RingLoads::issue_planned(PlannedLoad& load) {
  if (contents_) {
    const std::uint64_t first = base() + load.first_use, last = base() + load.last_use;
    RingEntry& entry = replace(load.to, load.group, counts_.planned);
    entry.first_use = first;
    entry.last_use = last;
    return;
  }
  const Event* const used = load.after_use == kNoOp ? nullptr : &pass_->uses[load.after_use].used;
  if (used) stream_.wait(*used);
  loader_.issue(stream_, load.to, load.group, used);
  stream_.record(load.loaded);
}

// Loads a group to `to` and erases the entries there. The new entry is added last: if issuing the load throws, no entry
// is left without a load. stream_ waits for the uses of an entry before the entry is erased. So later loads need not
// wait for these uses.
RingEntry& RingLoads::replace(Range to, std::uint32_t group, LoadCounts::Loads& counted) {
  const auto make_free = [this](std::uint64_t begin, std::uint64_t end) {
    for (const RingEntry::Used& used : contents_->uses_in(begin, end)) {
      stream_.wait(used.event);
      loader_.wait(used.event);
    }
    // A load that no use waited for is ordered before this one in stream_, but not in the loader's own streams.
    if (const RingEntry* const unused = contents_->unused_in(begin, end)) loader_.wait(unused->loaded);
    if (contents_->erase(begin, end, position_)) must_go_back_ = true;
  };
  const std::uint64_t begin = to.offset - ring_.offset, end = begin + aligned(to.bytes);
  make_free(begin, end);
  if (const RingEntry* const surplus = contents_->surplus(position_)) make_free(surplus->begin, surplus->end);
  loader_.issue(stream_, to, group, nullptr);
  stream_.record(last_load_);
  RingEntry& entry = contents_->add(begin, end, group);
  entry.loaded = last_load_;
  ++counted.count;
  counted.bytes += to.bytes;
  entry.load = counts_.planned.count + counts_.on_demand.count;
  return entry;
}

void RingLoads::before_use(std::uint32_t use, StreamRef stream) {
  const std::uint32_t loads = pass_->uses[use].loads;
  for (; cursor_.load < loads; ++cursor_.load) issue_planned(pass_->loads[cursor_.load]);
  // The loads run in order: the last one of this use covers the others.
  if (loads > 0 && (use == 0 || pass_->uses[use - 1].loads < loads)) stream.wait(pass_->loads[loads - 1].loaded);
}

RingLoads::Use RingLoads::next_use(std::uint32_t group) {
  Use use;
  const auto from = static_cast<std::uint32_t>(position_ - base_);
  for (std::uint32_t i = from; i < pass_->uses.size(); ++i) {
    if (pass_->uses[i].group != group) continue;
    use.planned = i;
    use.skipped = i - from;
    position_ = base_ + i;
    break;
  }
  return use;
}

void RingLoads::load(Use& use, std::uint32_t group, std::uint64_t bytes, StreamRef stream) {
  use.entry = contents_->find(group);
  if (!use.entry && use.planned != kNoOp && !cursor_.ahead) {
    for (; cursor_.load < pass_->uses[use.planned].loads; ++cursor_.load) {
      PlannedLoad& load = pass_->loads[cursor_.load];
      if (is_there(load)) continue;
      if (!may_issue(load)) break;
      issue_planned(load);
    }
    use.entry = contents_->find(group);
  }
  if (!use.entry) {
    const std::optional<std::uint64_t> at = contents_->place_for(aligned(bytes), position_);
    if (!at) return;
    use.entry = &replace(ring_.slice(*at, bytes), group, counts_.on_demand);
    use.on_demand = true;
    if (std::exchange(must_go_back_, false)) go_back();
  }
  use.must_wait = use.entry->load > waited_of(stream).load;
}

void RingLoads::begin_use(const Use& use, StreamRef stream) {
  if (use.planned != kNoOp) position_ = base_ + use.planned + 1;
  if (!use.entry) return;
  ++use.entry->open;
  if (use.must_wait) waited_of(stream).load = use.entry->load;
}

void RingLoads::end_use(RingEntry& entry, StreamRef stream) {
  const Event used = stream.record();
  if (!RingContents::note_use(entry, stream.id(), used)) {  // too many streams: all later loads wait
    stream_.wait(used);
    loader_.wait(used);
  }
  --entry.open;
}

RingLoads::Waited& RingLoads::waited_of(StreamRef stream) {
  const auto known = std::ranges::find(waited_, stream.id(), &Waited::stream);
  if (known != waited_.end()) return *known;
  Waited& oldest = waited_[oldest_wait_++ % waited_.size()];
  oldest = {.stream = stream.id(), .load = 0};
  return oldest;
}

}  // namespace slip::flow
