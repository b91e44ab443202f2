// Functions on weight groups: grouping the weights of a graph, placing loads in the ring, and checking a plan. The
// planner, the runner and the reader of plan files use them.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "slip/weights.hpp"

namespace slip::flow {

// Alignment of all values in device memory: enough for any kernel and for fast copies.
inline constexpr std::uint64_t kAlignment = 256;
constexpr std::uint64_t aligned(std::uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// A weight of at least kLargePart bytes gets kLandingRoom extra bytes in the ring. A direct read writes whole pages,
// and the data keeps the offset in a page that it has in the file. With the extra bytes no further copy is needed.
inline constexpr std::uint64_t kLargePart = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kLandingRoom = 3 * 4096;

// The weight groups of a graph, in the order of their first use. Small weights join a neighbour
// (GraphOptions::join_bytes).
std::vector<WeightGroup> make_weight_groups(const Graph& graph);

inline constexpr std::uint32_t kNearOps = 8;  // uses this close share a load, and small weights this close a group

// The loads of one step with all groups streamed, in the order of use. Their offsets in the ring are not set. Uses of a
// group that are at most `near` ops apart share a load.
std::vector<WeightLoad> make_loads(const std::vector<WeightGroup>& groups, std::uint32_t near = kNearOps);

// Slots between two streams of a load (LoadSlots in loader.hpp), each for up to `max_bytes` bytes. Decoding takes far
// less time than a copy, so two slots keep the link busy. The disk needs several megabytes of reads in flight.
inline constexpr std::size_t kDecodeSlots = 2;
constexpr std::size_t read_slots(std::uint64_t max_bytes) {
  constexpr std::uint64_t kInFlight = std::uint64_t{16} << 20;
  return static_cast<std::size_t>(std::clamp<std::uint64_t>(kInFlight / std::max<std::uint64_t>(max_bytes, 1), 3, 16));
}
constexpr std::uint64_t slots_bytes(std::size_t slots, std::uint64_t max_bytes) { return slots * aligned(max_bytes); }

// The part of the group that holds these bytes of a weight; null if no part does.
const WeightGroup::Part* part_of(const WeightGroup& group, const ValueBytes& bytes);

constexpr std::uint64_t ring_bytes_of(const WeightGroup& group) { return aligned(group.bytes + group.room); }

// Places the loads one after the other in a ring of `bytes` bytes, in each step from its beginning. Also sets the op
// that each load must wait for. Returns false if an op needs more bytes at a time than the ring has.
bool lay_ring(const std::vector<WeightGroup>& groups, std::span<WeightLoad> loads, std::uint64_t bytes);

// The op with the maximum sum of bytes in the ring over its loads: no ring can be smaller.
struct WorkingSet {
  std::uint64_t bytes = 0;
  std::uint32_t op = kNoOp;
};
WorkingSet largest_working_set(const std::vector<WeightGroup>& groups, std::span<const WeightLoad> loads);

// Throws kInvalidValue unless the plan is for this graph, all placements are within its memory, and no placement
// overlaps bytes that are still needed. verify_weights then proves the order of its ops.
void check_plan(const WeightsPlan& plan, const Graph& graph, Here here);

}  // namespace slip::flow
