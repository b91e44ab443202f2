// OpMemory: the values of one op of a graph, in a piece of device memory, so that the op can be run by itself.
#pragma once

#include <vector>

#include "slip/costs.hpp"
#include "slip/device.hpp"
#include "slip/graph.hpp"

namespace slip {

class OpMemory {
 public:
  // What is needed of each value lies together; an op that reads what it writes does so here, too.
  OpMemory(const Graph& graph, const GraphOp& op);
  std::uint64_t bytes() const { return bytes_; }

  // Runs it on the bytes from `place` on.
  void launch(StreamRef stream, Range place) const;
  // The same with what it reads in `numbers`, or in `zeros` if it is integers, and what it writes in `sink`, so that
  // many ops can follow each other and none reads what another made.
  struct Apart {
    Range numbers, zeros, sink;
  };
  void launch(StreamRef stream, const Apart& places) const;
  struct ApartBytes {
    std::uint64_t numbers = 0, zeros = 0, sink = 0;
  };
  ApartBytes apart_bytes() const;
  // Zeros for values that are no floating-point numbers: they may be positions or counts, which must be small.
  void clear_integers(StreamRef stream, Range place) const;

 private:
  struct Part {
    Value value;
    std::uint64_t first = 0, last = 0;  // bytes of the value
    std::uint64_t at = 0;               // of the piece of memory
    bool integers = false;
  };
  void include(const Graph& graph, const ValueBytes& bytes);
  bool is_integers(const ValueBytes& bytes) const;
  Range find(const ValueBytes& bytes, Range place) const;

  const GraphOp& op_;
  std::vector<Part> parts_;
  std::uint64_t bytes_ = 0;
};

// Small numbers, alike whether read as 16 or as 32 bits, of changing sign: zeros or denormals may take another time,
// and a GPU's clock depends on how many bits change.
void fill_with_numbers(const Device& device, StreamRef stream, Range to);

// What a sample of Costs says of an op: the sizes by which ops of one kernel are told apart.

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
