// Costs: interpolation and extrapolation of samples, files, and measurements whose result is known.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <random>

#include "slip/costs.hpp"
#include "slip/race.hpp"
#include "support/errors.hpp"

namespace slip::test::test_costs {
namespace {

constexpr Picos kMicro = 1'000'000;

// Copies take 1 ns per byte in and 2 ns out; 1,000 flops take 1 ns, and so do 1,000 bytes of memory.
constexpr const char* kDevice = R"(sim:{"name": "measured", "memory": "1 GB",
  "compute": {"flops": "1 TFLOP/s", "bandwidth": "1 TB/s", "launch": "2 us", "copy_slowdown_ppm": 250000},
  "copies": {"in": "1 GB/s", "out": "0.5 GB/s", "latency": "3 us", "kernel_slowdown_ppm": 500000},
  "host": {"launch": "50 us", "copy": "30 us", "sync": "40 us"}})";

void touch_all(const Args& args) {
  for (std::size_t i = 0; i < args.writes(); ++i) {
    for (float& value : args.out<float>(i)) value = args.reads() > 0 ? args.in<float>(0)[0] : 1.0f;
  }
}
const Kernel kDot{"dot", touch_all}, kOther{"other", touch_all};

// A graph of meaningless ops with given costs.
struct Ops {
  Graph graph;
  Value x = graph.input("x", DataType::kF32, {256});
  int count = 0;

  const GraphOp& add(const Kernel& kernel, std::uint64_t weight_bytes, const Cost& cost) {
    const std::string name = fmt::format("op {}", count++);
    GraphOp op{.name = name, .kernel = &kernel, .reads = {graph.all_of(x)}, .cost = cost};
    if (weight_bytes > 0)
      op.reads.push_back(graph.all_of(graph.weight(name + " weight", DataType::kF32, {weight_bytes / 4})));
    op.writes = {graph.all_of(graph.activation(name + " y", DataType::kF32, {256}))};
    graph.add_op(op);
    return graph.ops().back();
  }
};

TEST(LinkCost, TakesItsLatencyThenItsRate) {
  const LinkCost link{.bytes_per_second = 2e9, .latency = 3 * kMicro};
  EXPECT_EQ(link.time_for(0), 3 * kMicro);
  EXPECT_EQ(link.time_for(1'000'000), 503 * kMicro);
  EXPECT_TRUE(
      fails([] { static_cast<void>(LinkCost{}.time_for(7)); }, ErrorCode::kInvalidValue, {"7 bytes", "not known"}));
}

TEST(Costs, TimesLieOnALineBetweenSamplesOfTheSameWeight) {
  Costs costs{.device = "here"};
  costs.samples = {{"dot", 400, 1000, 100, 10'000},
                   {"dot", 400, 3000, 900, 50'000},
                   {"dot", 400, 9000, 900, 60'000},
                   {"dot", 800, 2000, 100, 1}};
  Ops ops;
  const auto time = [&](std::uint64_t weight, const Cost& cost) {
    return costs.time_of(ops.graph, ops.add(kDot, weight, cost));
  };
  EXPECT_EQ(time(400, {.bytes = 100, .flops = 1000}), 10'000);     // a sample
  EXPECT_EQ(time(400, {.bytes = 500, .flops = 1500}), 20'000);     // a quarter of the way
  EXPECT_EQ(time(400, {.bytes = 500, .flops = 6000}), 55'000);     // between its neighbours, not the ends
  EXPECT_EQ(time(400, {.bytes = 900, .flops = 18000}), 120'000);   // beyond: twice the flops
  EXPECT_EQ(time(400, {.bytes = 9000, .flops = 18000}), 600'000);  // ten times the bytes
  EXPECT_EQ(time(400, {.bytes = 50, .flops = 100}), 5'000);        // half the bytes, a tenth of the flops
  EXPECT_EQ(time(800, {.bytes = 100, .flops = 2000}), 1);
  EXPECT_EQ(time(1200, {.bytes = 1800, .flops = 7000}), 120'000);  // no such weight: at the rates of the nearest, 9000
}

TEST(Costs, WithoutFlopsTheLineIsOfBytes) {
  Costs costs{.device = "here"};
  costs.samples = {{"dot", 0, 0, 1000, 500}, {"dot", 0, 0, 2000, 900}};
  Ops ops;
  EXPECT_EQ(costs.time_of(ops.graph, ops.add(kDot, 0, {.bytes = 1500})), 700);
  EXPECT_EQ(costs.time_of(ops.graph, ops.add(kDot, 0, {.bytes = 4000})), 1800);
  EXPECT_EQ(costs.time_of(ops.graph, ops.add(kDot, 0, {})), 500);  // says nothing of itself: the nearest
}

TEST(Costs, AKernelWithoutSampleIsRefused) {
  Costs costs{.device = "here"};
  costs.samples = {{"other", 0, 0, 1000, 500}};
  Ops ops;
  const GraphOp& op = ops.add(kDot, 0, {});
  EXPECT_TRUE(fails([&] { static_cast<void>(costs.time_of(ops.graph, op)); }, ErrorCode::kInvalidValue,
                    {"op 0", "'dot'", "here", "other", "measure_costs"}));
}

class CostsFile : public testing::Test {
 protected:
  void TearDown() override { std::remove(path.c_str()); }
  std::string path = fmt::format("{}slip_costs_{}.json", testing::TempDir(), ::getpid());
};

TEST_F(CostsFile, WhatIsWrittenIsRead) {
  constexpr unsigned kSeed = 77;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  std::mt19937_64 random(kSeed);
  std::uniform_real_distribution<double> rate(1, 1e12), share(0, 2);
  for (int round = 0; round < 20; ++round) {
    Costs costs{.device = "cuda:0 \"quoted\""};
    for (LinkCost* link : {&costs.load, &costs.unload, &costs.read})
      *link = {rate(random), static_cast<Picos>(random() >> 10)};
    costs.kernel_slowdown = share(random);
    costs.load_slowdown = round == 0 ? 0 : share(random);
    for (int i = 0; i < round; ++i)
      costs.samples.push_back({fmt::format("k{}", i), random(), random(), random(), static_cast<Picos>(random() >> 3)});
    write_costs(costs, path);
    EXPECT_EQ(read_costs(path), costs);
  }
}

TEST_F(CostsFile, WhatCannotBeMeasuredIsRefused) {
  Costs costs{.device = "cpu", .load = {.bytes_per_second = 1e9, .latency = 5}};
  costs.samples = {{"dot", 1, 2, 3, 4}};
  write_costs(costs, path);
  std::string good;
  {
    std::ifstream file(path);
    good.assign(std::istreambuf_iterator<char>(file), {});
  }
  const struct {
    std::string from, to;
    std::initializer_list<std::string_view> words;
  } cases[] = {
      {"\"device\": \"cpu\",", "", {"device is missing"}},
      {"\"device\"", "\"devices\"", {"device is missing", "devices"}},
      {"\"kernel_slowdown\": 0", "\"load_slowdown\": 0", {".load_slowdown is there twice"}},
      {"\"kernel_slowdown\": 0", "\"kernel_slowdown\": -0.5", {"kernel_slowdown is -0.5"}},
      {"\"latency_ps\": 5", "\"latency_ps\": -5", {"latency_ps is -5"}},
      {"\"latency_ps\": 5", "\"latency_ps\": \"5\"", {".load.latency_ps"}},
      {"\"time_ps\": 4", "\"time_ps\": 0", {".samples[0].time_ps is 0"}},
      {"\"flops\": 2, ", "", {".samples[0].flops is missing"}},
      {"]\n}", "]\n} x", {}},
      {"1000000000", "1e300", {"bytes_per_second is 1e+300"}},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.to);
    std::string text = good;
    const std::size_t at = text.find(each.from);
    ASSERT_NE(at, std::string::npos) << good;
    std::ofstream(path) << text.replace(at, each.from.size(), each.to);
    EXPECT_TRUE(fails([&] { static_cast<void>(read_costs(path)); }, ErrorCode::kParse, each.words));
    EXPECT_TRUE(fails([&] { static_cast<void>(read_costs(path)); }, ErrorCode::kParse, {path}));
  }
  EXPECT_TRUE(fails([&] { static_cast<void>(read_costs(path + ".none")); }, ErrorCode::kIo, {path}));
}

// write_costs refuses what read_costs would refuse, and leaves the file as it is.
TEST_F(CostsFile, WhatCannotBeReadIsNotWritten) {
  Costs good{.device = "cpu", .load = {.bytes_per_second = 1e18, .latency = Picos{1} << 62}, .kernel_slowdown = 2};
  good.samples = {{"dot", 1, 2, 3, 1, 2}, {"dot", 1, 2, 4, Picos{1} << 62, 0}};  // the ends of the ranges
  write_costs(good, path);
  ASSERT_EQ(read_costs(path), good);
  const auto refused = [&](const std::function<void(Costs&)>& change, std::initializer_list<std::string_view> words) {
    Costs bad = good;
    change(bad);
    return fails([&] { write_costs(bad, path); }, ErrorCode::kInvalidValue, words);
  };
  EXPECT_TRUE(refused([](Costs& bad) { bad.load_slowdown = std::numeric_limits<double>::quiet_NaN(); }, {"nan"}));
  EXPECT_TRUE(refused([](Costs& bad) { bad.kernel_slowdown = -0.5; }, {"slowdown of -0.5"}));
  EXPECT_TRUE(refused([](Costs& bad) { bad.kernel_slowdown = 1e9; }, {"slowdown of 1000000000"}));
  EXPECT_TRUE(refused([](Costs& bad) { bad.read.bytes_per_second = 1e19; }, {"rate of 1e+19"}));
  EXPECT_TRUE(refused([](Costs& bad) { bad.unload.bytes_per_second = -1; }, {"rate of -1"}));
  EXPECT_TRUE(refused([](Costs& bad) { bad.unload.latency = -1; }, {"latency of -1 ps"}));
  EXPECT_TRUE(refused([](Costs& bad) { ++bad.load.latency; }, {"latency of 4611686018427387905 ps"}));
  EXPECT_TRUE(refused([](Costs& bad) { bad.samples[0].time = bad.samples[0].beside = 0; }, {"'dot' of 0 ps"}));
  EXPECT_TRUE(refused([](Costs& bad) { ++bad.samples[1].time; }, {"of 4611686018427387905 ps"}));
  EXPECT_TRUE(refused([](Costs& bad) { bad.samples[0].beside = -1; }, {"-1 ps beside loads"}));
  EXPECT_TRUE(refused([](Costs& bad) { bad.samples[0].beside = 1'000'000; }, {"slowdown of 999999"}));
  EXPECT_TRUE(refused([](Costs& bad) { bad.samples[0].kernel = "\xff"; }, {"not UTF-8"}));
  EXPECT_TRUE(refused([](Costs& bad) { bad.device.assign((1 << 20) + 1, 'x'); }, {"1048577 bytes"}));
  EXPECT_EQ(read_costs(path), good);
}

Graph three_ops() {
  Ops ops;
  ops.add(kDot, 4000, {.bytes = 8'000'000, .flops = 3'000'000});
  ops.add(kDot, 8000, {.bytes = 1'000, .flops = 900'000'000});
  ops.add(kDot, 4000, {.bytes = 8'000'000, .flops = 3'000'000});  // the first again
  ops.add(kOther, 0, {.bytes = 5'000'000, .width = 0.5});
  return std::move(ops.graph);
}

TEST(ModelCosts, AreThoseOfTheSimulation) {
  const Graph graph = three_ops();
  const Costs costs = model_costs(graph, kDevice);
  EXPECT_EQ(costs.device, "sim:measured");
  ASSERT_EQ(costs.samples.size(), 3u);
  EXPECT_EQ(costs.time_of(graph, graph.ops()[0]), 10 * kMicro);
  EXPECT_EQ(costs.time_of(graph, graph.ops()[1]), 902 * kMicro);
  EXPECT_EQ(costs.time_of(graph, graph.ops()[3]), 12 * kMicro);
  EXPECT_EQ(costs.load, (LinkCost{1e9, 3 * kMicro}));
  EXPECT_EQ(costs.unload, (LinkCost{0.5e9, 3 * kMicro}));
  EXPECT_EQ(costs.kernel_slowdown, 0.25);
  EXPECT_EQ(costs.load_slowdown, 0.5);
  EXPECT_TRUE(
      fails([&] { static_cast<void>(model_costs(graph, "cpu")); }, ErrorCode::kInvalidValue, {"'cpu'", "sim:h200"}));
}

// In virtual time the result of every measurement is known, whatever the host's calls cost.
TEST(MeasureCosts, FindsWhatADescriptionSays) {
  const Graph graph = three_ops();
  const Device device = Device::open(kDevice, {.run_functions = false});
  const Costs costs = measure_costs(graph, device, {.piece_bytes = 1'600'000});
  const Costs model = model_costs(graph, kDevice);
  EXPECT_EQ(costs.samples, model.samples);
  EXPECT_NEAR(costs.load.bytes_per_second, 1e9, 1e3);
  EXPECT_NEAR(costs.unload.bytes_per_second, 0.5e9, 1e3);
  EXPECT_NEAR(static_cast<double>(costs.load.latency), 3e6, 1e3);
  EXPECT_NEAR(static_cast<double>(costs.unload.latency), 3e6, 1e3);
  EXPECT_NEAR(costs.kernel_slowdown, 0.25, 1e-6);
  EXPECT_NEAR(costs.load_slowdown, 0.5, 0.5 * 3 / 1600);  // its latency of 3 us is not slowed
  EXPECT_EQ(costs.device, "sim:measured");
}

TEST(MeasureCosts, TakesTheMemoryOfTheLargestOpAndOnePiece) {
  Ops ops;
  ops.add(kDot, 40'960, {.flops = 1});
  ops.add(kDot, 4'096, {.flops = 2});
  const Device device = Device::open("cpu", {.memory_limit = 40'960 + 2 * 1024 + 8192});
  const Costs costs = measure_costs(ops.graph, device, {.piece_bytes = 8192});
  EXPECT_EQ(costs.samples.size(), 2u);
  EXPECT_EQ(device.memory().peak, std::size_t{40'960 + 2 * 1024 + 8192});
  for (const CostSample& sample : costs.samples) EXPECT_GT(sample.time, 0);
  EXPECT_GT(costs.load.bytes_per_second, 0);
  EXPECT_GT(costs.unload.bytes_per_second, 0);
  EXPECT_GE(costs.load_slowdown, 0);
}

TEST(MeasureCosts, BuiltInOpsAreMeasuredWithoutARace) {
  Graph graph({.part_bytes = 128 * 64 * 4});
  const Value x = graph.input("x", DataType::kF32, {4, 64});
  const Value up = graph.linear("up", x, graph.weight("up.weight", DataType::kF32, {256, 64}));  // two parts, alike
  graph.output(graph.linear("down", graph.gelu("act", up), graph.weight("down.weight", DataType::kF32, {64, 256})));
  RaceChecker checker;
  const Costs costs = measure_costs(graph, Device::open("cpu"), {.piece_bytes = 4096});
  EXPECT_TRUE(checker.report().races.empty()) << checker.report().text();
  for (const GraphOp& op : graph.ops()) EXPECT_GT(costs.time_of(graph, op), 0) << op.name;
  ASSERT_GE(graph.ops().size(), 4u);
  EXPECT_EQ(costs.time_of(graph, graph.ops()[0]), costs.time_of(graph, graph.ops()[1]));
  EXPECT_LT(costs.samples.size(), graph.ops().size());
}

TEST(MeasureCosts, LoadsWithTheGivenProbe) {
  Ops ops;
  ops.add(kDot, 0, {.flops = 1'000'000});
  const Device device = Device::open(kDevice);
  std::size_t largest = 0, loads = 0;
  const LoadProbe probe{.issue =
                            [&](StreamRef stream, Range to) {
                              largest = std::max(largest, to.bytes);
                              ++loads;
                              stream.host([] {}, {.writes = {to}, .name = "read"},
                                          {.time = static_cast<Picos>(7 * kMicro + to.bytes * 100)});
                            },
                        .piece_bytes = 4096};
  const Costs costs = measure_costs(ops.graph, device, probe);
  EXPECT_EQ(largest, 4096u);
  EXPECT_GT(loads, 3u);
  EXPECT_NEAR(costs.load.bytes_per_second, 1e10, 1e8);  // times come in whole nanoseconds
  EXPECT_NEAR(static_cast<double>(costs.load.latency), 7e6, 2e3);
  EXPECT_NEAR(costs.load_slowdown, 0, 1e-5);  // host functions are not slowed
  EXPECT_NEAR(costs.unload.bytes_per_second, 0.5e9, 1e6);
}

// Integers are zero, since they may be indices into other values; floating-point values are neither zero nor large.
TEST(MeasureCosts, RunsOpsOnValuesThatTheyCanTake) {
  static int runs;
  static bool good;
  runs = 0, good = true;
  static const Kernel kLook{"look", [](const Args& args) {
                              ++runs;
                              for (const std::int32_t place : args.in<std::int32_t>(0)) good = good && place == 0;
                              bool negative = false, positive = false;
                              for (const float value : args.in<float>(1)) {
                                const float size = std::abs(value);
                                good = good && size >= 0.01f && size <= 0.5f;
                                (value < 0 ? negative : positive) = true;
                              }
                              good = good && negative && positive;
                              for (float& value : args.out<float>(0)) value = 1e30f;
                            }};
  Graph graph;
  const Value places = graph.input("places", DataType::kI32, {16}),
              table = graph.weight("table", DataType::kF32, {512});
  const Value y = graph.activation("y", DataType::kF32, {16});
  graph.add_op({.name = "look",
                .kernel = &kLook,
                .reads = {graph.all_of(places), {.value = table, .offset = 1024, .bytes = 512}},
                .writes = {graph.all_of(y)}});
  static_cast<void>(measure_costs(graph, Device::open("cpu", {.policy = CpuPolicy::kSingle}), {.piece_bytes = 256}));
  EXPECT_GT(runs, 2);
  EXPECT_TRUE(good);
}

TEST(MeasureCosts, AnOpThatFailsIsReported) {
  static const Kernel kFails{"fails", [](const Args&) { throw std::runtime_error("on purpose"); }};
  Ops ops;
  ops.add(kFails, 0, {});
  EXPECT_TRUE(fails([&] { static_cast<void>(measure_costs(ops.graph, Device::open("cpu"), {.piece_bytes = 64})); },
                    ErrorCode::kLaunchFailed, {"op 0", "on purpose"}));
  EXPECT_TRUE(fails([&] { static_cast<void>(measure_costs(ops.graph, Device::open("cpu"), {.piece_bytes = 0})); },
                    ErrorCode::kInvalidValue, {"0 bytes"}));
}

}  // namespace
}  // namespace slip::test::test_costs
