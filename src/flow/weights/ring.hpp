// Where loads lie in the ring, and what each must wait for.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "flow/weights/units.hpp"

namespace slip {

// What a unit takes of the ring.
constexpr std::uint64_t ring_bytes_of(const WeightUnit& unit) { return aligned(unit.bytes + unit.room); }

// Lays the loads, in their order, one behind the other into a ring of `bytes`, from its begin in each step, and says
// which op must have ended before each. False: an op needs more at a time than the ring holds; `needs` is that op.
bool lay_ring(const std::vector<WeightUnit>& units, std::span<WeightLoad> loads, std::uint64_t bytes,
              std::uint32_t* needs = nullptr);

// The most that the loads of any one op take together, with that op: no ring can be smaller.
struct WorkingSet {
  std::uint64_t bytes = 0;
  std::uint32_t op = kNoOp;
};
WorkingSet largest_working_set(const std::vector<WeightUnit>& units, std::span<const WeightLoad> loads);

}  // namespace slip
