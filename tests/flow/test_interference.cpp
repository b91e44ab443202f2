// Slowdowns that were measured while other programs ran, and costs at the limits of what can be simulated.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <vector>

#include "backend/sim/description.hpp"
#include "flow/costs/measuring.hpp"
#include "flow/stacks.hpp"
#include "slip/weights.hpp"
#include "support/errors.hpp"

namespace slip::test::test_interference {
namespace {

// A measurement that returns these times one after the other.
struct Measurements {
  std::vector<flow::InterferenceTimes> times;
  std::size_t calls = 0;
  flow::InterferenceTimes operator()() { return times.at(calls++); }
};

std::string warning_of(const flow::InterferenceTimes& times, double expected) {
  testing::internal::CaptureStderr();
  EXPECT_DOUBLE_EQ(flow::plausible_slowdown(times, "kernels beside loads take"), expected);
  return testing::internal::GetCapturedStderr();
}

TEST(Interference, APlausibleSlowdownIsMeasuredOnce) {
  Measurements measure{{{100, 107}}};
  const flow::InterferenceTimes times = flow::measure_interference(std::ref(measure));
  EXPECT_EQ(measure.calls, 1U);
  EXPECT_NEAR(times.slowdown(), 0.07, 1e-9);
  EXPECT_EQ(warning_of(times, times.slowdown()), "");
  EXPECT_EQ((flow::InterferenceTimes{100, 90}).slowdown(), 0);
  EXPECT_EQ((flow::InterferenceTimes{0, 90}).slowdown(), 0);
}

TEST(Interference, AnImplausibleOneIsMeasuredAgain) {
  Measurements measure{{{100, 1900}, {140, 1600}, {120, 150}, {100, 100}}};
  const flow::InterferenceTimes times = flow::measure_interference(std::ref(measure));
  EXPECT_EQ(measure.calls, 3U);  // the third is plausible
  EXPECT_EQ(times.alone, 100);
  EXPECT_EQ(times.beside, 150);
}

TEST(Interference, RepeatsAreFew) {
  Measurements measure{{{100, 90'000}, {100, 60'000}, {100, 30'000}, {100, 15'000}, {100, 7'500}, {100, 100}}};
  EXPECT_EQ(flow::measure_interference(std::ref(measure)).beside, 15'000);
  EXPECT_EQ(measure.calls, 4U);
}

TEST(Interference, OneThatStaysImplausibleIsLimitedWithAWarning) {
  Measurements measure{std::vector<flow::InterferenceTimes>(20, {100, 1903})};
  const flow::InterferenceTimes times = flow::measure_interference(std::ref(measure));
  EXPECT_EQ(measure.calls, 2U);  // the second confirms the first
  const std::string warning = warning_of(times, flow::kMaxPlausibleSlowdown);
  for (const char* word : {"kernels beside loads take 19.0 times", "9 times", "--costs"})
    EXPECT_NE(warning.find(word), std::string::npos) << warning;
}

std::string device_with(std::uint64_t slowdown_ppm) {
  return fmt::format(R"(sim:{{"name": "busy", "memory": "1 GB", "compute": {{"flops": "1 TFLOP/s",
    "bandwidth": "1 TB/s", "copy_slowdown_ppm": {0}}}, "copies": {{"in": "1 GB/s", "out": "1 GB/s",
    "kernel_slowdown_ppm": {0}}}}})",
                     slowdown_ppm);
}

// On a busy machine the loads of small models took 19 times as long while kernels ran, and no plan could be simulated.
TEST(Interference, CostsOfABusyMachineArePlannedAndSimulated) {
  Chain chain = make_chain(std::vector<Layer>(6, {2 << 20, 1'000'000'000}), 1e9);
  testing::internal::CaptureStderr();
  const Device device = Device::open(device_with(18'029'137), {.run_functions = false});
  const Costs measured = measure_costs(chain.graph, device, {.piece_bytes = 2 << 20});
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_NE(warning.find("times is assumed"), std::string::npos) << warning;
  EXPECT_LE(measured.kernel_slowdown, flow::kMaxPlausibleSlowdown);
  EXPECT_LE(measured.load_slowdown, flow::kMaxPlausibleSlowdown);
  const WeightsPlan plan = plan_weights(chain.graph, measured, {.budget = 8 << 20});
  EXPECT_GT(predict_weights(plan, chain.graph, measured, 3).step, 0);
}

// All costs that a file may contain can be simulated: both have the same limit.
TEST(Interference, CostsAndSimulationHaveOneLimit) {
  const std::string path = fmt::format("{}slip_interference_{}.json", testing::TempDir(), ::getpid());
  Chain chain = make_chain(std::vector<Layer>(6, {2 << 20, 1'000'000}), 1e9);
  chain.costs.kernel_slowdown = chain.costs.load_slowdown = sim::kMaxSlowdown;
  for (CostSample& sample : chain.costs.samples) sample.beside = sample.time * (1 + Picos{sim::kMaxSlowdown});
  write_costs(chain.costs, path);
  const Costs costs = read_costs(path);
  const WeightsPlan plan = plan_weights(chain.graph, costs, {.budget = 8 << 20});
  EXPECT_GT(predict_weights(plan, chain.graph, costs, 3).step, 0);

  Costs beyond = costs;
  beyond.load_slowdown = sim::kMaxSlowdown + 1;
  EXPECT_TRUE(fails([&] { write_costs(beyond, path); }, ErrorCode::kInvalidValue, {"1001", "at most 1000"}));
  EXPECT_TRUE(fails([&] { predict_weights(plan, chain.graph, beyond, 3); }, ErrorCode::kInvalidValue,
                    {"load slowdown of 1001", "0 to 1000"}));
  beyond = costs;
  beyond.samples.front().beside *= 3;
  EXPECT_TRUE(fails([&] { write_costs(beyond, path); }, ErrorCode::kInvalidValue, {"at most 1000"}));
  beyond = costs;
  beyond.load.bytes_per_second = 100'000;
  EXPECT_TRUE(
      fails([&] { predict_weights(plan, chain.graph, beyond, 3); }, ErrorCode::kInvalidValue, {"load rate", "B/s"}));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace slip::test::test_interference
