// How much a trace file may hold.
#pragma once

#include <cstddef>

namespace slip {

inline constexpr std::size_t kMaxRecords = std::size_t{1} << 27;
inline constexpr std::size_t kMaxRanges = std::size_t{1} << 29;

}  // namespace slip
