// Whether things that are there at the same time lie on the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

namespace slip {

struct Placed {
  std::uint32_t first = 0, last = 0;  // ops at which it is there
  std::uint64_t offset = 0, bytes = 0;
};

// Two of them that are there at the same op and share bytes, if there are such; the first of the pair comes first.
// O(n log n).
std::optional<std::pair<std::size_t, std::size_t>> find_overlap(std::span<const Placed> all);

}  // namespace slip
