// Random graphs, budgets and delays: outputs are those of a direct evaluation on the host, to the bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "flow/random_graph.hpp"
#include "flow/weights/step.hpp"
#include "slip/race.hpp"
#include "support/share.hpp"

namespace slip::test_random_graphs {
namespace {

using test::RandomGraph;
using test::Reference;
using test::WeightWords;
using test::Words;

// A budget between the smallest and all weights resident; both limits are tried often.
WeightsPlan random_plan(const RandomGraph& model, std::mt19937_64& random) {
  WeightsOptions options{.stream_all = random() % 5 == 0, .search_effort = 50'000};
  const std::uint64_t smallest = test::smallest_budget(model.graph, model.costs, options);
  const std::uint64_t all = std::max(smallest, model.graph.bytes_of(ValueRole::kWeight) + smallest);
  const std::uint64_t more = all - smallest + 1;
  options.budget = smallest + (random() % 3 == 0 ? 0 : random() % more / (1 + random() % 8));
  return plan_weights(model.graph, model.costs, options);
}

struct Ends {
  std::vector<Value> inputs, outputs;
  explicit Ends(const Graph& graph) {
    for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
      if (graph.values()[i].role == ValueRole::kInput) inputs.push_back({i});
      if (graph.values()[i].output) outputs.push_back({i});
    }
  }
};

// Steps with different inputs; only the outputs of some are read.
void expect_right(Runner& runner, const RandomGraph& model, const WeightWords& weights, std::mt19937_64& random,
                  int steps, const std::string& what) {
  const Ends ends(model.graph);
  Reference reference(model.graph, weights);
  for (int step = 0; step < steps; ++step) {
    for (const Value input : ends.inputs) {
      for (std::uint32_t& word : reference[input]) word = static_cast<std::uint32_t>(random());
      std::ranges::copy(reference[input], runner.input<std::uint32_t>(input).begin());
    }
    runner.step();
    reference.step();
    if (random() % 3 == 0 && step + 1 < steps) continue;
    for (const Value output : ends.outputs)
      ASSERT_TRUE(std::ranges::equal(runner.output<std::uint32_t>(output), reference[output]))
          << what << ", step " << step << ", output " << model.graph[output].name;
  }
}

// A graph with its weights, and a plan for it.
struct Case {
  std::mt19937_64 random;
  RandomGraph model;
  WeightWords weights;
  WeightsPlan plan;
  explicit Case(std::uint64_t seed)
      : random(seed), model(seed), weights(weight_words(model)), plan(random_plan(model, random)) {}
};

struct Disturbed {
  explicit Disturbed(std::uint64_t seed) { test::disturb(seed); }
  ~Disturbed() { test::disturb(0); }
};

TEST(RandomGraphs, AreRightUnderDisturbance) {
  for (std::uint64_t seed = 1; seed <= 80 / test::kShare; ++seed) {
    auto [random, model, weights, plan] = Case(seed);
    const Disturbed disturbed(seed);
    const Device device = Device::open("cpu", {.memory_limit = plan.device_bytes()});
    Runner runner(device, model.graph, plan,
                  random() % 2 ? test::memory_source(weights) : test::callback_source(weights));
    expect_right(runner, model, weights, random, 6, fmt::format("seed {}", seed));
    if (HasFatalFailure()) return;
  }
}

TEST(RandomGraphs, AreRightInAnyOrder) {
  for (std::uint64_t seed = 1; seed <= 100 / test::kShare; ++seed) {
    auto [random, model, weights, plan] = Case(seed);
    const Device device = Device::open("cpu", {.policy = CpuPolicy::kRandom, .seed = seed});
    Runner runner(device, model.graph, plan, test::memory_source(weights));
    expect_right(runner, model, weights, random, 4, fmt::format("seed {}", seed));
    if (HasFatalFailure()) return;
  }
}

TEST(RandomGraphs, HaveNoRaceThatTheCheckerSees) {
  for (std::uint64_t seed = 1; seed <= 40 / test::kShare + 1; ++seed) {
    auto [random, model, weights, plan] = Case(seed);
    const Device device = Device::open("cpu", {.strict = true});
    RaceChecker checker;
    {
      Runner runner(device, model.graph, plan, test::memory_source(weights));
      expect_right(runner, model, weights, random, 4, fmt::format("seed {}", seed));
    }
    EXPECT_TRUE(checker.report().races.empty()) << "seed " << seed << "\n" << checker.report().text();
    if (HasFailure()) return;
  }
}

// Each load is a host function that takes a different time.
class SlowLoader final : public flow::GroupLoader {
 public:
  SlowLoader(const WeightsPlan& plan, const Graph& graph, const WeightWords& weights, const flow::WeightsMemory& memory)
      : plan_(plan), graph_(graph), weights_(weights), memory_(memory) {}

  void fill_resident() {
    for (std::uint32_t group = 0; group < plan_.groups.size(); ++group) {
      if (plan_.groups[group].resident)
        put(group, static_cast<std::byte*>(memory_.resident.native()) + plan_.groups[group].offset);
    }
  }
  void issue(StreamRef stream, Range to, std::uint32_t group, const Event*) override {
    std::byte* const at = static_cast<std::byte*>(memory_.ring.native()) + to.offset;
    stream.host(
        [this, at, group] {
          for (int i = 0; i < 4; ++i) test::spin_by_seed();
          put(group, at);
        },
        {.reads = {}, .writes = {to}, .scalars = {}, .name = "slow load"});
  }
  std::uint64_t shift(Range, std::uint32_t, std::size_t) const override { return 0; }

 private:
  void put(std::uint32_t group, std::byte* into) const {
    for (const WeightGroup::Part& part : plan_.groups[group].parts) {
      const Words& words = weights_.at(graph_[part.bytes.value].name);
      const std::span<const std::byte> bytes = std::as_bytes(std::span(words));
      std::ranges::copy(bytes.subspan(part.bytes.offset, part.bytes.bytes), into + part.offset);
    }
  }

  const WeightsPlan& plan_;
  const Graph& graph_;
  const WeightWords& weights_;
  const flow::WeightsMemory& memory_;
};

TEST(RandomGraphs, AreRightWithSlowLoads) {
  for (std::uint64_t seed = 1; seed <= 60 / test::kShare; ++seed) {
    auto [random, model, weights, plan] = Case(seed);
    const Device device = Device::open("cpu");
    const flow::WeightsMemory memory(device, plan);
    SlowLoader loader(plan, model.graph, weights, memory);
    loader.fill_resident();
    flow::Steps steps(device, model.graph, plan, memory, loader);
    const Ends ends(model.graph);
    Reference reference(model.graph, weights);
    std::vector<Buffer> host;
    std::vector<flow::HostValue> inputs, outputs;
    const auto mirror = [&, &graph = model.graph](Value value) {
      host.push_back(device.alloc(graph[value].bytes, MemoryKind::kPinned));
      return flow::HostValue{value, host.back()};
    };
    for (const Value value : ends.inputs) inputs.push_back(mirror(value));
    for (const Value value : ends.outputs) outputs.push_back(mirror(value));
    for (std::uint32_t i = 0; i < model.graph.values().size(); ++i) {
      if (model.graph.values()[i].role == ValueRole::kState) device.fill(steps.range_of({i}), 0);
    }
    device.sync();
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      for (std::uint32_t& word : reference[inputs[i].value]) word = static_cast<std::uint32_t>(random());
      std::ranges::copy(reference[inputs[i].value], host[i].host_write<std::uint32_t>().begin());
    }
    const Disturbed disturbed(seed);
    for (int step = 0; step < 4; ++step) {
      steps.issue(inputs, outputs);  // all on their way at once
      reference.step();
    }
    steps.outputs_there().sync();
    for (std::size_t i = 0; i < outputs.size(); ++i)
      ASSERT_TRUE(std::ranges::equal(host[inputs.size() + i].host_read<std::uint32_t>(), reference[outputs[i].value]))
          << "seed " << seed << ", output " << model.graph[outputs[i].value].name;
    device.sync();
  }
}

TEST(RandomGraphs, AreProven) {
  for (std::uint64_t seed = 1; seed <= 300 / test::kShare; ++seed) {
    std::mt19937_64 random(seed);
    const RandomGraph model(seed);
    const WeightsPlan plan = random_plan(model, random);
    const WeightsProof proof = verify_weights(plan, model.graph);
    EXPECT_TRUE(proof.proven()) << "seed " << seed << "\n" << proof.text;
    EXPECT_LE(plan.device_bytes(), *plan.budget) << "seed " << seed;
  }
}

TEST(RandomGraphs, TakeWhatThePlannerSays) {
  for (std::uint64_t seed = 1; seed <= 300 / test::kShare; ++seed) {
    std::mt19937_64 random(seed);
    const RandomGraph model(seed, {.max_ops = 60, .max_weight_words = 4'000'000});
    const WeightsPlan plan = random_plan(model, random);
    const Prediction prediction = predict_weights(plan, model.graph, model.costs, 8);
    EXPECT_NEAR(static_cast<double>(prediction.step), static_cast<double>(plan.step),
                0.01 * static_cast<double>(plan.step))
        << "seed " << seed << ", " << plan.loads.size() << " loads, " << model.graph.ops().size() << " ops";
    EXPECT_LE(plan.bound, plan.step) << "seed " << seed;
  }
}

// If the disk is slower than the link, reads from disk determine the length of a step.
TEST(RandomGraphs, ReadsFromDiskAreInThePrediction) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    const test::RandomGraph model(seed, {.max_ops = 60, .max_weight_words = 4'000'000, .max_inputs = 0});
    Costs costs = model.costs;
    costs.read = {5e7, 0};
    const std::uint64_t smallest = test::smallest_budget(model.graph, costs, {.host_memory = 0, .stream_all = true});
    const WeightsPlan plan = plan_weights(
        model.graph, costs, {.budget = smallest, .host_memory = 0, .stream_all = true, .search_effort = 1000});
    const Prediction prediction = predict_weights(plan, model.graph, costs, 8);
    std::uint64_t bytes = 0;
    for (const WeightLoad& load : plan.loads) bytes += plan.groups[load.group].bytes;
    const auto disk = static_cast<double>(bytes) / 5e7 * 1e12;
    EXPECT_GE(static_cast<double>(prediction.step), 0.99 * disk) << "seed " << seed;
    // Reads run ahead into slots of their own, which the planner does not count on.
    EXPECT_LE(static_cast<double>(prediction.step), 1.01 * static_cast<double>(plan.step)) << "seed " << seed;
  }
}

void change(WeightsPlan& plan, std::mt19937_64& random, std::size_t ops) {
  const auto any_op = [&] { return static_cast<std::uint32_t>(random() % ops); };
  if (plan.loads.empty() || random() % 6 == 0) {
    plan.value_offsets[random() % plan.value_offsets.size()] = random() % (plan.activation_bytes + 1) / 256 * 256;
    return;
  }
  WeightLoad& load = plan.loads[random() % plan.loads.size()];
  WeightLoad& other = plan.loads[random() % plan.loads.size()];
  switch (random() % 10) {
    case 0: load.after_op = any_op(); break;
    case 1: load.after_op = kNoOp; break;
    case 2: load.step_before = !load.step_before; break;
    case 3: load.offset = other.offset; break;
    case 4: load.offset = random() % plan.ring_bytes / 256 * 256; break;
    case 5: load.first_op = any_op(); break;
    case 6: load.last_op = any_op(); break;
    case 7: std::swap(load.offset, other.offset); break;
    case 8: std::swap(load, other); break;
    default: load.after_op = other.after_op, load.step_before = other.step_before;
  }
}

TEST(RandomGraphs, AChangedPlanIsRefusedUnprovenOrRight) {
  int refused = 0, unproven = 0, right = 0;
  for (std::uint64_t seed = 1; seed <= 160 / test::kShare + 40; ++seed) {
    std::mt19937_64 random(seed);
    const RandomGraph model(seed, {.max_ops = 30, .max_weight_words = 300'000});
    WeightsPlan plan = random_plan(model, random);
    for (std::uint64_t changes = 1 + random() % 3; changes > 0; --changes)
      change(plan, random, model.graph.ops().size());
    try {
      if (!verify_weights(plan, model.graph).proven()) {
        ++unproven;
        continue;
      }
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kInvalidValue) << error.what();
      ++refused;
      continue;
    }
    ++right;
    const WeightWords weights = weight_words(model);
    const Device device = Device::open("cpu", {.policy = CpuPolicy::kRandom, .seed = seed});
    Runner runner(device, model.graph, plan, test::memory_source(weights));
    expect_right(runner, model, weights, random, 4, fmt::format("seed {}", seed));
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(unproven, 0);
  EXPECT_GT(right, 0);
}

}  // namespace
}  // namespace slip::test_random_graphs
