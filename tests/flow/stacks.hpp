// Graphs for tests of plans: chains of ops with weights of given sizes and times.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "slip/costs.hpp"
#include "slip/graph.hpp"

namespace slip::test {

// A chain of ops: each reads the value before it and a weight, and takes a given time. The kernel mixes all bytes of
// the weight into the value, so that a byte which is not loaded yet changes the result.
struct Layer {
  std::uint64_t weight_bytes = 0;
  Picos time = 0;
};
struct Chain {
  Graph graph;
  Costs costs;
};
// `type` of the weights, which has 4 bytes.
Chain make_chain(const std::vector<Layer>& layers, double bytes_per_second, DataType type = DataType::kU32);
Chain random_chain(std::uint64_t seed, std::size_t layers);

// Random bytes for every weight of a chain, and the result of a step for an input.
using Weights = std::vector<std::vector<std::uint32_t>>;
Weights random_weights(const Chain& chain, std::uint64_t seed);
std::vector<std::uint32_t> expected(const Weights& weights, std::vector<std::uint32_t> x);

}  // namespace slip::test
