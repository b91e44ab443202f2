#include "watch/race/race_check.hpp"

#include <algorithm>

namespace slip {
namespace {

constexpr std::size_t kMaxRaces = 1000;
constexpr std::size_t kMaxSlotsForNeeds = 1024;

RaceSide side_of(const TraceRecord& record, bool writes, std::string_view name) {
  return {{record.stream, record.position, name, record.file, record.line}, writes};
}

}  // namespace

Clocks::Point RaceCheck::point_of(std::uint64_t stream, std::uint64_t position) {
  const Clocks::Life life = clocks_.life(stream);
  if (mending_) mending_->clocks.take(stream, life);
  return life.at(position);
}

Clocks::Point RaceCheck::other_of(const TraceRecord& record) {
  return point_of(record.other_stream, record.other_position);
}

Clocks::Point RaceCheck::point_of(const TraceRecord& record) {
  if (record.stream == last_stream_) return last_life_.at(record.position);
  // In a used slot the order with the stream before is taken for granted, and what it is needed for is not seen.
  if (needs_ && !needs_->gave_up() && clocks_.slots() > kMaxSlotsForNeeds) needs_->give_up();
  const bool fresh = needs_ && !needs_->gave_up();
  const Clocks::Life life = fresh ? clocks_.life(record.stream) : clocks_.life(record.stream, record.device);
  if (mending_) mending_->clocks.take(record.stream, life);
  std::vector<std::uint32_t>& slots = device_slots_[record.device];
  if (std::find(slots.begin(), slots.end(), life.slot) == slots.end()) slots.push_back(life.slot);
  last_stream_ = record.stream;
  last_life_ = life;
  return life.at(record.position);
}

// Joins what the host knows, so that edges found for the op come before it.
void RaceCheck::begin(std::uint32_t slot) {
  const Clocks::Clock* before = &clocks_.present(slot);
  came({slot, 0});
  if (!needs_ || before == &clocks_.present(slot)) return;
  const bool late = host_then_.known != nullptr;
  needs_->edge(slot, {Clocks::kHostSlot, late ? host_then_.steps : host_steps_},
               late ? host_then_.known : std::make_shared<const Clocks::Clock>(clocks_.host()), false);
}

void RaceCheck::came(Clocks::Point point) {
  if (host_then_.known) [[unlikely]] {
    clocks_.submit(point.slot, point.position, *host_then_.known);
    if (mending_)
      mending_->clocks.submit(point.slot, point.position, host_then_.mended ? *host_then_.mended : *host_then_.known);
    return;
  }
  clocks_.submit(point.slot, point.position);
  if (mending_) mending_->clocks.submit(point.slot, point.position);
}

void RaceCheck::follow(std::uint32_t slot, Clocks::Point point) {
  if (mending_) mending_->clocks.wait(slot, point);
  if (!needs_) {
    clocks_.wait(slot, point);
    return;
  }
  auto followed = clocks_.clock_at(point);
  const bool implied = !clocks_.wait(slot, point);
  needs_->edge(slot, point, std::move(followed), implied);
}

void RaceCheck::host_follow(Clocks::Point point) {
  if (mending_) mending_->clocks.host_wait(point);
  auto followed = needs_ ? clocks_.clock_at(point) : nullptr;
  clocks_.host_wait(point);
  // Never implied: of the streams of a device that it waits for, none is there because of another.
  if (needs_) needs_->edge(Clocks::kHostSlot, point, std::move(followed), false);
}

// The same for all of a stream, with the waits behind its last op.
void RaceCheck::host_follow_all(std::uint32_t slot) {
  if (mending_) mending_->clocks.host_wait_all(slot);
  if (needs_) {
    const Clocks::Point end{slot, clocks_.end(slot)};
    needs_->edge(Clocks::kHostSlot, end, clocks_.present_clock(slot), false, true);
  }
  clocks_.host_wait_all(slot);
}

void RaceCheck::assume(const std::vector<RaceFix>& fixes) {
  mending_ = std::make_unique<Mending>(clocks_, by_op_);
  mending_->assume(fixes);
}

void RaceCheck::step(const TraceRecord& record, std::span<const TraceRange> reads, std::span<const TraceRange> writes) {
  const bool word = record.kind == RecordKind::kSubmit && record.op == OpKind::kWaitValue;
  if ((word || !stalls_.empty()) && stands_still(record, reads)) [[unlikely]]
    return put_off(record, reads, writes);
  perform(record, reads, writes);
}

void RaceCheck::perform(const TraceRecord& record, std::span<const TraceRange> reads,
                        std::span<const TraceRange> writes) {
  switch (record.kind) {
    case RecordKind::kSubmit: return submit(record, reads, writes);
    case RecordKind::kStreamOpen: static_cast<void>(point_of(record)); return;
    case RecordKind::kStreamClose: return clocks_.close(record.stream, record.device);
    case RecordKind::kEventRecord: {
      const Clocks::Point point = point_of(record);
      begin(point.slot);
      if (needs_) needs_->mark(point);
      return came(point);
    }
    case RecordKind::kEventWait:
    case RecordKind::kBarrier: {
      const std::uint32_t own = point_of(record).slot;
      return follow(own, other_of(record));
    }
    case RecordKind::kSync:
    case RecordKind::kQuery: return host_wait(record);
    case RecordKind::kHostRead: return host_touch(record, false);
    case RecordKind::kHostWrite: return host_touch(record, true);
    case RecordKind::kHostEnd: return end_view(record);
    case RecordKind::kAlloc:
      name_buffer(record.range.buffer, record.name);
      return touch_whole(record, "stream-ordered allocation");
    case RecordKind::kFree: touch_whole(record, "stream-ordered free"); return forget(record.range);
    default: return;
  }
}

// Memory that comes or goes in stream order: like a write of all of it. Other memory is the host's own affair.
void RaceCheck::touch_whole(const TraceRecord& record, std::string_view name) {
  if (record.stream == 0) return;
  const Access access{point_of(record), side_of(record, true, name)};
  begin(access.point.slot);
  if (mending_) mending_->before(access);
  has_own_position_ = false;
  touch(record.range, access);
  has_own_position_ = true;
  mend(access);
  came(access.point);
  if (needs_) needs_->op(access.point, clocks_.present(access.point.slot));
}

void RaceCheck::submit(const TraceRecord& record, std::span<const TraceRange> reads,
                       std::span<const TraceRange> writes) {
  const Clocks::Point point = point_of(record);
  begin(point.slot);
  ++ops_;
  opaque_ += record.opaque;
  const bool waits = record.op == OpKind::kWaitValue, signals = record.op == OpKind::kWriteValue;
  if (waits && !reads.empty()) {
    if (const auto passed = words_.passed(reads[0], record.value)) follow(point.slot, *passed);
  } else if (signals && !writes.empty()) {
    words_.write(writes[0], point, record.value);
  } else if (!waits && !signals) {
    const Access reading{point, side_of(record, false, record.name)},
        writing{point, side_of(record, true, record.name)};
    if (mending_) mending_->before(reading);
    for (const TraceRange& range : reads) touch(range, reading);
    for (const TraceRange& range : writes) touch(range, writing);
    mend(writes.empty() ? reading : writing);
  }
  came(point);
  if (needs_) note_needs(record, point, reads, writes);
  if (signals && !writes.empty() && !stalls_.empty()) go_on_after(writes[0]);
}

void RaceCheck::note_needs(const TraceRecord& record, Clocks::Point point, std::span<const TraceRange> reads,
                           std::span<const TraceRange> writes) {
  const Clocks::Clock& followed = clocks_.present(point.slot);
  needs_->op(point, followed);
  const bool barrier = record.op == OpKind::kExchange && reads.empty() && writes.empty();
  if (record.opaque || barrier || record.op == OpKind::kWriteValue) needs_->opaque(point, followed);
  const auto on_host = [this](const TraceRange& range) { return buffer(range.buffer).on_host; };
  if (std::any_of(reads.begin(), reads.end(), on_host) || std::any_of(writes.begin(), writes.end(), on_host))
    needs_->for_host(point);
}

// Adds the edges that would order what was found for this access.
void RaceCheck::mend(const Access& access) {
  if (!mending_) {
    if (unordered_.empty()) return;
    mending_ = std::make_unique<Mending>(clocks_, by_op_);
  }
  mending_->after(access, unordered_);
  unordered_.clear();
}

// Whether the access comes after an earlier one that it conflicts with.
bool RaceCheck::is_ordered(const Access& earlier, const Access& access) {
  const std::uint32_t slot = access.point.slot;
  if (earlier.point.slot == slot) return true;
  const bool by_host = slot == Clocks::kHostSlot;
  const bool before = by_host ? clocks_.before_host(earlier.point) : clocks_.before(earlier.point, slot);
  if (needs_ && before) needs_->conflict(earlier.point, slot);
  if (before || by_host) return before;
  // Submission and its record are one step for each stream, not for two: another thread's op may be told first although
  // it comes after this one.
  return has_own_position_ && earlier.point.slot != Clocks::kHostSlot && clocks_.reaches(earlier.point, access.point);
}

void RaceCheck::touch(const TraceRange& range, const Access& access) {
  const bool by_host = access.point.slot == Clocks::kHostSlot;
  const bool writes = access.side.writes;
  if (!is_possible(range)) return;
  if (writes) words_.forget(range);
  if (!views_.empty() && !by_host) note_in_views(range, access);
  Buffer& memory = buffer(range.buffer);
  const std::uint64_t first = memory.address + range.offset;
  memory.shadow().access(
      first, range.bytes, writes, access,
      [&](std::uint64_t begin, std::uint64_t end, const Shadow::Place& place) {
        const TraceRange where{range.buffer, begin - memory.address, std::min(end, first + range.bytes) - begin};
        if (place.written && !is_ordered(place.write, access)) found(place.write, access, where);
        if (!writes) return;
        for (const Access& read : place.reads) {
          if (!is_ordered(read, access)) found(read, access, where);
        }
      },
      // A read that this one comes after says nothing more, except of what the order between them is needed for.
      [&](const Access& read) { return !needs_ && !by_host && clocks_.before(read.point, access.point.slot); });
}

// The memory is gone, or no longer the program's to touch through this buffer. Wrapped memory is given back when the
// device's work is done.
void RaceCheck::forget(const TraceRange& range) {
  const auto known = buffers_.find(range.buffer);
  if (known == buffers_.end()) return;
  const Buffer& gone = known->second;
  if (gone.shared && is_possible(range)) gone.shared->forget(gone.address + range.offset, range.bytes);
  if (!gone.shared) views_.erase(&gone.own);
  buffers_.erase(known);
  recent_[range.buffer % recent_.size()] = {};
}

void RaceCheck::host_touch(const TraceRecord& record, bool writes) {
  if (!is_possible(record.range)) return;
  views_[memory_of(record.range)].push_back({record, writes, {}});
  TraceRecord by_host = record;
  by_host.stream = 0;
  by_host.position = ++host_steps_;
  const Access access{{Clocks::kHostSlot, host_steps_}, side_of(by_host, writes, "the host")};
  if (needs_) needs_->op(access.point, clocks_.host());
  if (mending_) mending_->before(access);
  touch(record.range, access);
  mend(access);
  clocks_.host_came(host_steps_);
  if (mending_) mending_->clocks.host_came(host_steps_);
}

void RaceCheck::host_wait(const TraceRecord& record) {
  if (record.whole_device) {
    for (const std::uint32_t own : device_slots_[record.device]) host_follow_all(own);
  } else {
    host_follow(other_of(record));
  }
  if (!needs_) return;
  needs_->host_waited(Clocks::kHostSlot, clocks_.host());
  needs_->op({Clocks::kHostSlot, ++host_steps_}, clocks_.host());
}

void RaceCheck::found(const Access& earlier, const Access& later, const TraceRange& where) {
  unordered_.push_back(earlier);
  count(earlier.side, later.side, where);
}

void RaceCheck::count(const RaceSide& a, const RaceSide& b, const TraceRange& where) {
  const std::string_view buffer_name = buffer(where.buffer).name;
  const Key key{place_of(a), place_of(b), buffer_name};
  const auto known = known_.find(key);
  if (known != known_.end()) {
    ++races_[known->second].times;
  } else if (races_.size() < kMaxRaces) {
    known_.emplace(key, races_.size());
    races_.push_back({a, b, where.buffer, buffer_name, where.offset, where.bytes, 1});
  }
}

RaceReport RaceCheck::report() {
  while (!stalls_.empty()) go_on(origin_of_stall(stalls_.begin()->first));
  RaceReport report;
  report.races = races_;
  if (mending_) report.fixes = mending_->fixes();
  report.fixes_needed = report.fixes.size() <= 1;
  report.ops = ops_;
  report.opaque = opaque_;
  return report;
}

}  // namespace slip
