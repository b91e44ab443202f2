#include "flow/stacks.hpp"

#include <fmt/format.h>

namespace slip::test {
namespace {

// y[i] = x[i] * 3 + a sum over the weight that depends on the position of each byte.
void mix(std::span<const std::uint32_t> x, std::span<const std::uint32_t> weight, std::span<std::uint32_t> y) {
  std::uint32_t sum = 0;
  for (const std::uint32_t word : weight) sum = sum * 31 + word;
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = x[i] * 3 + sum + static_cast<std::uint32_t>(i);
}
void mix_args(const Args& args) {
  mix(args.in<std::uint32_t>(0), args.in<std::uint32_t>(1), args.out<std::uint32_t>(0));
}

constexpr std::uint64_t kWidth = 64;  // elements of a value

}  // namespace

Chain make_chain(const std::vector<Layer>& layers, double bytes_per_second, DataType type) {
  static const Kernel kMix{"mix", mix_args};
  Chain chain;
  chain.costs.device = "test";
  chain.costs.load = {bytes_per_second, 0};
  Value x = chain.graph.input("x", DataType::kU32, {kWidth});
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Value weight = chain.graph.weight(fmt::format("w{}", i), type, {layers[i].weight_bytes / 4});
    const Value y = chain.graph.activation(fmt::format("y{}", i), DataType::kU32, {kWidth});
    // The flops identify the layer, so that Costs finds its sample.
    chain.graph.add_op({fmt::format("mix{}", i),
                        &kMix,
                        {chain.graph.all_of(x), chain.graph.all_of(weight)},
                        {chain.graph.all_of(y)},
                        {},
                        {.bytes = layers[i].weight_bytes, .flops = i + 1}});
    chain.costs.samples.push_back({"mix", layers[i].weight_bytes, i + 1, layers[i].weight_bytes, layers[i].time});
    x = y;
  }
  chain.graph.output(x);
  return chain;
}

Chain random_chain(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  const double balance = std::uniform_real_distribution(0.3, 3.0)(random);  // compute to load
  std::vector<Layer> layers;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bytes = (1 + random() % 8) << 20;
    const double time = static_cast<double>(bytes) * 1000 * balance * std::uniform_real_distribution(0.2, 1.8)(random);
    layers.push_back({bytes, static_cast<Picos>(time)});
  }
  Chain chain = make_chain(layers, 1e9);
  if (random() % 2) chain.costs.kernel_slowdown = 0.07;
  if (random() % 3 == 0) chain.costs.load_slowdown = 0.3;
  return chain;
}

Weights random_weights(const Chain& chain, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Weights weights;
  for (const GraphValue& value : chain.graph.values()) {
    if (value.role != ValueRole::kWeight) continue;
    std::vector<std::uint32_t>& words = weights.emplace_back(value.bytes / 4);
    for (std::uint32_t& word : words) word = static_cast<std::uint32_t>(random());
  }
  return weights;
}

std::vector<std::uint32_t> expected(const Weights& weights, std::vector<std::uint32_t> x) {
  for (const std::vector<std::uint32_t>& weight : weights) {
    std::vector<std::uint32_t> y(x.size());
    mix(x, weight, y);
    x = std::move(y);
  }
  return x;
}

}  // namespace slip::test
