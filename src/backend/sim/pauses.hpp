// Pauses: how long a thread sleeps between two looks at something that another thread, or the program itself, must
// change: not at all at first, then longer and longer, up to 200 us.
#pragma once

#include <algorithm>
#include <cstdint>

namespace slip::sim {

class Pauses {
 public:
  static constexpr std::int64_t kMaxNs = 200'000;

  // 0: only yield.
  std::int64_t next_ns() {
    count_ = std::min(count_ + 1, kLast);
    return count_ <= kYields ? 0 : count_ * kStepNs;
  }

 private:
  static constexpr std::int64_t kYields = 8, kStepNs = 5'000;
  static constexpr std::int64_t kLast = kMaxNs / kStepNs;
  std::int64_t count_ = 0;  // pauses so far, no more than kLast: a wait may take days
};

}  // namespace slip::sim
