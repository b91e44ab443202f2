#include "model/stack.hpp"

#include <fmt/format.h>

#include <cmath>

#include "base/team.hpp"
#include "model/cpu/types.hpp"

namespace slip::model {
namespace {

// Adds ops and weights with a common name prefix.
class BlockMaker {
 public:
  BlockMaker(Graph& graph, const StackOptions& options, std::string prefix, Here here)
      : graph_(graph), options_(options), prefix_(std::move(prefix)), here_(here) {}

  std::string name(const char* op) const { return prefix_ + op; }
  Value norm(const char* op, Value x) {
    return graph_.rms_norm(name(op), x, weight(op, {options_.hidden}), 1e-5, here_);
  }
  Value linear(const char* op, Value x, std::uint64_t out) {
    const std::uint64_t in = graph_[x].shape.back();
    return graph_.linear(name(op), x, weight(op, {out, in}), here_);
  }

 private:
  Value weight(const char* op, Shape shape) {
    return graph_.weight(name(op) + ".weight", options_.type, std::move(shape), here_);
  }

  Graph& graph_;
  const StackOptions& options_;
  std::string prefix_;
  Here here_;
};

Value add_block(Graph& graph, const StackOptions& options, std::uint64_t number, Value x, Here here) {
  BlockMaker block(graph, options, fmt::format("blocks.{}.", number), here);
  const std::uint64_t wide = options.intermediate * (options.uneven && number % 2 == 1 ? 4 : 1);
  const Value first = block.norm("norm1", x);
  const Value q = block.linear("q", first, options.hidden);
  const Value k = block.linear("k", first, options.hidden);
  const Value v = block.linear("v", first, options.hidden);
  const Value mixed = graph.add(block.name("qkv"), graph.add(block.name("qk"), q, k, here), v, here);
  const Value middle = graph.add(block.name("add1"), x, block.linear("o", mixed, options.hidden), here);
  const Value second = block.norm("norm2", middle);
  const Value gate = graph.silu(block.name("silu"), block.linear("gate", second, wide), here);
  const Value gated = graph.multiply(block.name("gated"), gate, block.linear("up", second, wide), here);
  return graph.add(block.name("add2"), middle, block.linear("down", gated, options.hidden), here);
}

std::uint64_t mixed_bits(std::uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
  return bits ^ (bits >> 31);
}

// The key of a weight's random numbers. It depends on the name, not on the weight's number in the graph.
std::uint64_t key_of(std::uint64_t seed, std::string_view name) {
  std::uint64_t key = mixed_bits(seed + 1);
  for (const char letter : name) key = mixed_bits(key ^ static_cast<unsigned char>(letter));
  return key;
}

// A uniform random number in [-1, 1), which depends only on the weight's key and the element.
float noise(std::uint64_t key, std::uint64_t element) {
  const std::uint64_t bits = mixed_bits(key + element * 0x9e3779b97f4a7c15);
  return static_cast<float>(static_cast<std::int64_t>(bits) >> 40) * 0x1p-23F;
}

// A weight's element is middle + scale * noise.
struct Spread {
  float scale, middle;
};

Spread spread_of(const GraphValue& weight, const StackOptions& options) {
  if (weight.shape.size() == 1) return {0.1F, 1.0F};  // of a norm
  // A sum of `in` products keeps the variance of x. Each block adds two results to the residual stream, so these are
  // scaled down by the number of blocks.
  const bool residual = weight.name.ends_with(".o.weight") || weight.name.ends_with(".down.weight");
  const double terms =
      static_cast<double>(weight.shape.back()) * (residual ? 2.0 * static_cast<double>(options.blocks) : 1);
  return {static_cast<float>(std::sqrt(3 / terms)), 0.0F};  // noise has a variance of 1/3
}

template <class T>
void fill(std::uint64_t key, const Spread& spread, std::uint64_t first, std::span<std::byte> into) {
  constexpr std::size_t kRun = 65536;
  T* const elements = reinterpret_cast<T*>(into.data());
  base::for_each_run(into.size() / sizeof(T), kRun, [=](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i)
      elements[i] = base::from_float<T>(noise(key, first + i) * spread.scale + spread.middle);
  });
}

}  // namespace

Graph stack_graph(const StackOptions& options, Here here) {
  Graph graph(options.graph);
  Value x = graph.input("x", options.type, {options.tokens, options.hidden}, here);
  for (std::uint64_t i = 0; i < options.blocks; ++i) x = add_block(graph, options, i, x, here);
  graph.output(BlockMaker(graph, options, "", here).norm("y", x), here);
  return graph;
}

void fill_stack_weight(const Graph& graph, const StackOptions& options, Value weight, std::uint64_t offset,
                       std::span<std::byte> into) {
  const GraphValue& value = graph[weight];
  const Spread spread = spread_of(value, options);
  const std::uint64_t key = key_of(options.seed, value.name), first = offset / bytes_of(value.type);
  cpu::with_type(value.type, [&]<class T>(T) { fill<T>(key, spread, first, into); });
}

}  // namespace slip::model
