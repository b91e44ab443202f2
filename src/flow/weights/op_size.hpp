// What a sample of Costs says of an op: the sizes by which ops of one kernel are told apart.
#pragma once

#include "slip/costs.hpp"

namespace slip {

inline std::uint64_t weight_bytes_of(const Graph& graph, const GraphOp& op) {
  std::uint64_t bytes = 0;
  for (const ValueBytes& read : op.reads) {
    if (graph[read.value].role == ValueRole::kWeight) bytes += read.bytes;
  }
  return bytes;
}

inline CostSample sample_of(const Graph& graph, const GraphOp& op, Picos time) {
  return {std::string(op.kernel->name.text()), weight_bytes_of(graph, op), op.cost.flops, op.cost.bytes, time};
}

inline bool same_size(const CostSample& a, const CostSample& b) {
  return a.kernel == b.kernel && a.weight_bytes == b.weight_bytes && a.flops == b.flops && a.bytes == b.bytes;
}

}  // namespace slip
