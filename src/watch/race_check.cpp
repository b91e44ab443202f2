#include "watch/race_check.hpp"

#include <algorithm>

namespace slip {
namespace {

constexpr std::size_t kMostRaces = 1000;

RaceSide side_of(const TraceRecord& record, bool writes) {
  return {record.stream, record.position, record.name, record.file, record.line, writes};
}

}  // namespace

std::uint32_t RaceCheck::slot_of(const TraceRecord& record) {
  if (record.stream == last_stream_) return last_slot_;
  const std::uint32_t slot = clocks_.slot(record.stream);
  std::vector<std::uint32_t>& slots = device_slots_[record.device];
  if (std::find(slots.begin(), slots.end(), slot) == slots.end()) slots.push_back(slot);
  last_stream_ = record.stream;
  last_slot_ = slot;
  return slot;
}

void RaceCheck::step(const TraceRecord& record, std::span<const TraceRange> reads, std::span<const TraceRange> writes) {
  switch (record.kind) {
    case RecordKind::kSubmit: return submit(record, reads, writes);
    case RecordKind::kStreamOpen: static_cast<void>(slot_of(record)); return;
    case RecordKind::kEventRecord: return clocks_.submit(slot_of(record), record.position);
    case RecordKind::kEventWait:
    case RecordKind::kBarrier:
      clocks_.wait(slot_of(record), {clocks_.slot(record.other_stream), record.other_position});
      return;
    case RecordKind::kSync:
    case RecordKind::kQuery: return host_wait(record);
    case RecordKind::kHostRead: return host_touch(record, false);
    case RecordKind::kHostWrite: return host_touch(record, true);
    case RecordKind::kHostEnd: {
      // What was issued while the view lived met an access that had not ended.
      const auto open = open_views_.find({record.thread, record.range.buffer, record.range.offset});
      if (open == open_views_.end()) return;
      const bool wrote = open->second;
      open_views_.erase(open);
      return host_touch(record, wrote);
    }
    case RecordKind::kAlloc:
      name_buffer(record.range.buffer, record.name);
      return touch_whole(record, "stream-ordered allocation");
    case RecordKind::kFree:
      touch_whole(record, "stream-ordered free");
      buffers_.erase(record.range.buffer);
      recent_[record.range.buffer % recent_.size()] = {};
      return;
    default: return;
  }
}

// Memory that comes or goes in stream order: like a write of all of it. Other memory is the host's own affair.
void RaceCheck::touch_whole(const TraceRecord& record, std::string_view name) {
  if (record.stream == 0) return;
  const std::uint32_t slot = slot_of(record);
  clocks_.submit(slot, record.position);
  RaceSide side = side_of(record, true);
  side.name = name;
  touch(record.range, {{slot, record.position}, side});
}

void RaceCheck::submit(const TraceRecord& record, std::span<const TraceRange> reads,
                       std::span<const TraceRange> writes) {
  const std::uint32_t slot = slot_of(record);
  clocks_.submit(slot, record.position);
  ++ops_;
  opaque_ += record.opaque;
  if (record.op == OpKind::kWaitValue || record.op == OpKind::kWriteValue) {
    for (const TraceRange& word : record.op == OpKind::kWaitValue ? reads : writes) follow_word(record, slot, word);
    return;
  }
  const Clocks::Point point{slot, record.position};
  for (const TraceRange& range : reads) touch(range, {point, side_of(record, false)});
  for (const TraceRange& range : writes) touch(range, {point, side_of(record, true)});
}

// A stream that waits for a word comes after those that were told to write it, as far as they are known by then.
void RaceCheck::follow_word(const TraceRecord& record, std::uint32_t slot, const TraceRange& word) {
  auto& writers = words_[{word.buffer, word.offset}];
  if (record.op == OpKind::kWriteValue) {
    writers[slot] = record.position;
    return;
  }
  for (const auto& [writer, position] : writers) clocks_.wait(slot, {writer, position});
}

void RaceCheck::touch(const TraceRange& range, const Access& access) {
  const bool by_host = access.point.slot == host_slot_;
  const auto ordered = [&](const Access& earlier) {
    if (by_host) return earlier.point.slot == host_slot_ || clocks_.before_host(earlier.point);
    return clocks_.before(earlier.point, access.point.slot);
  };
  const bool writes = access.side.writes;
  buffer(range.buffer)
      .shadow.access(range.offset, range.bytes, writes, access,
                     [&](std::uint64_t begin, std::uint64_t end, const Shadow::Place& place) {
                       const TraceRange where{range.buffer, begin, std::min(end, range.offset + range.bytes) - begin};
                       if (place.written && !ordered(place.write)) found(place.write, access, where);
                       if (!writes) return;
                       for (const Access& read : place.reads) {
                         if (!ordered(read)) found(read, access, where);
                       }
                     });
}

void RaceCheck::host_touch(const TraceRecord& record, bool writes) {
  if (record.kind != RecordKind::kHostEnd)
    open_views_.emplace(std::tuple(record.thread, record.range.buffer, record.range.offset), writes);
  TraceRecord by_host = record;
  by_host.stream = 0;
  by_host.position = ++host_steps_;
  by_host.name = "the host";
  touch(record.range, {{host_slot_, host_steps_}, side_of(by_host, writes)});
  clocks_.host_wait({host_slot_, host_steps_});  // what is issued from now on comes after it
}

void RaceCheck::host_wait(const TraceRecord& record) {
  if (record.whole_device) {
    clocks_.host_wait_all(device_slots_[record.device]);
    return;
  }
  clocks_.host_wait({clocks_.slot(record.other_stream), record.other_position});
}

void RaceCheck::found(const Access& earlier, const Access& later, const TraceRange& where) {
  const RaceSide& a = earlier.side;
  const RaceSide& b = later.side;
  const std::string_view buffer_name = buffer(where.buffer).name;
  const auto [known, first] =
      known_.emplace(Key{a.file, a.line, a.writes, b.file, b.line, b.writes, buffer_name}, races_.size());
  if (!first) {
    if (known->second < races_.size()) ++races_[known->second].times;
    return;
  }
  if (races_.size() < kMostRaces) races_.push_back({a, b, where.buffer, buffer_name, where.offset, where.bytes, 1});
}

RaceReport RaceCheck::report() const {
  RaceReport report;
  report.races = races_;
  report.ops = ops_;
  report.opaque = opaque_;
  return report;
}

}  // namespace slip
