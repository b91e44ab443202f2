#include "watch/race/clocks.hpp"

namespace slip::watch {
namespace {

// Maximum number of kept versions of a stream's clock. If a wait is for a point older than the oldest version, only the
// point itself is ordered, not the work before it. That may report a false race; it never hides one.
constexpr std::size_t kMaxVersions = 4096;
// Maximum number of entries of all versions together, 256 MiB. If thousands of streams are open, they keep fewer
// versions.
constexpr std::size_t kMaxEntries = std::size_t{1} << 25;

bool covers(const Clocks::Clock& clock, const Clocks::Clock& other) {
  for (std::uint32_t i = 0; i < other.size(); ++i) {
    if (Clocks::position_in(clock, i) < other[i]) return false;
  }
  return true;
}

void raise(Clocks::Clock& clock, std::uint32_t slot, std::uint64_t position) {
  if (clock.size() <= slot) clock.resize(slot + 1);
  clock[slot] = std::max(clock[slot], position);
}

void join(Clocks::Clock& clock, const Clocks::Clock& other) {
  if (clock.size() < other.size()) clock.resize(other.size());
  for (std::size_t i = 0; i < other.size(); ++i) clock[i] = std::max(clock[i], other[i]);
}

}  // namespace

Clocks::StreamSlot Clocks::slot_of(std::uint64_t stream) {
  const auto known = slots_.find(stream);
  if (known != slots_.end()) return known->second;
  const StreamSlot fresh{static_cast<std::uint32_t>(streams_.size()), 0};
  open(stream, fresh);
  return fresh;
}

Clocks::StreamSlot Clocks::slot_of(std::uint64_t stream, std::uint32_t device) {
  constexpr std::size_t kMaxTries = 8;  // a program that closes streams without waiting for them makes the list long
  if (!closed_.empty() && !slots_.contains(stream)) {
    for (std::size_t i = 0; i < std::min(kMaxTries, closed_.size()); ++i) {
      const ClosedSlot slot = closed_.front();
      closed_.pop_front();
      if (slot.device == device && position_in(host_, slot.slot) >= streams_[slot.slot].end) {
        const StreamSlot reused{slot.slot, streams_[slot.slot].end};
        open(stream, reused);
        return reused;
      }
      closed_.push_back(slot);
    }
  }
  return slot_of(stream);
}

void Clocks::open(std::uint64_t stream, const StreamSlot& slot) {
  slots_.emplace(stream, slot);
  if (streams_.size() <= slot.slot) streams_.resize(slot.slot + 1);
  StreamClock& opened = streams_[slot.slot];
  if (opened.versions.empty()) opened.versions.push_back({0, std::make_shared<const Clock>()});
  else set_present(opened, host_);  // the last waits of the closed stream do not order this stream
}

// A point at or before the start of the oldest version gets an empty clock. Position 0 is the beginning of a stream,
// which comes after nothing. For other points the versions were dropped, so their clocks are unknown. The oldest
// version itself would be wrong: its waits were called after the point.
const std::shared_ptr<const Clocks::Clock>& Clocks::clock_at(Point point) const {
  static const std::shared_ptr<const Clock> kNothing = std::make_shared<const Clock>();
  const std::deque<Version>& versions = streams_[point.slot].versions;
  constexpr std::ptrdiff_t kRecent = 4;  // most points are recent, so the last versions are tried first
  const auto recent = versions.end() - std::min(kRecent, std::ssize(versions));
  auto later = versions.end();
  while (later != recent && std::prev(later)->from >= point.position) --later;
  if (later == recent) later = std::ranges::lower_bound(versions.begin(), recent, point.position, {}, &Version::from);
  return later == versions.begin() ? kNothing : std::prev(later)->clock;
}

void Clocks::set_present(StreamClock& stream, Clock clock) {
  entries_ += clock.size();
  auto made = std::make_shared<const Clock>(std::move(clock));
  if (stream.versions.back().from == stream.end) {  // no op since the last version
    entries_ -= stream.versions.back().clock->size();
    stream.versions.back().clock = std::move(made);
  } else {
    stream.versions.push_back({stream.end, std::move(made)});
  }
  while (stream.versions.size() > (entries_ > kMaxEntries ? 1 : kMaxVersions)) {
    entries_ -= stream.versions.front().clock->size();
    stream.versions.pop_front();
  }
}

void Clocks::join_host(StreamClock& stream, const Clock& host) {
  const Clock& present = *stream.versions.back().clock;
  if (covers(present, host)) return;
  Clock joined = present;
  join(joined, host);
  set_present(stream, std::move(joined));
}

void Clocks::submit(std::uint32_t slot, std::uint64_t position) {
  StreamClock& stream = streams_[slot];
  if (stream.host_joined != host_version_) {
    stream.host_joined = host_version_;
    join_host(stream, host_);
  }
  stream.end = std::max(stream.end, position);
}

void Clocks::submit(std::uint32_t slot, std::uint64_t position, const Clock& host) {
  join_host(streams_[slot], host);
  streams_[slot].end = std::max(streams_[slot].end, position);
}

bool Clocks::wait(std::uint32_t slot, Point point) {
  if (point.slot == slot) return false;
  StreamClock& stream = streams_[slot];
  extend_to(point);
  const Clock& present = *stream.versions.back().clock;
  const Clock& other = *clock_at(point);
  if (position_in(present, point.slot) >= point.position && covers(present, other)) return false;
  Clock joined = present;
  join(joined, other);
  raise(joined, point.slot, point.position);
  set_present(stream, std::move(joined));
  return true;
}

void Clocks::join_into_host(Point point, const Clock& other) {
  if (position_in(host_, point.slot) >= point.position && covers(host_, other)) return;
  join(host_, other);
  raise(host_, point.slot, point.position);
  ++host_version_;
  set_present(streams_[kHostSlot], host_);
}

}  // namespace slip::watch
