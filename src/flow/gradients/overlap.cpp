#include "flow/gradients/overlap.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <vector>

namespace slip {

std::optional<std::pair<std::size_t, std::size_t>> find_overlap(std::span<const Placed> all) {
  std::vector<std::size_t> begins(all.size());
  std::iota(begins.begin(), begins.end(), std::size_t{0});
  std::erase_if(begins, [&](std::size_t i) { return all[i].bytes == 0 || all[i].last < all[i].first; });
  std::vector<std::size_t> ends = begins;
  std::ranges::stable_sort(begins, {}, [&](std::size_t i) { return all[i].first; });
  std::ranges::sort(ends, {}, [&](std::size_t i) { return all[i].last; });
  // Op by op. What is there at one op is disjoint as long as nothing was found, so a new one can only meet its two
  // neighbours.
  std::map<std::uint64_t, std::size_t> there;  // by offset
  auto over = ends.begin();
  for (const std::size_t i : begins) {
    const Placed& one = all[i];
    for (; over != ends.end() && all[*over].last < one.first; ++over) there.erase(all[*over].offset);
    const auto above = there.lower_bound(one.offset);
    if (above != there.end() && above->first - one.offset < one.bytes) return std::pair(above->second, i);
    if (above != there.begin()) {
      const std::size_t below = std::prev(above)->second;
      if (one.offset - all[below].offset < all[below].bytes) return std::pair(below, i);
    }
    there.emplace(one.offset, i);
  }
  return std::nullopt;
}

}  // namespace slip
