// StreamedGroups: uses of weight groups by a program, in any order. WeightStreamer calls it, and so does the proof of a
// pass, on a simulated device.
//
// The memory is [resident groups | ring]. An acquired group keeps its place until its use has ended. After construction
// nothing is allocated. One thread at a time.
#pragma once

#include <array>
#include <vector>

#include "flow/weights/group_catalog.hpp"
#include "flow/weights/ring_loads.hpp"
#include "flow/weights/streamed_pass.hpp"

namespace slip::flow {

// Measures how long streams wait, without a wait of the host: timed events before and after the wait, read later. If
// all events are in use, a wait is not measured.
class StallClock {
 public:
  explicit StallClock(StreamRef stream);  // records each event once and waits, so that nothing is allocated later
  // `wait` makes `stream` wait.
  template <class Wait>
  void measure(StreamRef stream, const Wait& wait) {
    Span* const span = free_span();
    if (span) stream.record(span->before);
    wait();
    if (!span) return;
    stream.record(span->after);
    span->pending = true;
  }
  Picos total() {  // of the waits that have ended
    collect();
    return total_;
  }

 private:
  struct Span {
    TimedEvent before, after;
    bool pending = false;
  };
  Span* free_span();
  void collect();

  std::array<Span, 32> spans_;
  Picos total_ = 0;
};

class StreamedGroups {
 public:
  static constexpr std::size_t kMaxOpen = 256;  // uses that have not ended

  StreamedGroups(const Device& device, const GroupCatalog& catalog, const StreamerMemory& sizes, Range memory,
                 GroupLoader& loader);

  // Begins a step. Uses that have not ended end here: returns their number.
  std::size_t begin(PassTable& pass, PassTable& after);
  void forget_plan() { loads_.forget_plan(); }

  struct Acquired {
    Range range;
    std::uint32_t planned = kNoOp;  // as in RingLoads::Use
    std::uint32_t skipped = 0;
  };
  // `use` is the caller's number of this use; release() returns it.
  Acquired acquire(std::uint32_t group, std::uint32_t use, StreamRef stream, Here here);
  std::uint32_t release(std::uint32_t group, StreamRef stream, Here here);

  StreamRef stream() const { return loads_.stream(); }
  const Event& last_load() const { return loads_.last_load(); }
  const LoadCounts& counts() const { return loads_.counts(); }
  bool has_open_uses() const { return !open_.empty(); }
  Picos stalled() { return stalls_.total(); }

 private:
  struct OpenUse {
    std::uint32_t group = 0;
    std::uint32_t use = 0;
    RingEntry* entry = nullptr;  // null: the group is resident
    StreamRef stream;
  };
  void check_stream(StreamRef stream, Here here) const;
  [[noreturn]] void no_place(std::uint32_t group, Here here) const;

  const Device device_;
  const GroupCatalog& catalog_;
  const StreamerMemory sizes_;
  const Range memory_;
  RingLoads loads_;
  StallClock stalls_;
  std::vector<OpenUse> open_;
};

}  // namespace slip::flow
