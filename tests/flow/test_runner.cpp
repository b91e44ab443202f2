// Running plans: whatever is resident or streamed, the outputs are those of the graph, to the bit.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "flow/allocations.hpp"
#include "flow/stacks.hpp"
#include "slip/runner.hpp"
#include "support/share.hpp"

namespace slip::test_runner {
namespace {

using test::Chain;
using test::Weights;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

std::span<const std::byte> bytes_of(const std::vector<std::uint32_t>& words) { return std::as_bytes(std::span(words)); }

std::size_t number_of(const GraphValue& weight) { return std::stoul(weight.name.substr(1)); }

WeightSource from_memory(const Weights& weights) {
  return WeightSource::memory([&weights](const GraphValue& weight) { return bytes_of(weights[number_of(weight)]); });
}

WeightSource from_callback(const Weights& weights) {
  return WeightSource::callback([&weights](const GraphValue& weight, std::uint64_t offset, std::span<std::byte> into) {
    std::memcpy(into.data(), bytes_of(weights[number_of(weight)]).data() + offset, into.size());
  });
}

// A file that is removed with this object.
struct ModelFile {
  std::string path;
  ModelFile(const Chain& chain, const Weights& weights)
      : path(fmt::format("{}/slip-runner-{}-{}.safetensors", testing::TempDir(), ::getpid(), made++)) {
    std::vector<TensorData> tensors;
    for (const GraphValue& value : chain.graph.values()) {
      if (value.role == ValueRole::kWeight)
        tensors.push_back({value.name, value.type, value.shape, bytes_of(weights[number_of(value)])});
    }
    write_tensors(path, tensors);
  }
  ~ModelFile() { std::filesystem::remove(path); }
  static inline int made = 0;
};

// Several steps with different inputs, two of them in flight at a time.
void expect_right(Runner& runner, const Chain& chain, const Weights& weights, const std::string& what, int steps = 4) {
  const Value x = *chain.graph.find("x"), y = *chain.graph.find(fmt::format("y{}", weights.size() - 1));
  const auto input_of = [](int step) {
    std::vector<std::uint32_t> input(64);
    for (std::uint32_t i = 0; i < 64; ++i) input[i] = i * 7 + static_cast<std::uint32_t>(step) * 1000;
    return input;
  };
  for (int step = 0; step < steps; ++step) {
    std::ranges::copy(input_of(step), runner.input<std::uint32_t>(x).begin());
    runner.step();
    const auto output = runner.output<std::uint32_t>(y);
    ASSERT_TRUE(std::ranges::equal(output, test::expected(weights, input_of(step)))) << what << ", step " << step;
  }
}

Chain small_chain(std::uint64_t seed, std::size_t layers) {
  std::mt19937_64 random(seed);
  std::vector<test::Layer> sizes;
  for (std::size_t i = 0; i < layers; ++i) sizes.push_back({4 * (1 + random() % 100'000), 1'000'000});
  return test::make_chain(sizes, 1e9);
}

WeightsPlan plan_with(const Chain& chain, double share, std::uint64_t host_memory = UINT64_MAX) {
  const std::uint64_t all = chain.graph.bytes_of(ValueRole::kWeight);
  WeightsOptions options{.host_memory = host_memory, .search_effort = 20'000};
  options.budget = static_cast<std::uint64_t>(share * static_cast<double>(all)) + 4 * kMiB;
  Costs costs = chain.costs;
  costs.read = costs.load;
  return plan_weights(chain.graph, costs, options);
}

TEST(Runner, EverySourceAndBudgetGivesTheSameBits) {
  for (std::uint64_t seed = 1; seed <= 6 / test::kShare + 1; ++seed) {
    const Chain chain = small_chain(seed, 40 + 5 * seed);
    const Weights weights = test::random_weights(chain, seed);
    const ModelFile file(chain, weights);
    for (const double share : {0.0, 0.3, 1.0}) {
      const WeightsPlan plan = plan_with(chain, share);
      const Device device = Device::open("cpu", {.memory_limit = plan.device_bytes()});
      const std::string what = fmt::format("seed {}, share {}, {} loads", seed, share, plan.loads.size());
      {
        Runner runner(device, chain.graph, plan, from_memory(weights));
        EXPECT_LE(device.memory().peak, plan.device_bytes());
        expect_right(runner, chain, weights, what + ", memory");
      }
      {
        Runner runner(device, chain.graph, plan, from_callback(weights));
        expect_right(runner, chain, weights, what + ", callback");
      }
      Runner runner(device, chain.graph, plan, WeightSource::files(file.path));
      expect_right(runner, chain, weights, what + ", file");
    }
  }
}

TEST(Runner, AnyOrderOfReadyOpsGivesTheSameBits) {
  for (std::uint64_t seed = 1; seed <= 25 / test::kShare + 2; ++seed) {
    const Chain chain = small_chain(seed, 30);
    const Weights weights = test::random_weights(chain, seed);
    const WeightsPlan plan = plan_with(chain, 0.1);
    ASSERT_FALSE(plan.loads.empty());
    const Device device = Device::open("cpu", {.policy = CpuPolicy::kRandom, .seed = seed});
    Runner runner(device, chain.graph, plan, from_memory(weights));
    expect_right(runner, chain, weights, fmt::format("seed {}", seed), 3);
  }
}

TEST(Runner, AWaitThatIsMissingShows) {
  int wrong = 0;
  for (std::uint64_t seed = 1; seed <= 20 && wrong == 0; ++seed) {
    const Chain chain = small_chain(seed, 30);
    const Weights weights = test::random_weights(chain, seed);
    WeightsPlan plan = plan_with(chain, 0.1);
    for (WeightLoad& load : plan.loads) load.after_op = kNoOp;  // loads overwrite what ops still read
    EXPECT_FALSE(verify_weights(plan, chain.graph).proven());
    const Device device = Device::open("cpu", {.policy = CpuPolicy::kRandom, .seed = seed});
    Runner runner(device, chain.graph, plan, from_memory(weights));
    const Value x = *chain.graph.find("x"), y = *chain.graph.find("y29");
    const std::vector<std::uint32_t> input(64, 5);
    std::ranges::copy(input, runner.input<std::uint32_t>(x).begin());
    runner.step();
    wrong += !std::ranges::equal(runner.output<std::uint32_t>(y), test::expected(weights, input));
  }
  EXPECT_GT(wrong, 0) << "no seed showed it: the tests above prove nothing";
}

// The proof captures the loader that the runner would use, whatever the source.
TEST(Runner, WhatItIssuesIsProven) {
  const Device device = Device::open("cpu");
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const Chain chain = small_chain(seed, 50);
    const Weights weights = test::random_weights(chain, seed);
    const ModelFile file(chain, weights);
    for (const std::uint64_t host_memory : {UINT64_MAX, 1 * kMiB}) {
      WeightsPlan plan = plan_with(chain, 0.1, host_memory);
      ASSERT_FALSE(plan.loads.empty());
      const WeightSource sources[] = {from_memory(weights), from_callback(weights), WeightSource::files(file.path)};
      for (const WeightSource& source : sources) {
        const WeightsProof proof = verify_weights(plan, chain.graph, device, source);
        EXPECT_TRUE(proof.proven()) << "seed " << seed << "\n" << proof.text;
        EXPECT_GE(proof.ops, 3 * (plan.loads.size() + chain.graph.ops().size()));
      }
      EXPECT_TRUE(verify_weights(plan, chain.graph).proven()) << "seed " << seed;
      for (WeightLoad& load : plan.loads) load.after_op = kNoOp;  // loads overwrite what ops still read
      for (const WeightSource& source : sources)
        EXPECT_FALSE(verify_weights(plan, chain.graph, device, source).proven()) << "seed " << seed;
    }
  }
}

TEST(Runner, RunsInVirtualTime) {
  const Chain chain = small_chain(3, 30);
  const Weights weights = test::random_weights(chain, 3);
  const WeightsPlan plan = plan_with(chain, 0.2);
  const Device device = Device::open("sim:h200");
  Runner runner(device, chain.graph, plan, from_callback(weights));
  expect_right(runner, chain, weights, "sim");
}

// From memory: for a read from a file the cpu device itself allocates, as for every host function.
TEST(Runner, AStepAllocatesNothing) {
  if (!test::kCountsAllocations) GTEST_SKIP() << "no count of allocations under a sanitizer";
  const Chain chain = small_chain(3, 30);
  const Weights weights = test::random_weights(chain, 3);
  const WeightsPlan plan = plan_with(chain, 0.2);
  ASSERT_FALSE(plan.loads.empty());
  const Device device = Device::open("cpu", {.policy = CpuPolicy::kSingle});  // starts no worker in the step
  Runner runner(device, chain.graph, plan, from_memory(weights));
  runner.step();
  runner.sync();
  const std::uint64_t before = test::allocations();
  runner.step();
  EXPECT_EQ(test::allocations() - before, 0u);
  runner.sync();
}

TEST(Runner, WhatItDeclaresIsWhatItTouches) {
  const Chain chain = small_chain(4, 20);
  const Weights weights = test::random_weights(chain, 4);
  const ModelFile file(chain, weights);
  const WeightsPlan plan = plan_with(chain, 0.2);
  const Device device = Device::open("cpu", {.strict = true});
  Runner runner(device, chain.graph, plan, WeightSource::files(file.path));
  expect_right(runner, chain, weights, "strict");
}

TEST(Runner, AFileThatChangesUnderTheRunIsAnError) {
  const Chain chain = small_chain(5, 30);
  const Weights weights = test::random_weights(chain, 5);
  const ModelFile file(chain, weights);
  const WeightsPlan plan = plan_with(chain, 0.1);
  const Device device = Device::open("cpu");
  Runner runner(device, chain.graph, plan, WeightSource::files(file.path));
  expect_right(runner, chain, weights, "before", 1);
  std::filesystem::resize_file(file.path, std::filesystem::file_size(file.path) / 2);
  std::string said;
  try {
    for (int i = 0; i < 3; ++i) {
      runner.step();
      runner.sync();
    }
  } catch (const Error& error) {
    said = error.what();
  }
  EXPECT_NE(said.find(file.path), std::string::npos) << said;
}

TEST(Runner, SourcesThatDoNotFitTheGraphAreRefused) {
  const Chain chain = small_chain(6, 5), other = small_chain(7, 5), longer = small_chain(6, 6);
  const Weights weights = test::random_weights(chain, 6), others = test::random_weights(other, 7);
  const WeightsPlan plan = plan_with(chain, 0.1);
  const Device device = Device::open("cpu");
  const auto message = [&](const WeightSource& source, const Chain& with) {
    try {
      const Runner runner(device, with.graph, plan_with(with, 0.1), source);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(message(from_memory(others), chain).find("'w0'"), std::string::npos);
  const ModelFile file(other, others), right(chain, weights);
  const std::string shapes = message(WeightSource::files(file.path), chain);
  EXPECT_NE(shapes.find("'w0'"), std::string::npos) << shapes;
  EXPECT_NE(shapes.find(file.path), std::string::npos) << shapes;
  EXPECT_NE(message(WeightSource::files(right.path), longer).find("'w5'"), std::string::npos);
  EXPECT_NE(message(WeightSource(), chain).find("empty"), std::string::npos);
}

TEST(Runner, StatesLiveFromStepToStep) {
  static const Kernel kAdd{"accumulate", [](const Args& args) {
                             const auto x = args.in<std::uint32_t>(0), before = args.in<std::uint32_t>(1);
                             const auto after = args.out<std::uint32_t>(0), shown = args.out<std::uint32_t>(1);
                             for (std::size_t i = 0; i < x.size(); ++i) shown[i] = after[i] = before[i] + x[i];
                           }};
  Graph graph;
  const Value x = graph.input("x", DataType::kU32, {8}), sum = graph.state("sum", DataType::kU32, {8});
  const Value shown = graph.activation("shown", DataType::kU32, {8});
  graph.add_op({"accumulate",
                &kAdd,
                {graph.all_of(x), graph.all_of(sum)},
                {graph.all_of(sum), graph.all_of(shown)},
                {},
                {.bytes = 1}});
  graph.output(shown);
  Costs costs;
  costs.load = {1e9, 0};
  costs.samples.push_back({"accumulate", 0, 0, 1, 1000});
  const Device device = Device::open("cpu");
  const WeightsPlan plan = plan_weights(graph, costs, {.budget = kMiB});
  EXPECT_TRUE(verify_weights(plan, graph).proven());
  Runner runner(device, graph, plan, WeightSource::callback([](auto&&...) {}));
  for (std::uint32_t step = 1; step <= 5; ++step) {
    std::ranges::fill(runner.input<std::uint32_t>(x), step);
    runner.step();
  }
  EXPECT_EQ(runner.output<std::uint32_t>(shown)[3], 15u);
}

TEST(Runner, TheRunIsComparedWithThePrediction) {
  const Chain chain = small_chain(8, 20);
  const Weights weights = test::random_weights(chain, 8);
  const WeightsPlan plan = plan_with(chain, 0.2);
  const Prediction prediction = predict_weights(plan, chain.graph, chain.costs, 4);
  const Device device = Device::open("cpu");
  Runner runner(device, chain.graph, plan, from_memory(weights));
  Trace trace;
  for (int i = 0; i < 4; ++i) runner.step();
  runner.sync();
  trace.stop();
  const Comparison comparison = compare_weights(chain.graph, prediction, trace.data(), runner.compute_stream());
  EXPECT_EQ(comparison.predicted, prediction.step);
  EXPECT_GT(comparison.measured, 0);
  ASSERT_EQ(comparison.differences.size(), 20u);
  EXPECT_GE(std::abs(comparison.differences[0].measured - comparison.differences[0].predicted),
            std::abs(comparison.differences[1].measured - comparison.differences[1].predicted));
  EXPECT_NE(comparison.text().find("predicted"), std::string::npos);
}

}  // namespace
}  // namespace slip::test_runner
