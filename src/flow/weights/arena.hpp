// Where inputs, states, outputs and activations lie: activations that are never there at the same time share bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "slip/graph.hpp"

namespace slip {

struct Arena {
  std::vector<std::uint64_t> offsets;  // by graph value; of weights: 0
  std::uint64_t bytes = 0;
  std::uint64_t bound = 0;    // the most that is there at one time: no placement needs less
  std::uint32_t fullest = 0;  // the op at which it is
};

// Inputs, states and outputs have bytes of their own: they are there between steps, when copies in and out use them.
Arena lay_arena(const Graph& graph);

// By graph value: whether it has bytes in the memory of activations. Weights have not, nor activations that no op
// touches.
std::vector<bool> placed_values(const Graph& graph);

// Two values that are there at the same time and lie on the same bytes, if there are such.
std::optional<std::pair<Value, Value>> arena_conflict(const Graph& graph, const std::vector<std::uint64_t>& offsets);

// Whether things that are there at the same time lie on the same bytes.

struct Placed {
  std::uint32_t first = 0, last = 0;  // ops at which it is there
  std::uint64_t offset = 0, bytes = 0;
};

// Two of them that are there at the same op and share bytes, if there are such; the first of the pair comes first.
// O(n log n).
std::optional<std::pair<std::size_t, std::size_t>> find_overlap(std::span<const Placed> all);

}  // namespace slip
