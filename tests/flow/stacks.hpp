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

}  // namespace slip::test
