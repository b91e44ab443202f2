// Models to try things with: a stack of blocks shaped as those of a decoder, with random weights.
//
// A block: rms_norm, linears q, k, v, their sum in the place of attention, which is left out (it has no weights),
// linear o, residual add; rms_norm, linears gate and up, silu(gate) * up, linear down, residual add. A last rms_norm
// follows.
#pragma once

#include <cstdint>
#include <string>

#include "slip/graph.hpp"

namespace slip {

struct StackOptions {
  std::uint64_t blocks = 4, hidden = 1024, intermediate = 2816, tokens = 64;
  DataType type = DataType::kF32;
  std::uint64_t seed = 1;
  bool uneven = false;  // every second block's intermediate size is four times as large
  GraphOptions graph = {};
};

// Input "x" [tokens, hidden], output "y". Weights are called as their ops: "blocks.0.q.weight".
Graph stack_graph(const StackOptions& options, Here here = Here::at());

// Random bytes of a weight of this graph from `offset` on (whole elements), the same whoever asks in which pieces.
// Scaled so that activations keep their size through any number of blocks. Spreads over all cores.
void fill_stack_weight(const Graph& graph, const StackOptions& options, Value weight, std::uint64_t offset,
                       std::span<std::byte> into);

}  // namespace slip
