// Random graphs with every liberty that graphs allow, and what they compute, evaluated op after op on the host.
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include "slip/costs.hpp"
#include "slip/graph.hpp"
#include "slip/runner.hpp"

namespace slip::test {

using Words = std::vector<std::uint32_t>;

struct RandomGraphOptions {
  std::uint32_t max_ops = 40;
  std::uint64_t max_weight_words = 400'000;  // of one weight; most have fewer
  std::uint64_t max_inputs = 3;
};

// Ops that read inputs, states, activations and weights, whole and in part, near and far; that write one or two values,
// states and activations anew; weights, inputs and values that nobody uses; several outputs, read on or not.
struct RandomGraph {
  Graph graph;
  Costs costs;
  std::uint64_t seed = 0;
  explicit RandomGraph(std::uint64_t seed, const RandomGraphOptions& options = {});
};

// The bytes of all weights, and a source of them.
using WeightWords = std::map<std::string, Words>;
WeightWords weight_words(const RandomGraph& model);
WeightSource memory_source(const WeightWords& weights);
WeightSource callback_source(const WeightWords& weights);

// The graph on the host: values in vectors, ops one after the other.
class Reference {
 public:
  Reference(const Graph& graph, const WeightWords& weights);
  Words& operator[](Value value) { return values_[value.index]; }
  void step();

 private:
  const Graph& graph_;
  std::vector<Words> values_;
};

// Ops of random graphs run for a random time, by seed; 0: as fast as they can.
void disturb(std::uint64_t seed);
void spin_by_seed();  // what a disturbed op does first

// The smallest budget that plan_weights takes, from what it says about one of nothing.
std::uint64_t smallest_budget(const Graph& graph, const Costs& costs, WeightsOptions options = {});

}  // namespace slip::test
