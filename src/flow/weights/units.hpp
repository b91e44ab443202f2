// Which weights lie and are loaded together.
#pragma once

#include <vector>

#include "slip/weights.hpp"

namespace slip {

// Alignment of everything in device memory: enough for any kernel, and for a fast copy.
inline constexpr std::uint64_t kAlignment = 256;
constexpr std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// A large weight has some bytes behind it in the ring: so many that a direct read, which wants the same place in a page
// as in the file, can put it there without another copy, with whole pages around it.
inline constexpr std::uint64_t kLargePart = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kLandingRoom = 3 * 4096;

// In the order of their first use. Small weights join a neighbour (GraphOptions::join_bytes).
std::vector<WeightUnit> make_units(const Graph& graph);

// The loads of one step if all units were streamed, in the order of use; their places in the ring are not set.
std::vector<WeightLoad> make_loads(const std::vector<WeightUnit>& units);

// Where the bytes of a weight lie in a unit; null: not in this one.
const WeightUnit::Part* part_of(const WeightUnit& unit, const ValueBytes& bytes);

}  // namespace slip
