// Damaged and hostile graphs, costs and weight plans. Each is either refused or read. Graphs and costs that were read
// are the same when written and read again, and can be planned with. A plan that was read and is proven gives exactly
// the outputs of its graph, in whatever order its ops run.
//
// usage: fuzz_plans SECONDS SEED
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "fuzz/fuzz_loop.hpp"
#include "fuzz/mutator.hpp"
#include "fuzz/scratch_folder.hpp"
#include "slip/runner.hpp"

namespace slip {
namespace {

void require(bool truth, const std::string& what) {
  if (!truth) throw std::logic_error(what);
}

void put(const std::string& path, const std::string& text) {
  std::filesystem::remove(path);
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  if (!(out << text).flush()) throw std::logic_error("cannot write " + path);
}

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

using Words = std::vector<std::uint32_t>;

void blend(const Args& args) {
  std::uint32_t sum = 1;
  for (std::size_t i = 0; i < args.reads(); ++i) {
    for (const std::uint32_t word : args.in<std::uint32_t>(i)) sum = sum * 31 + word;
  }
  for (std::uint32_t& word : args.out<std::uint32_t>(0)) word = sum = sum * 1664525 + 1013904223;
}
const Kernel kBlend{"blend", blend};

// A small model whose weights are used far enough apart to be streamed one by one, some of them twice.
struct Model {
  static constexpr std::uint32_t kOps = 30;
  Graph graph;
  Costs costs;
  std::vector<Words> values;  // by graph value: weights and the input as they are, others as the last step makes them
  Value input, output, state;

  Model() {
    input = graph.input("x", DataType::kU32, {8});
    state = graph.state("s", DataType::kU32, {4});
    Value x = input;
    std::vector<Value> weights;
    for (std::uint32_t i = 0; i < 4; ++i)
      weights.push_back(graph.weight(fmt::format("w{}", i), DataType::kU32, {60 + i}));
    for (std::uint32_t i = 0; i < kOps; ++i) {
      const Value y = graph.activation(fmt::format("y{}", i), DataType::kU32, {8 + i % 3 * 60});
      GraphOp op{
          fmt::format("op{}", i), &kBlend, {graph.all_of(x)}, {graph.all_of(i == 20 ? state : y)}, {}, {.bytes = 1}};
      if (i % 5 == 0) op.reads.push_back(graph.all_of(weights[i / 5 % 4]));
      if (i == 7) op.reads.push_back(graph.all_of(state));
      graph.add_op(std::move(op));
      x = i == 20 ? state : y;
    }
    graph.output(output = x);
    graph.output(state);
    costs.load = {1e9, 0};
    costs.samples.push_back({"blend", 0, 0, 1, 100'000});
    for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
      Words& words = values.emplace_back(graph.values()[i].bytes / 4, 0);
      const ValueRole role = graph.values()[i].role;
      std::uint32_t number = i;
      if (role != ValueRole::kWeight && role != ValueRole::kInput) continue;
      for (std::uint32_t& word : words) word = number = number * 1664525 + 1013904223;
    }
  }

  WeightSource source() const {
    return WeightSource::memory(
        [this](const GraphValue& weight) { return std::as_bytes(std::span(values[graph.find(weight.name)->index])); });
  }

  // The outputs after some steps, op by op on the host.
  std::vector<Words> expected(int steps) const {
    std::vector<Words> now = values;
    for (int step = 0; step < steps; ++step) {
      for (const GraphOp& op : graph.ops()) {
        std::vector<ArgBytes> reads, writes;
        for (const ValueBytes& read : op.reads)
          reads.push_back({reinterpret_cast<std::byte*>(now[read.value.index].data()), read.bytes});
        for (const ValueBytes& write : op.writes)
          writes.push_back({reinterpret_cast<std::byte*>(now[write.value.index].data()), write.bytes});
        op.kernel->cpu(Args(reads, writes, op.scalars));
      }
    }
    return now;
  }
};

class Fuzzer {
 public:
  Fuzzer() : device_(Device::open("cpu", {.policy = CpuPolicy::kRandom, .seed = 7})) {
    graphs_.originals = {graph_text()};
    write_costs(model_.costs, path_);
    costs_.originals = {text_of(path_)};
    Costs costs = model_.costs;
    costs.kernel_slowdown = 0.07, costs.load_slowdown = 0.3, costs.read = {2e9, 1000};
    write_costs(costs, path_);
    costs_.originals.push_back(text_of(path_));
    plans_.originals.clear();
    for (const std::uint64_t budget : {2816, 3072, 3584, 4096, 1 << 20}) {
      try {
        write_weights_plan(plan_weights(model_.graph, model_.costs, {.budget = budget}), model_.graph, path_);
        plans_.originals.push_back(text_of(path_));
      } catch (const Error&) {  // too small
      }
    }
    require(plans_.originals.size() > 2, "the budgets do not fit the model");
    expected_ = model_.expected(kSteps);
  }

  bool one(std::uint64_t seed, std::string& input) const {
    const MutatorWords& words = seed % 4 == 0 ? graphs_ : seed % 4 == 1 ? costs_ : plans_;
    input = Mutator(seed, words).make();
    put(path_, input);
    if (seed % 4 == 0) return try_graph();
    return seed % 4 == 1 ? try_costs() : try_plan();
  }

 private:
  static constexpr int kSteps = 3;

  std::string graph_text() const {
    Graph graph({.part_bytes = 128 * 16 * 4});
    Value x = graph.input("x", DataType::kF32, {2, 16});
    const Value up = graph.weight("up", DataType::kF32, {300, 16}),
                down = graph.weight("down", DataType::kF32, {16, 300});
    const Value norm = graph.weight("norm", DataType::kF32, {16}), bias = graph.weight("bias", DataType::kF32, {16});
    const Value y =
        graph.linear("back", graph.gelu("act", graph.linear("wide", graph.rms_norm("normed", x, norm), up)), down);
    graph.output(graph.layer_norm("end", graph.add("sum", graph.bias("moved", y, bias), x), norm, bias));
    write_graph(graph, path_);
    return text_of(path_);
  }

  // False: the input was refused, which is allowed.
  template <class Read>
  static bool was_read(Read&& read) {
    try {
      read();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kParse && error.code() != ErrorCode::kInvalidValue) throw;
      return false;
    }
    return true;
  }
  // Planning may refuse with an error: too large, too long, not known.
  template <class Call>
  static void may_refuse(Call&& call) {
    try {
      call();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidValue && error.code() != ErrorCode::kOutOfMemory &&
          error.code() != ErrorCode::kParse)
        throw;
    }
  }

  bool try_graph() const {
    Graph graph;
    if (!was_read([&] { graph = read_graph(path_); })) return false;
    write_graph(graph, path_);
    const std::string once = text_of(path_);
    write_graph(read_graph(path_), path_);
    require(once == text_of(path_), "a graph written, read and written again differs");
    may_refuse([&] { use(graph, model_costs(graph, "sim:h200")); });
    return true;
  }

  bool try_costs() const {
    Costs costs;
    if (!was_read([&] { costs = read_costs(path_); })) return false;
    write_costs(costs, path_);
    require(read_costs(path_) == costs, "costs written and read again differ");
    may_refuse([&] { use(model_.graph, costs); });
    return true;
  }

  static void use(const Graph& graph, const Costs& costs) {
    for (const std::uint64_t more : {std::uint64_t{0}, std::uint64_t{600}, std::uint64_t{1} << 62}) {
      may_refuse([&] {
        const std::uint64_t budget = graph.bytes_of(ValueRole::kActivation) + 2048 + more;
        const WeightsPlan plan = plan_weights(graph, costs, {.budget = budget, .search_effort = 10'000});
        require(plan.device_bytes() <= budget && plan.step >= 0 && plan.bound <= plan.step, "a plan beyond its budget");
        require(!describe(plan, graph, costs).empty(), "no words");
        if (plan.device_bytes() < 1 << 20) require(verify_weights(plan, graph).proven(), "a plan that is not proven");
        if (plan.device_bytes() < 1 << 20) require(predict_weights(plan, graph, costs, 2).step >= 0, "a negative time");
      });
    }
    may_refuse([&] { plan_weights(graph, costs, {.slowdown = 0.1, .search_effort = 10'000}); });
  }

  bool try_plan() const {
    WeightsPlan plan;
    if (!was_read([&] { plan = read_weights_plan(model_.graph, path_); })) return false;
    require(!describe(plan, model_.graph, model_.costs).empty(), "no words");
    bool proven = false;
    may_refuse([&] { proven = verify_weights(plan, model_.graph).proven(); });
    if (!proven || plan.device_bytes() > 1 << 22) return true;
    Runner runner(device_, model_.graph, plan, model_.source());
    for (int step = 0; step < kSteps; ++step) {
      std::ranges::copy(model_.values[model_.input.index], runner.input<std::uint32_t>(model_.input).begin());
      runner.step();
    }
    for (const Value value : {model_.output, model_.state})
      require(std::ranges::equal(runner.output<std::uint32_t>(value), expected_[value.index]),
              "a proven plan gives a wrong output");
    return true;
  }

  static MutatorWords words() {
    MutatorWords words;
    words.values = {"NaN",
                    "1e400",
                    "-1",
                    "0",
                    "-0",
                    "1e-300",
                    "18446744073709551615",
                    "18446744073709551616",
                    "9223372036854775807",
                    "1152921504606846976",
                    "4611686018427387904",
                    "4294967296",
                    "4294967295",
                    "256",
                    "512",
                    "768",
                    "1024",
                    "2048",
                    "1000",
                    "0.5",
                    "null",
                    "true",
                    "false",
                    "[]",
                    "{}",
                    "[1,2]",
                    "\"\"",
                    "\"op0\"",
                    "\"op5\"",
                    "\"op10\"",
                    "\"op15\"",
                    "\"op20\"",
                    "\"op25\"",
                    "\"op29\"",
                    "\"y3\"",
                    "\"w1\"",
                    "\"x\"",
                    "\"F32\"",
                    "\"linear\"",
                    "\"add\"",
                    "\"\\ud800\"",
                    "\"\xFF\xC0\"",
                    "1.",
                    "1e1"};
    words.pieces = {"[", "{\"a\":", "[{\"units\":", "{\"loads\":[", "[[1,"};
    words.deep_begin = "{\"units\":";
    return words;
  }

  ScratchFolder folder_{"fuzz_plans"};
  std::string path_ = folder_.at("input.json");
  Model model_;
  Device device_;
  std::vector<Words> expected_;
  MutatorWords graphs_ = words(), costs_ = words(), plans_ = words();
};

}  // namespace
}  // namespace slip

int main(int argc, char** argv) {
  const slip::Fuzzer fuzzer;
  return slip::fuzz_main(argc, argv, "fuzz_plans",
                         [&](std::uint64_t seed, std::string& input) { return fuzzer.one(seed, input); });
}
