#include "comm/plan/overlaps.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/core.hpp"

namespace slip {
namespace {

std::string text_of(const Range& range) {
  return fmt::format("bytes {} to {} of buffer '{}'", range.offset, range.offset + range.bytes,
                     range.block->name.text());
}

[[noreturn]] void refuse(const Range& received, const Range& other, const char* what, Here here) {
  throw Error(Code::kInvalidValue,
              fmt::format("a group receives {} and {} {}: its messages travel at the same time, so give each its own "
                          "bytes, or use two groups",
                          text_of(received), what, text_of(other)),
              here);
}

}  // namespace

bool overlap(const Range& a, const Range& b) {
  return address(a) < address(b) + b.bytes && address(b) < address(a) + a.bytes;
}

void require_apart(std::span<const Range> sent, std::span<const Range> received, std::vector<Range>& sorted,
                   Here here) {
  if (received.empty()) return;
  const auto by_address = [](const Range& a, const Range& b) { return address(a) < address(b); };
  sorted.assign(received.begin(), received.end());
  std::sort(sorted.begin(), sorted.end(), by_address);
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    if (overlap(sorted[i - 1], sorted[i])) refuse(sorted[i], sorted[i - 1], "also", here);
  }
  for (const Range& range : sent) {  // those received are apart, so only two of them can be next to where it begins
    const auto after = std::upper_bound(sorted.begin(), sorted.end(), range, by_address);
    if (after != sorted.end() && overlap(*after, range)) refuse(*after, range, "sends", here);
    if (after != sorted.begin() && overlap(*std::prev(after), range)) refuse(*std::prev(after), range, "sends", here);
  }
}

}  // namespace slip
