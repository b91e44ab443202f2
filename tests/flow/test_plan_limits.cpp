// The planner with extreme sizes, rates and costs, and checks of the budgets and slowdowns that it promises.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "flow/random_graph.hpp"
#include "flow/stacks.hpp"
#include "slip/weights.hpp"
#include "support/errors.hpp"
#include "support/share.hpp"

namespace slip::test_plan_limits {
namespace {

using test::Chain;
using test::make_chain;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// Plans, describes and proves at several budgets, and checks the smallest budget.
void expect_plans(const Chain& chain, const std::string& what) {
  const std::uint64_t smallest = test::smallest_budget(chain.graph, chain.costs);
  const std::uint64_t all = chain.graph.bytes_of(ValueRole::kWeight);
  for (const std::uint64_t budget : {smallest, smallest + all / 7, smallest + all / 2, smallest + all}) {
    const WeightsPlan plan = plan_weights(chain.graph, chain.costs, {.budget = budget, .search_effort = 100'000});
    EXPECT_LE(plan.device_bytes(), budget) << what;
    EXPECT_GE(plan.step, 0) << what;
    EXPECT_GE(plan.step, plan.compute) << what;
    EXPECT_LE(plan.bound, plan.step) << what;
    EXPECT_FALSE(describe(plan, chain.graph, chain.costs).empty());
    EXPECT_TRUE(verify_weights(plan, chain.graph).proven()) << what;
  }
}

TEST(PlanLimits, UnitsOfAllSizes) {
  std::mt19937_64 random(1);
  std::vector<test::Layer> layers;
  for (int i = 0; i < 400 / static_cast<int>(test::kShare); ++i) {
    const auto bytes = static_cast<std::uint64_t>(std::exp2(std::uniform_real_distribution(2.0, 26.6)(random)));
    layers.push_back({bytes / 4 * 4, static_cast<Picos>(random() % 50'000'000'000)});
  }
  expect_plans(make_chain(layers, 1e9), "all sizes");
}

TEST(PlanLimits, AllAlikeAndOneHuge) {
  constexpr std::size_t kCount = test::kShare > 1 ? 20 : 100;
  std::vector<test::Layer> layers(kCount, {2 * kMiB, 1'000'000'000});
  expect_plans(make_chain(layers, 1e9), "all alike");
  layers[kCount / 2].weight_bytes = 256 * kMiB;
  expect_plans(make_chain(layers, 1e9), "one huge");
}

TEST(PlanLimits, OpsThatCostNothing) {
  expect_plans(make_chain(std::vector<test::Layer>(50, {2 * kMiB, 0}), 1e9), "no time at all");
  Chain chain = make_chain(std::vector<test::Layer>(50, {2 * kMiB, 1}), 1e18);
  expect_plans(chain, "a load that takes no time");
  chain.costs.kernel_slowdown = 1000, chain.costs.load_slowdown = 1000;
  expect_plans(chain, "everything stands in the way of everything");
}

TEST(PlanLimits, ALinkOfOneByteASecond) {
  const Chain chain = make_chain(std::vector<test::Layer>(40, {4 * kMiB, 1'000'000'000}), 1);
  expect_plans(chain, "one byte a second");
  const WeightsPlan plan = plan_weights(chain.graph, chain.costs, {.budget = 32 * kMiB, .search_effort = 10'000});
  // 2^63 picoseconds are 106 days: the plan cannot be simulated, and the error says so.
  EXPECT_TRUE(
      test::fails([&] { predict_weights(plan, chain.graph, chain.costs); }, ErrorCode::kInvalidValue, {"days"}));
}

TEST(PlanLimits, OpsThatTakeForever) {
  const Picos longest = Picos{1} << 62;
  const Chain chain = make_chain(std::vector<test::Layer>(40, {2 * kMiB, longest}), 1e9);
  expect_plans(chain, "half of eternity each");
  const WeightsPlan plan = plan_weights(chain.graph, chain.costs, {.budget = 32 * kMiB, .search_effort = 10'000});
  EXPECT_TRUE(
      test::fails([&] { predict_weights(plan, chain.graph, chain.costs); }, ErrorCode::kInvalidValue, {"days"}));
}

TEST(PlanLimits, BytesNearTheLastThatCanBeCounted) {
  static const Kernel kTouch{"touch", [](const Args&) {}};
  Graph graph;
  Value x = graph.input("x", DataType::kU8, {64});
  for (int i = 0; i < 3; ++i) {
    const Value w = graph.weight(fmt::format("w{}", i), DataType::kU8, {std::uint64_t{1} << 61});
    const Value y = graph.activation(fmt::format("y{}", i), DataType::kU8, {64});
    graph.add_op(
        {fmt::format("op{}", i), &kTouch, {graph.all_of(x), graph.all_of(w)}, {graph.all_of(y)}, {}, {.bytes = 1}});
    x = y;
  }
  graph.output(x);
  Costs costs;
  costs.load = {1e15, 0};
  costs.samples.push_back({"touch", std::uint64_t{1} << 61, 0, 1, 1000});
  const std::uint64_t smallest = test::smallest_budget(graph, costs);
  EXPECT_GE(smallest, std::uint64_t{1} << 61);
  for (const std::uint64_t budget :
       {smallest, smallest + (std::uint64_t{1} << 61), std::uint64_t{1} << 63, UINT64_MAX}) {
    const WeightsPlan plan = plan_weights(graph, costs, {.budget = budget});
    EXPECT_LE(plan.device_bytes(), budget);
    EXPECT_FALSE(describe(plan, graph, costs).empty());
  }
  EXPECT_NO_THROW(plan_weights(graph, costs, {.slowdown = 0.5}));
}

TEST(PlanLimits, StreamAllAndARingOfOnesOwn) {
  for (std::uint64_t seed = 1; seed <= 100 / test::kShare; ++seed) {
    const test::RandomGraph model(seed);
    const WeightsOptions all{.stream_all = true, .search_effort = 10'000};
    const std::uint64_t smallest = test::smallest_budget(model.graph, model.costs, all);
    WeightsOptions options = all;
    options.budget = smallest;
    const WeightsPlan plan = plan_weights(model.graph, model.costs, options);
    EXPECT_EQ(plan.resident_bytes, 0u) << "seed " << seed;
    EXPECT_LE(plan.device_bytes(), smallest) << "seed " << seed;
    // A requested ring is used as it is, or refused, with any budget.
    for (const std::uint64_t ring : {std::uint64_t{0}, std::uint64_t{1}, kMiB, UINT64_MAX / 2, UINT64_MAX}) {
      for (const bool by_slowdown : {false, true}) {
        WeightsOptions asked{.ring = ring, .search_effort = 10'000};
        if (by_slowdown) asked.slowdown = 0.1;
        else asked.budget = smallest + kMiB;
        try {
          const WeightsPlan made = plan_weights(model.graph, model.costs, asked);
          EXPECT_TRUE(made.loads.empty() || made.ring_bytes == (ring + 255) / 256 * 256) << "seed " << seed;
          EXPECT_TRUE(verify_weights(made, model.graph).proven()) << "seed " << seed;
          if (by_slowdown) {
            EXPECT_LE(static_cast<double>(made.step), 1.1 * static_cast<double>(made.compute) + 1) << "seed " << seed;
          }
        } catch (const Error& error) {
          EXPECT_TRUE(error.code() == ErrorCode::kOutOfMemory || error.code() == ErrorCode::kInvalidValue)
              << error.what();
        }
      }
    }
  }
}

// The budget found for a slowdown keeps it. A budget that is smaller by 2 % of the weights almost never does: rings and
// sizes are discrete, and the search estimates each budget.
TEST(PlanLimits, ABudgetForASlowdownIsNearlyTheSmallest) {
  int kept = 0, smaller_does = 0;
  for (std::uint64_t seed = 1; seed <= 36; ++seed) {
    const Chain chain = test::random_chain(seed, 10 + seed % 30);
    const double allowed = 0.02 * static_cast<double>(seed % 12);
    const WeightsPlan plan = plan_weights(chain.graph, chain.costs, {.slowdown = allowed, .search_effort = 200'000});
    const double limit = static_cast<double>(plan.compute) * (1 + allowed);
    EXPECT_LE(static_cast<double>(plan.step), limit + 1) << "seed " << seed;
    EXPECT_LE(plan.device_bytes(), *plan.budget) << "seed " << seed;
    const std::uint64_t smallest = test::smallest_budget(chain.graph, chain.costs);
    const std::uint64_t less = chain.graph.bytes_of(ValueRole::kWeight) / 50;
    if (*plan.budget < smallest + less) continue;
    ++kept;
    const WeightsPlan smaller =
        plan_weights(chain.graph, chain.costs, {.budget = *plan.budget - less, .search_effort = 2'000'000});
    smaller_does += static_cast<double>(smaller.step) <= limit;
  }
  EXPECT_LE(smaller_does * 10, kept);
}

}  // namespace
}  // namespace slip::test_plan_limits
