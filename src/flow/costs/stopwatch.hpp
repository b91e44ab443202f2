// Stopwatch: how long work takes on a device, by its own clock. Work is issued behind a closed gate, so that the host's
// calls do not count, and in batches, of which the median counts. One thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "slip/device.hpp"

namespace slip {

class Stopwatch {
 public:
  // Issues one piece of work, the `index`-th of its batch.
  using Issue = std::function<void(StreamRef stream, int index)>;
  struct Work {
    const Issue& issue;
    Picos time;  // of one piece, alone
  };

  explicit Stopwatch(const Device& device);

  // Of one piece, after a warm-up; never 0. Throws the work's error.
  Picos time(const Issue& issue);
  // Of one piece of `main` while pieces of `beside` run in another stream.
  Picos time_beside(const Work& main, const Work& beside);

 private:
  class Gate;
  Picos batch(const Issue& issue, int count);
  Picos batch_beside(const Issue& main, int main_count, const Issue& beside, int beside_count);

  Device device_;
  int room_;     // pieces that a gate may hold back
  Buffer word_;  // what the gate waits for
  std::uint32_t round_ = 0;
  Stream main_, beside_;
};

// HostRing: pinned memory to measure copies with, one place after the other, as real data comes. A single place would
// stay in the processor's caches, and memory never written would be one page of zeros.

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

}  // namespace slip
