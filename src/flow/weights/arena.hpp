// Arena: the placement of inputs, states, outputs and activations in device memory. Activations that are never live at
// the same time may share bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "slip/graph.hpp"

namespace slip::flow {

struct Arena {
  std::vector<std::uint64_t> offsets;  // by graph value; of weights: 0
  std::uint64_t bytes = 0;
  std::uint64_t bound = 0;    // maximum of the bytes that are live at one op: no placement needs less
  std::uint32_t fullest = 0;  // the op with this maximum
};

// Inputs, states and outputs share no bytes: they are live between steps, when copies use them.
Arena lay_arena(const Graph& graph);

// By graph value: whether it is placed in the arena. Weights are not, nor are activations that no op uses.
std::vector<bool> placed_values(const Graph& graph);

// Two values that are live at the same time and share bytes, if there are any.
std::optional<std::pair<Value, Value>> arena_conflict(const Graph& graph, const std::vector<std::uint64_t>& offsets);

struct Placed {
  std::uint32_t first = 0, last = 0;  // ops between which it is live
  std::uint64_t offset = 0, bytes = 0;
};

// The indices of two ranges that are live at the same op and share bytes, if there are any. The range that becomes live
// first comes first. O(n log n).
std::optional<std::pair<std::size_t, std::size_t>> find_overlap(std::span<const Placed> all);

}  // namespace slip::flow
