// Which weights lie and are loaded together.
#pragma once

#include <optional>
#include <span>
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
std::vector<WeightGroup> make_weight_groups(const Graph& graph);

// The loads of one step if all groups were streamed, in the order of use; their places in the ring are not set.
std::vector<WeightLoad> make_loads(const std::vector<WeightGroup>& groups);

// Where the bytes of a weight lie in a group; null: not in this one.
const WeightGroup::Part* part_of(const WeightGroup& group, const ValueBytes& bytes);

// Where loads lie in the ring, and what each must wait for.

// What a group takes of the ring.
constexpr std::uint64_t ring_bytes_of(const WeightGroup& group) { return aligned(group.bytes + group.room); }

// Lays the loads, in their order, one behind the other into a ring of `bytes`, from its begin in each step, and says
// which op must have ended before each. False: an op needs more at a time than the ring holds; `needs` is that op.
bool lay_ring(const std::vector<WeightGroup>& groups, std::span<WeightLoad> loads, std::uint64_t bytes,
              std::uint32_t* needs = nullptr);

// The most that the loads of any one op take together, with that op: no ring can be smaller.
struct WorkingSet {
  std::uint64_t bytes = 0;
  std::uint32_t op = kNoOp;
};
WorkingSet largest_working_set(const std::vector<WeightGroup>& groups, std::span<const WeightLoad> loads);

// Whether a plan can be run: it is for this graph, all lies within its memory and nothing on what is still needed.

// Throws kInvalidValue with the names and places. verify_weights proves the order of a plan that passes.
void check_plan(const WeightsPlan& plan, const Graph& graph, Here here);

}  // namespace slip
