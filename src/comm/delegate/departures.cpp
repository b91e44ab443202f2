#include "comm/delegate/departures.hpp"

#include <algorithm>
#include <utility>

namespace slip::comm {

std::vector<int> awaited_ranks(const Signature& call, std::vector<int> others, const DepartedCalls& departed) {
  if (call.kind() == Collective::kMessage) return others;
  std::erase_if(others, [&](int rank) {
    const std::optional<std::uint64_t> calls = departed(rank);
    // The difference as a signed number, because call numbers wrap around after 2^32.
    return calls && static_cast<std::int32_t>(static_cast<std::uint32_t>(*calls) - call.number()) >= 0;
  });
  return others;
}

std::optional<int> find_departed(const Signature& call, std::span<const int> awaited, const DepartedCalls& departed) {
  const auto has_left = [&](int rank) { return departed(rank).has_value(); };
  const auto found = std::find_if(awaited.begin(), awaited.end(), has_left);
  if (found == awaited.end()) return std::nullopt;
  if (call.kind() == Collective::kMessage && !std::all_of(awaited.begin(), awaited.end(), has_left))
    return std::nullopt;
  return *found;
}

}  // namespace slip::comm
