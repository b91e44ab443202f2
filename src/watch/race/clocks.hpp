// Clocks: what happens before what, as far as streams, events, barriers and the host's waits say.
//
// Each stream has a vector clock: for every other stream the position up to which that one's work is done before this
// stream's next op. A wait joins the clock that the other stream had at the point waited for, so the clocks of the past
// are kept, as versions: a clock changes only when the stream waits, not with each op. The host is one more clock,
// shared by all its threads: that they are in order among themselves is another tool's question.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

namespace slip {

class Clocks {
 public:
  static constexpr std::uint32_t kHostSlot = 0;  // stream 0 is the host
  Clocks() { life(0); }

  // A point in a stream's life. Slots are small numbers for streams.
  struct Point {
    std::uint32_t slot = 0;
    std::uint64_t position = 0;
  };
  using Clock = std::vector<std::uint64_t>;  // positions by slot; shorter means zero

  // Where a stream's positions lie: a slot serves one stream after the other, if the host saw the end of each before
  // the next one came, and so serves programs that open a stream for every request.
  struct Life {
    std::uint32_t slot = 0;
    std::uint64_t base = 0;
    Point at(std::uint64_t position) const { return {slot, base + position}; }
  };
  Life life(std::uint64_t stream);                        // made when it is not known yet
  Life life(std::uint64_t stream, std::uint32_t device);  // the same, in a slot of a closed stream if there is one
  std::size_t slots() const { return streams_.size(); }
  void take(std::uint64_t stream, const Life& life);  // as other clocks have it
  void close(std::uint64_t stream, std::uint32_t device);

  // The next op of the stream ends at `position`; it comes after everything the host has waited for so far.
  void submit(std::uint32_t slot, std::uint64_t position);
  // The same for an op that was issued when the host knew less: `host` is what it knew.
  void submit(std::uint32_t slot, std::uint64_t position, const Clock& host);
  // Later ops of the stream come after the point. False: they did already.
  bool wait(std::uint32_t slot, Point point);
  // The host waited for the point. False: it had before.
  bool host_wait(Point point);
  // The host waited for the whole stream: its last op, and the waits behind that op.
  void host_wait_all(std::uint32_t slot);

  // The host did something at this point of its own.
  void host_came(std::uint64_t position);

  // Whether an op that came after the one point (which must still be remembered) comes after the other one, too.
  bool reaches(Point point, Point earlier) const {
    return point.slot == earlier.slot ? point.position >= earlier.position
                                      : at(*clock_at(point), earlier.slot) >= earlier.position;
  }
  // Whether the point is done before the next op of the stream, or before the host's next step.
  bool before(Point point, std::uint32_t slot) const;
  bool before_host(Point point) const;

  // What the op that ends at the point comes after; what the stream's next op comes after, and the host's next step.
  const std::shared_ptr<const Clock>& clock_at(Point point) const;
  const Clock& present(std::uint32_t slot) const { return *present_clock(slot); }
  const std::shared_ptr<const Clock>& present_clock(std::uint32_t slot) const {
    return streams_[slot].versions.back().clock;
  }
  const Clock& host() const { return host_; }
  std::uint64_t end(std::uint32_t slot) const { return streams_[slot].end; }

 private:
  struct Version {
    std::uint64_t from = 0;  // holds for ops that end after this position
    std::shared_ptr<const Clock> clock;
  };
  struct Stream {
    std::uint64_t end = 0;          // of the op submitted last
    std::uint64_t host_joined = 0;  // version of the host's clock that it has
    std::deque<Version> versions;   // the last one is the present
  };

  static std::uint64_t at(const Clock& clock, std::uint32_t slot) { return slot < clock.size() ? clock[slot] : 0; }
  static bool covers(const Clock& clock, const Clock& other);
  static void raise(Clock& clock, std::uint32_t slot, std::uint64_t position);
  static void join(Clock& clock, const Clock& other);
  void set_present(Stream& stream, Clock clock);
  void reach_mark(Point point);

  void begin_life(std::uint64_t stream, const Life& life);

  struct Closed {
    std::uint32_t slot, device;
  };
  std::unordered_map<std::uint64_t, Life> lives_;  // by stream
  std::deque<Closed> closed_;
  std::vector<Stream> streams_;
  Clock host_;
  std::uint64_t host_version_ = 1;
  std::size_t entries_ = 0;  // of all versions
};

}  // namespace slip
