// Finds departed ranks for which a call of NCCL waits for ever. A rank leaves only after its own calls have ended, and
// it may leave while other ranks still wait for each other in the same call. NCCL does not report for which ranks it
// waits.
//
// A replayed CUDA graph makes its calls again under the same numbers. A rank that leaves before the last launch is
// found by the deadline only.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "comm/api/call.hpp"

namespace slip::comm {

// How many collective calls a departed rank had made; none: the rank has not left.
using DepartedCalls = std::function<std::optional<std::uint64_t>(int rank)>;

// The ranks for which the call may wait: `others` without those that left after they had made the call. Of messages,
// all `others`: it is not known which messages have arrived.
std::vector<int> awaited_ranks(const Signature& call, std::vector<int> others, const DepartedCalls& departed);

// A departed rank for which the call waits for ever, if there is one. A collective waits for each awaited rank.
// Messages wait for ever only if all awaited ranks have left: as long as one has not, they may wait for that rank.
std::optional<int> find_departed(const Signature& call, std::span<const int> awaited, const DepartedCalls& departed);

}  // namespace slip::comm
