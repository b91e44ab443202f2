// Random graphs that use all features of graphs, and their reference results, computed op by op on the host.
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

// Ops read inputs, states, activations and weights, completely or in part, from near or distant ops. They write one or
// two values, and states and activations again. Some weights, inputs and values are unused; there are several outputs.
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

// Evaluates the graph on the host, op by op.
class Reference {
 public:
  Reference(const Graph& graph, const WeightWords& weights);
  Words& operator[](Value value) { return values_[value.index]; }
  void step();

 private:
  const Graph& graph_;
  std::vector<Words> values_;
};

// Ops of random graphs spin for a random time that depends on the seed; 0: they do not spin.
void disturb(std::uint64_t seed);
void spin_by_seed();  // what a disturbed op does first

// The smallest budget that plan_weights accepts, from its error for a budget of 0.
std::uint64_t smallest_budget(const Graph& graph, const Costs& costs, WeightsOptions options = {});

}  // namespace slip::test
