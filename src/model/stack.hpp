// Models for tests and benchmarks: a stack of blocks like those of a transformer decoder, with random weights.
//
// A block: rms_norm; linears q, k, v; their sum in place of attention, which has no weights; linear o; residual add.
// Then rms_norm; linears gate and up; silu(gate) * up; linear down; residual add. A last rms_norm follows the blocks.
#pragma once

#include <cstdint>

#include "slip/graph.hpp"

namespace slip::model {

struct StackOptions {
  std::uint64_t blocks = 4, hidden = 1024, intermediate = 2816, tokens = 64;
  DataType type = DataType::kF32;
  std::uint64_t seed = 1;
  bool uneven = false;  // every second block has four times the intermediate size
  GraphOptions graph = {};
};

// Input "x" [tokens, hidden], output "y". Weights have the names of their ops: "blocks.0.q.weight".
Graph stack_graph(const StackOptions& options, Here here = Here::at());

// Random bytes of a weight from `offset` on (whole elements). They do not depend on the pieces in which they are
// requested. They are scaled so that activations keep their variance through any number of blocks. Uses all cores.
void fill_stack_weight(const Graph& graph, const StackOptions& options, Value weight, std::uint64_t offset,
                       std::span<std::byte> into);

}  // namespace slip::model
