// Graphs to plan: chains of ops with weights of any sizes and times.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "slip/costs.hpp"
#include "slip/graph.hpp"

namespace slip::test {

// A chain of ops: each reads the value before it and a weight of so many bytes, and takes so long. The kernel mixes all
// bytes of the weight into the value, so a byte that is not there yet is seen.
struct Layer {
  std::uint64_t weight_bytes = 0;
  Picos time = 0;
};
struct Chain {
  Graph graph;
  Costs costs;
};
Chain make_chain(const std::vector<Layer>& layers, double bytes_per_second);
Chain random_chain(std::uint64_t seed, std::size_t layers);

// Bytes for every weight of a chain, from a seed, and what a step makes of an input.
using Weights = std::vector<std::vector<std::uint32_t>>;
Weights random_weights(const Chain& chain, std::uint64_t seed);
std::vector<std::uint32_t> expected(const Weights& weights, std::vector<std::uint32_t> x);

}  // namespace slip::test
