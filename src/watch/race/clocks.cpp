#include "watch/race/clocks.hpp"

#include <algorithm>

namespace slip {
namespace {
// Versions of a stream's clock that are kept. A wait for a point older than these many waits orders the point alone,
// not what the point came after: that can show as a race that is none, and never hides one.
constexpr std::size_t kVersions = 4096;
// Numbers in all versions together, 256 MiB: thousands of streams that are alive at once keep less of their past.
constexpr std::size_t kEntries = std::size_t{1} << 25;
}  // namespace

Clocks::Life Clocks::life(std::uint64_t stream) {
  const auto known = lives_.find(stream);
  if (known != lives_.end()) return known->second;
  const Life fresh{static_cast<std::uint32_t>(streams_.size()), 0};
  begin_life(stream, fresh);
  return fresh;
}

Clocks::Life Clocks::life(std::uint64_t stream, std::uint32_t device) {
  constexpr std::size_t kTries = 8;  // who closes streams without waiting for them has them all here
  if (!closed_.empty() && !lives_.contains(stream)) {
    for (std::size_t i = 0; i < std::min(kTries, closed_.size()); ++i) {
      const Closed slot = closed_.front();
      closed_.pop_front();
      if (slot.device == device && at(host_, slot.slot) >= streams_[slot.slot].end) {
        const Life again{slot.slot, streams_[slot.slot].end};
        begin_life(stream, again);
        return again;
      }
      closed_.push_back(slot);
    }
  }
  return life(stream);
}

void Clocks::take(std::uint64_t stream, const Life& life) {
  if (!lives_.contains(stream)) begin_life(stream, life);
}

void Clocks::begin_life(std::uint64_t stream, const Life& life) {
  lives_.emplace(stream, life);
  if (streams_.size() <= life.slot) streams_.resize(life.slot + 1);
  Stream& slot = streams_[life.slot];
  if (slot.versions.empty()) slot.versions.push_back({0, std::make_shared<const Clock>()});
  else set_present(slot, host_);  // what the one before waited for last is not its concern
}

void Clocks::close(std::uint64_t stream, std::uint32_t device) {
  const auto known = lives_.find(stream);
  if (known != lives_.end()) closed_.push_back({known->second.slot, device});
}

bool Clocks::covers(const Clock& clock, const Clock& other) {
  for (std::uint32_t i = 0; i < other.size(); ++i) {
    if (at(clock, i) < other[i]) return false;
  }
  return true;
}

void Clocks::raise(Clock& clock, std::uint32_t slot, std::uint64_t position) {
  if (clock.size() <= slot) clock.resize(slot + 1);
  clock[slot] = std::max(clock[slot], position);
}

void Clocks::join(Clock& clock, const Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

// A point at or before the start of the oldest version has no clock of its own: position 0 is the begin of a stream,
// which comes after nothing, and what was before a version that was dropped is not known any more. The oldest version
// itself would be wrong: its waits were called after the point.
const std::shared_ptr<const Clocks::Clock>& Clocks::clock_at(Point point) const {
  static const std::shared_ptr<const Clock> kNothing = std::make_shared<const Clock>();
  const std::deque<Version>& versions = streams_[point.slot].versions;
  const auto later = std::partition_point(versions.begin(), versions.end(),
                                          [&](const Version& version) { return version.from < point.position; });
  return later == versions.begin() ? kNothing : std::prev(later)->clock;
}

void Clocks::set_present(Stream& stream, Clock clock) {
  entries_ += clock.size();
  auto made = std::make_shared<const Clock>(std::move(clock));
  if (stream.versions.back().from == stream.end) {  // no op in between
    entries_ -= stream.versions.back().clock->size();
    stream.versions.back().clock = std::move(made);
  } else {
    stream.versions.push_back({stream.end, std::move(made)});
  }
  while (stream.versions.size() > (entries_ > kEntries ? 1 : kVersions)) {
    entries_ -= stream.versions.front().clock->size();
    stream.versions.pop_front();
  }
}

void Clocks::submit(std::uint32_t slot, std::uint64_t position) {
  Stream& stream = streams_[slot];
  if (stream.host_joined != host_version_) {
    stream.host_joined = host_version_;
    const Clock& present = *stream.versions.back().clock;
    if (!covers(present, host_)) {
      Clock joined = present;
      join(joined, host_);
      set_present(stream, std::move(joined));
    }
  }
  stream.end = std::max(stream.end, position);
}

void Clocks::submit(std::uint32_t slot, std::uint64_t position, const Clock& host) {
  Stream& stream = streams_[slot];
  const Clock& present = *stream.versions.back().clock;
  if (!covers(present, host)) {
    Clock joined = present;
    join(joined, host);
    set_present(stream, std::move(joined));
  }
  stream.end = std::max(stream.end, position);
}

bool Clocks::wait(std::uint32_t slot, Point point) {
  if (point.slot == slot) return false;
  Stream& stream = streams_[slot];
  reach_mark(point);
  const Clock& present = *stream.versions.back().clock;
  const Clock& other = *clock_at(point);
  if (at(present, point.slot) >= point.position && covers(present, other)) return false;
  Clock joined = present;
  join(joined, other);
  raise(joined, point.slot, point.position);
  set_present(stream, std::move(joined));
  return true;
}

// A point waited for may lie behind the last op: a mark that was set for the wait alone.
void Clocks::reach_mark(Point point) { streams_[point.slot].end = std::max(streams_[point.slot].end, point.position); }

bool Clocks::host_wait(Point point) {
  reach_mark(point);
  const Clock& other = *clock_at(point);
  if (at(host_, point.slot) >= point.position && covers(host_, other)) return false;
  join(host_, other);
  raise(host_, point.slot, point.position);
  ++host_version_;
  set_present(streams_[kHostSlot], host_);
  return true;
}

void Clocks::host_wait_all(std::uint32_t slot) {
  const Stream& stream = streams_[slot];
  const Clock& present = *stream.versions.back().clock;
  if (at(host_, slot) >= stream.end && covers(host_, present)) return;
  join(host_, present);
  raise(host_, slot, stream.end);
  ++host_version_;
  set_present(streams_[kHostSlot], host_);
}

// What is issued from now on comes after it.
void Clocks::host_came(std::uint64_t position) {
  streams_[kHostSlot].end = position;
  host_wait({kHostSlot, position});
}

bool Clocks::before(Point point, std::uint32_t slot) const {
  return point.slot == slot || at(*streams_[slot].versions.back().clock, point.slot) >= point.position;
}

bool Clocks::before_host(Point point) const { return at(host_, point.slot) >= point.position; }

}  // namespace slip
