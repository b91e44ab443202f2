// OpMemory: the layout of one op's values in device memory, so that measure_costs can run the op by itself. It owns no
// memory: the caller passes the range. This file also makes the CostSample of an op, whose sizes distinguish ops of one
// kernel.
#pragma once

#include <vector>

#include "slip/costs.hpp"
#include "slip/device.hpp"
#include "slip/graph.hpp"

namespace slip::flow {

class OpMemory {
 public:
  // All bytes that the op uses of one value lie together. So an op that works in place in the graph also works in place
  // here.
  OpMemory(const Graph& graph, const GraphOp& op);
  std::uint64_t bytes() const { return bytes_; }

  // Runs the op on `place`, which has bytes() bytes.
  void launch(StreamRef stream, Range place) const;
  // Runs the op with separate memory for each purpose, so that no op reads data that another op wrote. It reads
  // floating-point values from `numbers` and integers from `zeros`, and writes to `sink`.
  struct Apart {
    Range numbers, zeros, sink;
  };
  void launch(StreamRef stream, const Apart& places) const;
  struct ApartBytes {
    std::uint64_t numbers = 0, zeros = 0, sink = 0;
  };
  ApartBytes apart_bytes() const;
  // Sets integer values to zero: they may be positions or counts, which must be in range.
  void clear_integers(StreamRef stream, Range place) const;

 private:
  struct Part {
    Value value;
    std::uint64_t first = 0, last = 0;  // first byte of the value that the op uses, and the byte after the last
    std::uint64_t at = 0;               // offset of `first` in the memory
    bool integers = false;
  };
  void include(const Graph& graph, const ValueBytes& bytes);
  bool is_integers(const ValueBytes& bytes) const;
  Range find(const ValueBytes& bytes, Range place) const;

  const GraphOp& op_;
  std::vector<Part> parts_;
  std::uint64_t bytes_ = 0;
};

// Fills with small numbers of changing sign that are valid as bf16 and as f32. Kernels may be faster on zeros and
// slower on denormals, and the clock of a GPU depends on how many bits change.
void fill_with_numbers(const Device& device, StreamRef stream, Range to);

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

}  // namespace slip::flow
