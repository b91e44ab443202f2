#include "watch/race/stalled_streams.hpp"

#include <algorithm>

#include "runtime/backend.hpp"

namespace slip::watch {
namespace {
// Maximum number of kept writes of one flag. A wait for an older value counts as ordered after the oldest kept write.
constexpr std::size_t kMaxWrites = 1024;
}  // namespace

void FlagWrites::write(const TraceRange& flag, Clocks::Point point, std::uint32_t value) {
  std::vector<Write>& writes = flags_[{flag.buffer, flag.offset}];
  // A lower value restarts the count: drop the higher values that the same stream wrote before.
  std::erase_if(writes, [&](const Write& write) {
    return write.point.slot == point.slot && write.value != value && runtime::ends_wait(write.value, value);
  });
  if (writes.size() >= kMaxWrites) writes.erase(writes.begin(), writes.begin() + kMaxWrites / 2);
  writes.push_back({point, value});
}

void FlagWrites::forget(const TraceRange& range) {
  if (flags_.empty()) return;
  const auto first = flags_.lower_bound({range.buffer, range.offset});
  const auto last = flags_.lower_bound({range.buffer, range.offset + range.bytes});
  flags_.erase(first, last);
}

bool FlagWrites::is_written(const TraceRange& flag, std::uint32_t value) const {
  const std::vector<Write>* writes = writes_of(flag);
  return writes && std::any_of(writes->begin(), writes->end(),
                               [&](const Write& write) { return runtime::ends_wait(write.value, value); });
}

std::optional<Clocks::Point> FlagWrites::write_before(const TraceRange& flag, std::uint32_t value) const {
  std::optional<Clocks::Point> result;
  const std::vector<Write>* writes = writes_of(flag);
  if (!writes) return result;
  for (const Write& write : *writes) {
    if (!runtime::ends_wait(write.value, value)) continue;
    if (!result) result = write.point;
    else if (result->slot != write.point.slot) return std::nullopt;
  }
  return result;
}

bool StalledStreams::must_defer(const TraceRecord& record, std::span<const TraceRange> reads) {
  if (record.kind == RecordKind::kSync || record.kind == RecordKind::kQuery) {
    resume_synced(record);
    return false;
  }
  if (record.stream == 0) return false;
  if (stalls_.contains(record.stream)) return true;
  if (record.kind == RecordKind::kSubmit && record.op == OpKind::kWaitValue && !reads.empty() &&
      !flags_.is_written(reads[0], record.value)) {
    stall(record.stream, {.flag = reads[0], .value = record.value, .deferred = {}});
    return true;
  }
  if (record.kind != RecordKind::kEventWait && record.kind != RecordKind::kBarrier) return false;
  if (!stalls_.contains(record.other_stream) || order_.is_past(order_.awaited_by(record))) return false;
  stall(record.stream, {.flag = {}, .stream = record.other_stream, .position = record.other_position, .deferred = {}});
  return true;
}

void StalledStreams::stall(std::uint64_t stream, const StallState& what) {
  stalls_[stream] = what;
  if (what.flag.bytes > 0) by_flag_.insert({{what.flag.buffer, what.flag.offset}, stream});
  else by_point_.insert({what.stream, stream});
}

std::deque<StalledStreams::Deferred> StalledStreams::end_stall(std::uint64_t stream) {
  const auto found = stalls_.find(stream);
  const StallState& what = found->second;
  if (what.flag.bytes > 0) by_flag_.erase({{what.flag.buffer, what.flag.offset}, stream});
  else by_point_.erase({what.stream, stream});
  std::deque<Deferred> deferred = std::move(found->second.deferred);
  stalls_.erase(found);
  return deferred;
}

void StalledStreams::store(const TraceRecord& record, std::span<const TraceRange> reads,
                           std::span<const TraceRange> writes) {
  stalls_[record.stream].deferred.push_back({record,
                                             {reads.begin(), reads.end()},
                                             {writes.begin(), writes.end()},
                                             order_.host_state(),
                                             needed_ ? needed_->current_record : 0});
}

// The event that the stream stalled for has happened: performs its records with the host state of their issue. If one
// of them stalls the stream again, the rest is deferred again.
void StalledStreams::resume(std::uint64_t stream) {
  std::deque<Deferred> deferred = end_stall(stream);
  const std::uint32_t current = needed_ ? needed_->current_record : 0;
  ProgramOrder::HostState outer = order_.issue_with({});
  for (std::size_t i = 0; i < deferred.size(); ++i) {
    const Deferred& next = deferred[i];
    order_.issue_with(next.host);
    if (needed_) needed_->current_record = next.trace_index;
    if (i > 0 && must_defer(next.record, next.reads)) {  // and all after it, which are not copied: there may be many
      deferred.erase(deferred.begin(), deferred.begin() + static_cast<std::ptrdiff_t>(i));
      stalls_.at(stream).deferred = std::move(deferred);
      break;
    }
    perform_(next.record, next.reads, next.writes);
  }
  order_.issue_with(std::move(outer));
  if (needed_) needed_->current_record = current;
  // Resume the streams that stalled for a point of this stream.
  const auto first = [&] { return by_point_.lower_bound({stream, 0}); };
  for (auto other = first(); other != by_point_.end() && other->first == stream;) {
    const std::uint64_t position = stalls_.at(other->second).position;
    if (stalls_.contains(stream) && !order_.is_past(order_.point_of(stream, position))) {
      ++other;
      continue;
    }
    resume(other->second);
    other = first();  // other streams may have resumed with it
  }
}

// The host waited for a stream, or for a whole device. So the flag has been written, by work that the program did not
// declare.
void StalledStreams::resume_synced(const TraceRecord& sync) {
  std::vector<std::uint64_t> streams;
  for (const auto& [stream, stall] : stalls_) {
    if (sync.whole_device ? stall.deferred.front().record.device == sync.device : stream == sync.other_stream)
      streams.push_back(stream);
  }
  for (const std::uint64_t stream : streams) {
    // Each round performs at least one record, so the loop ends.
    while (stalls_.contains(stream) && (sync.whole_device || !order_.is_past(order_.awaited_by(sync))))
      resume(root_of(stream));
  }
}

// Follows the stalls to the stream that blocks all others. A cycle cannot have been synchronized, but a damaged file
// may contain one.
std::uint64_t StalledStreams::root_of(std::uint64_t stream) const {
  for (std::size_t tries = stalls_.size(); tries > 0; --tries) {
    const StallState& stall = stalls_.at(stream);
    if (stall.flag.bytes > 0 || !stalls_.contains(stall.stream)) break;
    stream = stall.stream;
  }
  return stream;
}

void StalledStreams::flag_written(const TraceRange& flag) {
  const FlagAddress address{flag.buffer, flag.offset};
  const auto first = [&] { return by_flag_.lower_bound({address, 0}); };
  for (auto stalled = first(); stalled != by_flag_.end() && stalled->first == address;) {
    const StallState& what = stalls_.at(stalled->second);
    if (!flags_.is_written(what.flag, what.value)) {
      ++stalled;
      continue;
    }
    resume(stalled->second);
    stalled = first();  // other streams may have resumed with it
  }
}

}  // namespace slip::watch
