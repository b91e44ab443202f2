// HostRing: pinned memory to measure copies with, one place after the other, as real data comes. A single place would
// stay in the processor's caches, and memory never written would be one page of zeros.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "slip/device.hpp"

namespace slip {

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
