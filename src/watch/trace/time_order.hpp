// Sorting by time: much of an analysis is putting a million ops in the order of their starts.
#pragma once

#include <cstdint>
#include <vector>

#include "slip/op.hpp"

namespace slip {

struct TimeKey {
  Picos at = 0;
  std::uint32_t index = 0;
};

// Stable. Linear: a radix sort of as many digits as the times differ in.
void sort_by_time(std::vector<TimeKey>& keys);

}  // namespace slip
