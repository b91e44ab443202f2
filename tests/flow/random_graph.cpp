#include "flow/random_graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "flow/costs/measuring.hpp"

namespace slip::test {
namespace {

std::atomic<std::uint64_t> disturbance{0};

// The result depends on every word of every range read and on its position. All reads come before the first write.
void blend(const Args& args) {
  spin_by_seed();
  std::uint32_t sum = args.scalar<std::uint32_t>(0);
  for (std::size_t i = 0; i < args.reads(); ++i) {
    for (const std::uint32_t word : args.in<std::uint32_t>(i)) sum = sum * 31 + word;
  }
  for (std::size_t i = 0; i < args.writes(); ++i) {
    for (std::uint32_t& word : args.out<std::uint32_t>(i)) word = sum = sum * 1664525 + 1013904223;
  }
}
const Kernel kBlend{"blend", blend};

class Maker {
 public:
  Maker(Graph& graph, std::mt19937_64& random, const RandomGraphOptions& options)
      : graph_(graph), random_(random), options_(options) {}

  void make() {
    const bool weightless = chance(20);
    for (std::uint64_t i = below(options_.max_inputs + 1); i > 0; --i)
      inputs_.push_back(graph_.input(name("x"), DataType::kU32, shape()));
    for (std::uint64_t i = below(3); i > 0; --i) states_.push_back(graph_.state(name("s"), DataType::kU32, shape()));
    if (chance(3)) graph_.weight(name("unused"), DataType::kU32, shape());
    if (chance(3)) graph_.activation(name("unwritten"), DataType::kU32, shape());
    const std::uint64_t ops = chance(12) ? 1 : 1 + below(options_.max_ops);
    for (std::uint64_t i = 0; i < ops; ++i) add_op(weightless);
    if (chance(2) && !weights_.empty()) add_op_with(weights_.front());  // the last op uses what the first one does
    for (const Value value : made_) {
      if (chance(6)) graph_.output(value);
    }
    for (const Value value : states_) {
      if (chance(3)) graph_.output(value);
    }
    graph_.output(made_.back());
  }

 private:
  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  bool chance(std::uint64_t of) { return below(of) == 0; }
  std::string name(const char* what) { return fmt::format("{}{}", what, names_++); }
  Shape shape() { return {1 + below(chance(5) ? 5000 : 100)}; }
  Value any(const std::vector<Value>& of) { return of[chance(2) ? of.size() - 1 : below(of.size())]; }

  ValueBytes some_of(Value value) {
    const std::uint64_t words = graph_[value].bytes / 4;
    if (!chance(4)) return graph_.all_of(value);
    const std::uint64_t from = below(words);
    return {value, from * 4, (1 + below(words - from)) * 4};
  }

  Value weight() {
    if (!weights_.empty() && chance(4)) return weights_[below(weights_.size())];  // shared, and far apart
    const std::uint64_t max = chance(3) ? options_.max_weight_words : chance(2) ? 60'000 : 1000;
    weights_.push_back(graph_.weight(name("w"), DataType::kU32, {1 + below(max)}));
    return weights_.back();
  }

  void add_op(bool weightless) {
    GraphOp op = begin();
    for (std::uint64_t i = weightless ? 0 : below(4); i > 0; --i) op.reads.push_back(some_of(weight()));
    end(std::move(op));
  }
  void add_op_with(Value weight) {
    GraphOp op = begin();
    op.reads.push_back(graph_.all_of(weight));
    end(std::move(op));
  }

  GraphOp begin() {
    GraphOp op{name("op"), &kBlend};
    if (!made_.empty()) op.reads.push_back(graph_.all_of(made_.back()));
    if (!made_.empty() && chance(2)) op.reads.push_back(some_of(any(made_)));
    if (!inputs_.empty() && (made_.empty() || chance(3))) op.reads.push_back(some_of(any(inputs_)));
    if (!states_.empty() && chance(3)) op.reads.push_back(some_of(any(states_)));
    return op;
  }
  void end(GraphOp op) {
    op.scalars = {static_cast<std::uint32_t>(random_())};
    if (!states_.empty() && chance(3)) op.writes.push_back(some_of(any(states_)));
    if (!made_.empty() && chance(6)) op.writes.push_back(some_of(any(made_)));  // again, in place
    const Value made = graph_.activation(name("y"), DataType::kU32, shape());
    op.writes.push_back(graph_.all_of(made));
    op.cost = {.bytes = 1 + below(1000), .flops = graph_.ops().size() + 1};  // flops name the op
    graph_.add_op(std::move(op));
    made_.push_back(made);
  }

  Graph& graph_;
  std::mt19937_64& random_;
  const RandomGraphOptions& options_;
  std::vector<Value> inputs_, states_, weights_, made_;
  int names_ = 0;
};

}  // namespace

RandomGraph::RandomGraph(std::uint64_t from, const RandomGraphOptions& options) : seed(from) {
  std::mt19937_64 random(seed);
  Maker(graph, random, options).make();
  costs.device = "test";
  costs.load = {1e9, static_cast<Picos>(random() % 3 * 1'000'000)};
  costs.unload = {1e12, 0};
  const double balance = std::uniform_real_distribution(0.2, 3.0)(random);  // compute to load
  for (const GraphOp& op : graph.ops()) {
    const auto bytes =
        static_cast<double>(flow::weight_bytes_of(graph, op) + 10'000'000);  // inputs are nothing beside it
    const double time = bytes * 1000 * balance * std::uniform_real_distribution(0.1, 1.9)(random);
    costs.samples.push_back(flow::sample_of(graph, op, static_cast<Picos>(time)));
  }
  if (random() % 2) costs.kernel_slowdown = std::uniform_real_distribution(0.0, 0.5)(random);
  if (random() % 2) costs.load_slowdown = std::uniform_real_distribution(0.0, 0.8)(random);
}

WeightWords weight_words(const RandomGraph& model) {
  std::mt19937_64 random(model.seed);
  WeightWords weights;
  for (const GraphValue& value : model.graph.values()) {
    if (value.role != ValueRole::kWeight) continue;
    Words& words = weights[value.name];
    words.resize(value.bytes / 4);
    auto state = static_cast<std::uint32_t>(random());
    for (std::uint32_t& word : words) word = state = state * 1664525 + 1013904223;
  }
  return weights;
}

WeightSource memory_source(const WeightWords& weights) {
  return WeightSource::memory(
      [&weights](const GraphValue& weight) { return std::as_bytes(std::span(weights.at(weight.name))); });
}

WeightSource callback_source(const WeightWords& weights) {
  return WeightSource::callback([&weights](const GraphValue& weight, std::uint64_t offset, std::span<std::byte> into) {
    std::memcpy(into.data(), std::as_bytes(std::span(weights.at(weight.name))).data() + offset, into.size());
  });
}

Reference::Reference(const Graph& graph, const WeightWords& weights) : graph_(graph) {
  for (const GraphValue& value : graph.values()) {
    const auto found = weights.find(value.name);
    values_.push_back(found != weights.end() ? found->second : Words(value.bytes / 4, 0));
  }
}

void Reference::step() {
  for (const GraphOp& op : graph_.ops()) {
    const auto pieces = [&](const std::vector<ValueBytes>& list) {
      std::vector<ArgBytes> result;
      for (const ValueBytes& bytes : list)
        result.push_back({std::as_writable_bytes(std::span(values_[bytes.value.index])).data() + bytes.offset,
                          static_cast<std::size_t>(bytes.bytes)});
      return result;
    };
    const std::vector<ArgBytes> reads = pieces(op.reads), writes = pieces(op.writes);
    op.kernel->cpu(Args(reads, writes, op.scalars));
  }
}

void disturb(std::uint64_t seed) { disturbance.store(seed, std::memory_order_relaxed); }  // relaxed: any order disturbs

void spin_by_seed() {
  const std::uint64_t now = disturbance.load(std::memory_order_relaxed);  // relaxed: as above
  if (now == 0) return;
  const std::uint64_t mixed = now * 0x9e3779b97f4a7c15 + 0x2545f4914f6cdd1d;
  disturbance.store(mixed | 1, std::memory_order_relaxed);  // relaxed: two that meet spin alike, which is as good
  const std::uint64_t rounds = mixed >> 40 & 7 ? mixed >> 52 : (mixed >> 52) * 30;
  for (std::uint64_t i = 0; i < rounds; ++i) asm volatile("");
}

std::uint64_t smallest_budget(const Graph& graph, const Costs& costs, WeightsOptions options) {
  options.budget = 0;
  try {
    plan_weights(graph, costs, options);
  } catch (const Error& error) {
    const std::string text = error.what(), words = "the smallest that works is ";
    return std::stoull(text.substr(text.find(words) + words.size()));
  }
  return 0;
}

}  // namespace slip::test
