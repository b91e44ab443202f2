// Stopwatch: measures how long work takes, by the device's clock. The host issues a batch of work behind a gate, a
// value that the stream waits for. Then it opens the gate. So the time of the host's calls does not count. The result
// is the median of several batches. One thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "slip/device.hpp"

namespace slip::flow {

class Stopwatch {
 public:
  // Issues one piece of work, number `index` of its batch.
  using Issue = std::function<void(StreamRef stream, int index)>;
  struct Work {
    const Issue& issue;
    Picos time;  // of one piece, alone
  };

  explicit Stopwatch(const Device& device);

  // The time of one piece, after a warm-up; never 0. Throws the work's error.
  Picos time(const Issue& issue);
  // The time of one piece of `main` while pieces of `beside` run in another stream.
  Picos time_beside(const Work& main, const Work& beside);

 private:
  class Gate;
  Picos batch(const Issue& main, int count, const Issue* beside = nullptr, int beside_count = 0);

  Device device_;
  int room_;           // pieces that may be queued behind a gate
  Buffer gate_value_;  // a 32-bit counter: the gate of round n opens when it is n
  std::uint32_t round_ = 0;
  Stream main_, beside_;
};

// HostRing: pinned memory for measuring copies, used piece by piece in a cycle. A single piece would stay in the
// processor's caches, and memory that was never written would be one shared page of zeros.
class HostRing {
 public:
  static constexpr std::uint64_t kEnough = std::uint64_t{64} << 20;  // larger than most caches

  HostRing(const Device& device, std::uint64_t bytes, Here here)
      : memory_(device.alloc(bytes, MemoryKind::kPinned, "host ring", here)) {
    const HostView<std::byte> view = memory_.host_write<std::byte>(here);
    std::fill(view.begin(), view.end(), std::byte{1});
  }

  Range next(std::uint64_t bytes) {
    if (at_ + bytes > memory_.bytes()) at_ = 0;
    const Range place = memory_.slice(at_, bytes);
    at_ += bytes;
    return place;
  }

 private:
  Buffer memory_;
  std::uint64_t at_ = 0;
};

}  // namespace slip::flow
