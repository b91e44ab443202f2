// Clocks: the happens-before order of a program's work, as far as streams, events, barriers and the host's waits
// establish it. The race checker queries it for each pair of conflicting accesses.
//
// Each stream has a vector clock: for every other stream, the position up to which that stream's work is done before
// this stream's next op. A wait joins the clock that the other stream had at the awaited point. Therefore old clocks
// are kept, as versions. A clock changes only when its stream waits, not with each op. The host is one more clock,
// which all its threads share: for the order among host threads, use a thread sanitizer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

namespace slip::watch {

class Clocks {
 public:
  static constexpr std::uint32_t kHostSlot = 0;  // stream 0 is the host
  Clocks() { slot_of(0); }

  // A point of a stream's work. A slot is the index of a stream in the clocks.
  struct Point {
    std::uint32_t slot = 0;
    std::uint64_t position = 0;
  };
  using Clock = std::vector<std::uint64_t>;  // positions by slot; a slot beyond its end has position 0
  static std::uint64_t position_in(const Clock& clock, std::uint32_t slot) {
    return slot < clock.size() ? clock[slot] : 0;
  }

  // The mapping from a stream's positions to its slot: position p of the stream is position base + p of the slot. A new
  // stream reuses the slot of a closed one if the host has waited for the end of the closed one. Otherwise a program
  // that opens a stream for every request would make the clocks grow forever.
  struct StreamSlot {
    std::uint32_t slot = 0;
    std::uint64_t base = 0;
    Point at(std::uint64_t position) const { return {slot, base + position}; }
  };
  StreamSlot slot_of(std::uint64_t stream);  // a new slot if the stream is not known yet
  // The same, but an unknown stream may reuse the slot of a closed stream of its device.
  StreamSlot slot_of(std::uint64_t stream, std::uint32_t device);
  std::size_t slots() const { return streams_.size(); }
  void adopt(std::uint64_t stream, const StreamSlot& slot) {  // uses the slot that another Clocks object chose
    if (!slots_.contains(stream)) open(stream, slot);
  }
  void close(std::uint64_t stream, std::uint32_t device) {
    const auto known = slots_.find(stream);
    if (known != slots_.end()) closed_.push_back({known->second.slot, device});
  }

  // The stream's next op ends at `position`. It comes after everything that the host has waited for so far.
  void submit(std::uint32_t slot, std::uint64_t position);
  // The same for an op that was issued earlier; `host` is the host's clock at that time.
  void submit(std::uint32_t slot, std::uint64_t position, const Clock& host);
  // Orders later ops of the stream after the point. False: they were already ordered.
  bool wait(std::uint32_t slot, Point point);
  // The host waited for the point.
  void host_wait(Point point) {
    extend_to(point);
    join_into_host(point, *clock_at(point));
  }
  // The host waited for the whole stream: its last op, and the waits after that op.
  void host_wait_all(std::uint32_t slot) { join_into_host({slot, end(slot)}, present(slot)); }

  // The host accessed memory, as its step number `position`. Work issued from now on comes after this access.
  void host_step(std::uint64_t position) {
    streams_[kHostSlot].end = position;
    host_wait({kHostSlot, position});
  }

  // Whether an op that comes after `point` also comes after `earlier`. REQUIRES: the clock at `point` is still kept.
  bool reaches(Point point, Point earlier) const {
    return point.slot == earlier.slot ? point.position >= earlier.position
                                      : position_in(*clock_at(point), earlier.slot) >= earlier.position;
  }
  // Whether the point is done before the next op of the stream, or before the next step if the slot is the host's.
  bool before(Point point, std::uint32_t slot) const {
    return point.slot == slot || position_in(slot == kHostSlot ? host_ : present(slot), point.slot) >= point.position;
  }

  // The clocks of the op that ends at the point, of the stream's next op, and of the host's next step.
  const std::shared_ptr<const Clock>& clock_at(Point point) const;
  const Clock& present(std::uint32_t slot) const { return *present_clock(slot); }
  const std::shared_ptr<const Clock>& present_clock(std::uint32_t slot) const {
    return streams_[slot].versions.back().clock;
  }
  const Clock& host() const { return host_; }
  std::uint64_t end(std::uint32_t slot) const { return streams_[slot].end; }

 private:
  struct Version {
    std::uint64_t from = 0;  // the clock holds for ops that end after this position
    std::shared_ptr<const Clock> clock;
  };
  struct StreamClock {
    std::uint64_t end = 0;          // position of the op submitted last
    std::uint64_t host_joined = 0;  // version of the host's clock that is joined into this one
    std::deque<Version> versions;   // the last one is the current clock
  };

  void set_present(StreamClock& stream, Clock clock);
  void join_host(StreamClock& stream, const Clock& host);
  void join_into_host(Point point, const Clock& other);
  // The awaited point may be after the last op, if the program recorded an event there.
  void extend_to(Point point) { streams_[point.slot].end = std::max(streams_[point.slot].end, point.position); }
  void open(std::uint64_t stream, const StreamSlot& slot);

  struct ClosedSlot {
    std::uint32_t slot, device;
  };
  std::unordered_map<std::uint64_t, StreamSlot> slots_;  // by stream
  std::deque<ClosedSlot> closed_;
  std::vector<StreamClock> streams_;  // by slot
  Clock host_;
  std::uint64_t host_version_ = 1;
  std::size_t entries_ = 0;  // number of clock entries in all versions
};

}  // namespace slip::watch
