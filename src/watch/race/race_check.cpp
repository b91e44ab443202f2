#include "watch/race/race_check.hpp"

#include <algorithm>

namespace slip::watch {
namespace {

constexpr std::size_t kMaxRaces = 1000;

RaceSide side_of(const TraceRecord& record, bool writes, std::string_view name) {
  return {{record.stream, record.position, name, record.file, record.line, {}}, writes};
}

}  // namespace

RaceCheck::RaceCheck(bool by_op, NeededEdges* needed)
    : by_op_(by_op),
      needed_(needed),
      order_(by_op, needed),
      stalled_(order_, flags_, needed,
               [this](const TraceRecord& record, std::span<const TraceRange> reads,
                      std::span<const TraceRange> writes) { perform(record, reads, writes); }) {}

void RaceCheck::add_race(const RaceSide& first, const RaceSide& second, const TraceRange& where,
                         std::string_view buffer_name) {
  const auto key_of = [this](const RaceSide& side) {
    return AccessKey{side.file, side.line, side.writes, by_op_ ? side.position : 0};
  };
  const std::tuple key(key_of(first), key_of(second), buffer_name);
  const auto known = race_index_.find(key);
  if (known != race_index_.end()) {
    ++races_[known->second].times;
  } else if (races_.size() < kMaxRaces) {
    race_index_.emplace(key, races_.size());
    races_.push_back({first, second, where.buffer, buffer_name, where.offset, where.bytes, 1});
  }
}

void RaceCheck::perform(const TraceRecord& record, std::span<const TraceRange> reads,
                        std::span<const TraceRange> writes) {
  switch (record.kind) {
    case RecordKind::kSubmit: return submit(record, reads, writes);
    case RecordKind::kStreamOpen: static_cast<void>(order_.point_of(record)); return;
    case RecordKind::kStreamClose: return order_.close(record);
    case RecordKind::kEventRecord: {
      const Clocks::Point point = order_.point_of(record);
      order_.begin_op(point.slot);
      if (needed_) needed_->reach(point);
      return order_.end_op(point);
    }
    case RecordKind::kEventWait:
    case RecordKind::kBarrier: {
      const std::uint32_t slot = order_.point_of(record).slot;
      return order_.wait(slot, order_.awaited_by(record));
    }
    case RecordKind::kSync:
    case RecordKind::kQuery: return order_.host_sync(record);
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

// A stream-ordered allocation or free counts as a write of the whole buffer. An ordinary one has no stream (0) and is
// not checked: no op can use the memory at that time.
void RaceCheck::touch_whole(const TraceRecord& record, std::string_view name) {
  if (record.stream == 0) return;
  const Access access{order_.point_of(record), side_of(record, true, name)};
  order_.begin_op(access.point.slot);
  if (order_.fixes()) order_.fixes()->apply(access);
  touch(record.range, access, false);
  add_fixes(access);
  order_.end_op(access.point);
  if (needed_) needed_->add_op(access.point, order_.clocks().present(access.point.slot));
}

void RaceCheck::submit(const TraceRecord& record, std::span<const TraceRange> reads,
                       std::span<const TraceRange> writes) {
  const Clocks::Point point = order_.point_of(record);
  order_.begin_op(point.slot);
  ++ops_;
  opaque_ += record.opaque;
  const bool waits = record.op == OpKind::kWaitValue, signals = record.op == OpKind::kWriteValue;
  if (waits && !reads.empty()) {
    if (const auto write = flags_.write_before(reads[0], record.value)) order_.wait(point.slot, *write);
  } else if (signals && !writes.empty()) {
    flags_.write(writes[0], point, record.value);
  } else if (!waits && !signals) {
    const Access reading{point, side_of(record, false, record.name)},
        writing{point, side_of(record, true, record.name)};
    if (order_.fixes()) order_.fixes()->apply(reading);
    for (const TraceRange& range : reads) touch(range, reading);
    for (const TraceRange& range : writes) touch(range, writing);
    add_fixes(writes.empty() ? reading : writing);
  }
  order_.end_op(point);
  if (needed_) add_needed(record, point, reads, writes);
  if (signals && !writes.empty()) stalled_.flag_written(writes[0]);
}

void RaceCheck::add_needed(const TraceRecord& record, Clocks::Point point, std::span<const TraceRange> reads,
                           std::span<const TraceRange> writes) {
  const Clocks::Clock& clock = order_.clocks().present(point.slot);
  needed_->add_op(point, clock);
  const bool barrier = record.op == OpKind::kExchange && reads.empty() && writes.empty();
  if (record.opaque || barrier || record.op == OpKind::kWriteValue) needed_->add_opaque(point, clock);
  const auto on_host = [this](const TraceRange& range) { return memory_[range.buffer].on_host; };
  if (std::any_of(reads.begin(), reads.end(), on_host) || std::any_of(writes.begin(), writes.end(), on_host))
    needed_->add_host_visible(point);
}

void RaceCheck::touch(const TraceRange& range, const Access& access, bool at_own_position) {
  const bool by_host = access.point.slot == Clocks::kHostSlot;
  const bool writes = access.side.writes;
  TrackedBuffer& buffer = memory_[range.buffer];
  if (!buffer.contains(range)) return;
  if (writes) flags_.forget(range);
  if (!views_.empty() && !by_host) views_.add_op(buffer, range, access);
  const std::uint64_t first = buffer.begin_of(range);
  const auto compare = [&](const Access& earlier, const TraceRange& where) {
    if (order_.is_ordered(earlier, access, at_own_position)) return;
    unordered_.push_back(earlier);
    add_race(earlier.side, access.side, where, buffer.name);
  };
  buffer.shadow().access(
      first, range.bytes, writes, access,
      [&](std::uint64_t begin, std::uint64_t end, const Shadow::Segment& segment) {
        const TraceRange where{range.buffer, begin - buffer.address, std::min(end, first + range.bytes) - begin};
        if (segment.written) compare(segment.write, where);
        if (!writes) return;
        for (const Access& read : segment.reads) compare(read, where);
      },
      // If this read comes after an earlier read, the earlier one can be dropped: an op that follows this read follows
      // both. With NeededEdges it is kept: a later write also needs the edges that order it after the earlier read.
      [&](const Access& read) {
        return !needed_ && !by_host && order_.clocks().before(read.point, access.point.slot);
      });
}

// The memory is freed, or the program may no longer access it through this buffer. A wrapped buffer is released only
// when all work of the device is done, so no later access can race with it: deletes the history of its bytes.
void RaceCheck::forget(const TraceRange& range) {
  TrackedBuffer* buffer = memory_.find(range.buffer);
  if (!buffer) return;
  if (!buffer->shared) views_.forget(&buffer->own);
  else if (buffer->contains(range)) buffer->shared->forget(buffer->begin_of(range), range.bytes);
  memory_.erase(range.buffer);
}

void RaceCheck::host_touch(const TraceRecord& record, bool writes) {
  TrackedBuffer& buffer = memory_[record.range.buffer];
  if (!buffer.contains(record.range)) return;
  views_.open(buffer, record, writes);
  const Clocks::Point point = order_.begin_host_step();
  TraceRecord by_host = record;
  by_host.stream = 0;
  by_host.position = point.position;
  const Access access{point, side_of(by_host, writes, "the host")};
  if (order_.fixes()) order_.fixes()->apply(access);
  touch(record.range, access);
  add_fixes(access);
  order_.end_host_step();
}

// An op that was issued while the view was open races with the view, unless the host waited for the op before the view
// ended. With such a wait, the host can access the memory before it issues the op and after the wait.
void RaceCheck::end_view(const TraceRecord& record) {
  const std::optional<OpenView> view = views_.close(memory_[record.range.buffer], record);
  if (!view) return;
  RaceSide side{{0, order_.next_host_step(), kOpenView, record.file, record.line, {}}, view->writes};
  std::vector<Access> racing;
  const Clocks& clocks = order_.clocks();
  for (const OpInView& op : view->ops) {
    const Access& access = clocks.before(op.first.point, Clocks::kHostSlot) ? op.last : op.first;
    if (clocks.before(access.point, Clocks::kHostSlot)) continue;
    racing.push_back(access);
    add_race(access.side, side, op.where, memory_[op.where.buffer].name);
  }
  if (racing.empty()) return end_clean_view(record, view->writes);
  order_.require_fixes().end_view(side, racing);
}

// A view ended without a race: its end counts as an access of the host. is_ordered() tells NeededEdges that the host's
// waits since the begin of the view were needed. The begin was checked against earlier ops in host_touch().
void RaceCheck::end_clean_view(const TraceRecord& record, bool writes) {
  const Clocks::Point point = order_.begin_host_step();
  const Access access{point, {{0, point.position, kOpenView, record.file, record.line, {}}, writes}};
  TrackedBuffer& buffer = memory_[record.range.buffer];
  buffer.shadow().access(
      buffer.begin_of(record.range), record.range.bytes, writes, access,
      [&](std::uint64_t, std::uint64_t, const Shadow::Segment& segment) {
        if (segment.written) static_cast<void>(order_.is_ordered(segment.write, access, true));
        if (!writes) return;
        for (const Access& read : segment.reads) static_cast<void>(order_.is_ordered(read, access, true));
      },
      [](const Access&) { return false; });
  order_.end_host_step();
}

RaceReport RaceCheck::report() {
  stalled_.finish();
  RaceReport report;
  report.races = races_;
  if (order_.fixes()) report.fixes = order_.fixes()->fixes();
  report.fixes_needed = report.fixes.size() <= 1;
  report.ops = ops_;
  report.opaque = opaque_;
  return report;
}

}  // namespace slip::watch
