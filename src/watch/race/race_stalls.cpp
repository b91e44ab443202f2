// Streams that stand still for a word (see RaceCheck::Stall).
#include <utility>

#include "watch/race/deadlock.hpp"
#include "watch/race/race_check.hpp"

namespace slip {

bool RaceCheck::stands_still(const TraceRecord& record, std::span<const TraceRange> reads) {
  if (record.kind == RecordKind::kSync || record.kind == RecordKind::kQuery) {
    go_on_with(record);
    return false;
  }
  if (record.stream == 0) return false;
  if (stalls_.contains(record.stream)) return true;
  if (record.kind == RecordKind::kSubmit && record.op == OpKind::kWaitValue && !reads.empty() &&
      !words_.is_written(reads[0], record.value)) {
    stalls_[record.stream] = {.word = reads[0], .value = record.value, .late = {}};
    return true;
  }
  if (record.kind != RecordKind::kEventWait && record.kind != RecordKind::kBarrier) return false;
  if (!stalls_.contains(record.other_stream) || is_past(other_of(record))) return false;
  stalls_[record.stream] = {.word = {}, .stream = record.other_stream, .position = record.other_position, .late = {}};
  return true;
}

void RaceCheck::put_off(const TraceRecord& record, std::span<const TraceRange> reads,
                        std::span<const TraceRange> writes) {
  const auto keep = [](std::shared_ptr<const Clocks::Clock>& kept, const Clocks::Clock& present) {
    if (!kept || *kept != present) kept = std::make_shared<const Clocks::Clock>(present);
  };
  keep(host_now_.known, clocks_.host());
  if (mending_) keep(host_now_.mended, mending_->clocks.host());
  host_now_.steps = host_steps_;
  stalls_[record.stream].late.push_back({record,
                                         {reads.begin(), reads.end()},
                                         {writes.begin(), writes.end()},
                                         host_then_.known ? host_then_ : host_now_,
                                         needs_ ? needs_->record : 0});
}

// What the stream stood still for has happened. Its records are looked at as of then; one of them may make it stand
// still again, and then the rest is put off again.
void RaceCheck::go_on(std::uint64_t stream) {
  const auto stall = stalls_.find(stream);
  std::deque<Late> late = std::move(stall->second.late);
  stalls_.erase(stall);
  const HostThen then = host_then_;
  const std::uint32_t now = needs_ ? needs_->record : 0;
  for (std::size_t i = 0; i < late.size(); ++i) {
    host_then_ = late[i].host;
    if (needs_) needs_->record = late[i].needs_record;
    if (i == 0) perform(late[i].record, late[i].reads, late[i].writes);
    else step(late[i].record, late[i].reads, late[i].writes);
  }
  host_then_ = then;
  if (needs_) needs_->record = now;
  // Those that stood still for a point of this stream.
  for (auto other = stalls_.begin(); other != stalls_.end();) {
    const Stall& waiting = other->second;
    const bool reached = waiting.word.bytes == 0 && waiting.stream == stream &&
                         (!stalls_.contains(stream) || is_past(point_of(stream, waiting.position)));
    if (!reached) {
      ++other;
      continue;
    }
    go_on(other->first);
    other = stalls_.begin();  // more may have gone on with it
  }
}

// The host saw that a stream, or all of a device, is done: the word was written by somebody whom nobody told us of.
void RaceCheck::go_on_with(const TraceRecord& sync) {
  std::vector<std::uint64_t> streams;
  for (const auto& [stream, stall] : stalls_) {
    if (sync.whole_device ? stall.late.front().record.device == sync.device : stream == sync.other_stream)
      streams.push_back(stream);
  }
  for (const std::uint64_t stream : streams) {
    // Each time a record at least goes through, so it ends.
    while (stalls_.contains(stream) && (sync.whole_device || !is_past(other_of(sync)))) go_on(origin_of_stall(stream));
  }
}

// Whom a stream stands still for in the end. A circle cannot have been synchronised, but a file may say so.
std::uint64_t RaceCheck::origin_of_stall(std::uint64_t stream) const {
  for (std::size_t most = stalls_.size(); most > 0; --most) {
    const Stall& stall = stalls_.at(stream);
    if (stall.word.bytes > 0 || !stalls_.contains(stall.stream)) break;
    stream = stall.stream;
  }
  return stream;
}

void RaceCheck::go_on_after(const TraceRange& word) {
  for (auto stall = stalls_.begin(); stall != stalls_.end();) {
    const TraceRange& awaited = stall->second.word;
    if (awaited.bytes == 0 || awaited.buffer != word.buffer || awaited.offset != word.offset ||
        !words_.is_written(awaited, stall->second.value)) {
      ++stall;
      continue;
    }
    go_on(stall->first);
    stall = stalls_.begin();
  }
}

}  // namespace slip
