// WeightStreamer: whatever the order of uses, a use finds the bytes of its group.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "flow/allocations.hpp"
#include "flow/streamed_program.hpp"
#include "slip/check.hpp"
#include "slip/race.hpp"
#include "support/errors.hpp"
#include "support/share.hpp"
#include "support/test_alarm.hpp"

namespace slip::test_weight_streamer {
namespace {

using test::Order;
using test::StreamedProgram;
using test::Weights;

[[maybe_unused]] const bool kAlarm = test::TestAlarm::install();
constexpr LinkCost kLoad{1e9, 0};

StreamerOptions with_budget(std::uint64_t budget) { return {.budget = budget, .load = kLoad, .search_effort = 20'000}; }

// A budget for a part of the weights beside the largest group.
StreamerOptions part_of(const Weights& weights, double share) {
  const auto more = static_cast<std::uint64_t>(share * static_cast<double>(test::bytes_of(weights)));
  return with_budget(test::largest_of(weights) + more);
}

std::vector<Device> devices(std::uint64_t seed) {
  return {Device::open("cpu"), Device::open("cpu", {.policy = CpuPolicy::kRandom, .seed = seed}),
          Device::open("sim:h200")};
}

TEST(WeightStreamer, StepsInOrderAreThoseOfResidentWeights) {
  const Weights weights = test::random_groups(1, 20, 20'000);
  const Order order = test::in_order(20);
  for (const Device& device : devices(1)) {
    for (const double share : {0.0, 0.2, 0.5, 1.0}) {
      WeightStreamer streamer(device, test::from_callback(weights), part_of(weights, share));
      const WeightPass pass = streamer.add_pass("all", test::uses_of(order, 1'000'000));
      streamer.plan();
      EXPECT_TRUE(streamer.verify(pass).proven()) << share << "\n" << streamer.verify(pass).text;
      EXPECT_LE(streamer.plan_of(pass).device_bytes(), *part_of(weights, share).budget);
      StreamedProgram program(device, weights);
      for (int step = 0; step < 5; ++step) program.step(streamer, pass, order);
      EXPECT_TRUE(program.right()) << device.info().name << ", share " << share;
      const StreamerReport report = streamer.report();
      EXPECT_EQ(report.steps, 5u);
      EXPECT_EQ(report.uses, 100u);
      EXPECT_EQ(report.on_demand.count, 0u) << "share " << share << "\n" << report.text();
      EXPECT_EQ(report.unplanned + report.skipped + report.replans, 0u) << report.text();
      EXPECT_EQ(report.planned.count > 0, share < 1);
      device.sync();
    }
  }
}

// Skipped, repeated and reordered uses, in several streams, some of them held while others are made.
void use_at_random(WeightStreamer& streamer, const std::vector<WeightPass>& passes, StreamedProgram& program,
                   std::mt19937_64& random, std::size_t groups) {
  struct Held {
    std::uint32_t group;
    std::size_t stream;
  };
  for (int step = 0; step < 8; ++step) {
    streamer.begin(passes[random() % passes.size()]);
    std::vector<Held> held;
    const auto release_all = [&] {
      for (const Held& one : held) streamer.release(one.group, program.stream(one.stream));
      held.clear();
    };
    auto group = static_cast<std::uint32_t>(random() % groups);
    for (std::uint64_t use = random() % (2 * groups); use > 0; --use) {
      switch (random() % 8) {
        case 0: group = static_cast<std::uint32_t>(random() % groups); break;  // somewhere else
        case 1: break;                                                         // again
        case 2: group = static_cast<std::uint32_t>((group + 2) % groups); break;
        default: group = static_cast<std::uint32_t>((group + 1) % groups);
      }
      const std::size_t stream = random() % 3;
      Range place;
      try {
        place = streamer.acquire(group, program.stream(stream));
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), ErrorCode::kOutOfMemory) << error.what();
        ASSERT_FALSE(held.empty()) << error.what();
        release_all();
        place = streamer.acquire(group, program.stream(stream));
      }
      program.mix(place, group, stream);
      held.push_back({group, stream});
      if (random() % 3 > 0) release_all();
    }
    if (random() % 4 > 0) release_all();  // otherwise the next begin() ends them
  }
}

TEST(WeightStreamer, AnyOrderIsRight) {
  for (std::uint64_t seed = 1; seed <= 30 / test::kShare + 1; ++seed) {
    const std::size_t groups = 2 + seed % 12;
    const Weights weights = test::random_groups(seed, groups, 10'000);
    for (const Device& device : devices(seed)) {
      std::mt19937_64 random(seed);
      WeightStreamer streamer(device, test::from_callback(weights),
                              part_of(weights, 0.1 * static_cast<double>(seed % 8)));
      std::vector<WeightPass> passes{streamer.add_pass("all", test::uses_of(test::in_order(groups)))};
      Order reverse = test::in_order(groups);
      std::ranges::reverse(reverse);
      passes.push_back(streamer.add_pass("reverse", test::uses_of(reverse, 1000)));
      passes.push_back(streamer.add_pass("one", test::uses_of({0})));
      StreamedProgram program(device, weights, 3);
      use_at_random(streamer, passes, program, random, groups);
      ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed;
      ASSERT_TRUE(program.right()) << "seed " << seed << ", " << device.info().name << "\n" << streamer.report().text();
      device.sync();
    }
  }
}

TEST(WeightStreamer, NoOrderHasARace) {
  for (std::uint64_t seed = 1; seed <= 20 / test::kShare + 1; ++seed) {
    const std::size_t groups = 3 + seed % 8;
    const Weights weights = test::random_groups(seed, groups, 5'000);
    std::mt19937_64 random(seed);
    const Device device = Device::open("cpu", {.strict = true});
    RaceChecker checker;
    {
      WeightStreamer streamer(device, test::from_callback(weights), part_of(weights, 0.3));
      const WeightPass pass = streamer.add_pass("all");
      StreamedProgram program(device, weights, 3);
      use_at_random(streamer, {pass}, program, random, groups);
      EXPECT_TRUE(program.right()) << "seed " << seed;
      EXPECT_GT(streamer.report().on_demand.count + streamer.report().planned.count, 0u);
      device.sync();
    }
    EXPECT_TRUE(checker.report().races.empty()) << "seed " << seed << "\n" << checker.report().text();
    if (testing::Test::HasFailure()) return;
  }
}

// The same from a trace, on a simulated device.
TEST(WeightStreamer, ATraceOfRandomUsesIsClean) {
  const Weights weights = test::random_groups(7, 9, 5'000);
  std::mt19937_64 random(7);
  const Device device = Device::open("sim:h200");
  WeightStreamer streamer(device, test::from_callback(weights), part_of(weights, 0.3));
  const WeightPass pass = streamer.add_pass("all");
  StreamedProgram program(device, weights, 3);
  streamer.plan();
  Trace trace;
  use_at_random(streamer, {pass}, program, random, 9);
  EXPECT_TRUE(program.right());
  device.sync();
  trace.stop();
  const CheckReport report = check_trace(trace.data());
  EXPECT_TRUE(report.races.races.empty()) << report.text();
  EXPECT_TRUE(report.deadlocks.empty()) << report.text();
}

TEST(WeightStreamer, TwoPassesShareOneMemory) {
  const Weights weights = test::random_groups(3, 16, 20'000);
  const Order prefill = test::in_order(16);
  Order generate;
  for (std::uint32_t group = 16; group >= 2; group -= 2) generate.push_back(group - 1);
  for (const Device& device : devices(3)) {
    WeightStreamer streamer(device, test::from_callback(weights), part_of(weights, 0.3));
    const WeightPass first = streamer.add_pass("prefill", test::uses_of(prefill, 2'000'000));
    const WeightPass second = streamer.add_pass("generate", test::uses_of(generate, 1'000));
    streamer.plan();
    EXPECT_EQ(streamer.plan_of(first).ring_bytes, streamer.plan_of(second).ring_bytes);
    EXPECT_EQ(streamer.plan_of(first).resident_bytes, streamer.plan_of(second).resident_bytes);
    EXPECT_TRUE(streamer.verify(second).proven());
    StreamedProgram program(device, weights);
    for (int round = 0; round < 3; ++round) {
      program.step(streamer, first, prefill);
      for (int token = 0; token < 3; ++token) program.step(streamer, second, generate);
    }
    EXPECT_TRUE(program.right()) << device.info().name;
    EXPECT_EQ(streamer.report().on_demand.count, 0u) << streamer.report().text();
    EXPECT_EQ(streamer.report().unplanned, 0u);
    device.sync();
  }
}

TEST(WeightStreamer, ANewOrderIsLearned) {
  const Weights weights = test::random_groups(4, 12, 20'000);
  Order reverse = test::in_order(12);
  std::ranges::reverse(reverse);
  reverse.insert(reverse.begin() + 5, {0, 1, 0});  // uses that come again
  for (const Device& device : devices(4)) {
    for (const bool declared : {false, true}) {
      WeightStreamer streamer(device, test::from_callback(weights), part_of(weights, 0.2));
      const WeightPass pass =
          declared ? streamer.add_pass("all", test::uses_of(test::in_order(12), 1'000)) : streamer.add_pass("all");
      StreamedProgram program(device, weights);
      for (int step = 0; step < 2; ++step) program.step(streamer, pass, reverse);
      const StreamerReport before = streamer.report();
      EXPECT_EQ(before.replans, 0u);
      EXPECT_GT(before.on_demand.count, 0u) << before.text();
      program.step(streamer, pass, reverse);
      const StreamerReport learned = streamer.report();
      EXPECT_EQ(learned.replans, 1u);
      for (int step = 0; step < 3; ++step) program.step(streamer, pass, reverse);
      const StreamerReport after = streamer.report();
      EXPECT_EQ(after.replans, 1u);
      EXPECT_EQ(after.on_demand.count, before.on_demand.count) << after.text();
      EXPECT_EQ(after.unplanned, before.unplanned) << after.text();
      EXPECT_TRUE(program.right());
      EXPECT_TRUE(streamer.verify(pass).proven());
      EXPECT_EQ(streamer.graph_of(pass).ops().size(), reverse.size());
      device.sync();
    }
  }
}

// A group may be used twice in a step, for different times. A further use counts as long as the last one.
TEST(WeightStreamer, ANewOrderKeepsTheTimesOfItsUses) {
  const Weights weights = test::random_groups(9, 3, 10'000);
  const Device device = Device::open("sim:h200");
  WeightStreamer streamer(device, test::from_callback(weights), part_of(weights, 0.2));
  std::vector<GroupUse> uses = test::uses_of({0, 1, 0, 2});
  for (std::size_t i = 0; i < uses.size(); ++i) uses[i].time = Picos{1'000} << (4 * i);
  const WeightPass pass = streamer.add_pass("twice", uses);
  streamer.plan();
  EXPECT_EQ(streamer.plan_of(pass).compute, 0x1111 * 1'000);
  StreamedProgram program(device, weights);
  for (int step = 0; step < 3; ++step) program.step(streamer, pass, {2, 0, 0, 1, 0});
  EXPECT_TRUE(program.right());
  EXPECT_EQ(streamer.report().replans, 1u);
  EXPECT_EQ(streamer.plan_of(pass).compute, 0x1211 * 1'000);
  device.sync();
}

TEST(WeightStreamer, AnOrderThatComesOnceIsNotLearned) {
  const Weights weights = test::random_groups(5, 8, 10'000);
  const Device device = Device::open("cpu");
  WeightStreamer streamer(device, test::from_callback(weights), part_of(weights, 0.2));
  const WeightPass pass = streamer.add_pass("all", test::uses_of(test::in_order(8), 1'000));
  StreamedProgram program(device, weights);
  const Order skips{0, 1, 4, 5, 6, 7}, repeats{0, 1, 2, 2, 3, 4, 5, 6, 7};
  for (const Order& order : {test::in_order(8), skips, test::in_order(8), skips, repeats, skips, test::in_order(8)})
    program.step(streamer, pass, order);
  EXPECT_TRUE(program.right());
  EXPECT_EQ(streamer.report().replans, 0u);
  EXPECT_EQ(streamer.report().skipped, 6u);
  EXPECT_EQ(streamer.report().unplanned, 1u);
  EXPECT_NE(streamer.report().text().find("6 planned uses passed over"), std::string::npos) << streamer.report().text();
}

// A use that differs from the plan costs its own load and no others: the plan goes on behind it.
TEST(WeightStreamer, OneDifferentUseCostsOneLoad) {
  const Weights weights(8, std::vector<std::uint32_t>(1024, 3));
  for (const std::uint64_t places : {1, 3}) {
    const Device device = Device::open("cpu", {.policy = CpuPolicy::kRandom, .seed = places});
    StreamerOptions options = with_budget(places * 4096);
    options.ring = places * 4096;
    options.stream_all = true;
    WeightStreamer streamer(device, test::from_callback(weights), options);
    const WeightPass pass = streamer.add_pass("all", test::uses_of(test::in_order(8), 1'000));
    StreamedProgram program(device, weights);
    program.step(streamer, pass, test::in_order(8));
    program.step(streamer, pass, {0, 1, 2, 4, 5, 6, 7});
    EXPECT_EQ(streamer.report().on_demand.count, 0u) << "a use that is passed over needs no load on demand";
    program.step(streamer, pass, test::in_order(8));
    program.step(streamer, pass, {0, 1, 2, 3, 4, 0, 5, 6, 7});
    program.step(streamer, pass, test::in_order(8));
    EXPECT_LE(streamer.report().on_demand.count, places == 1 ? 1u : 2u) << streamer.report().text();
    EXPECT_GE(streamer.report().on_demand.count, 1u);
    EXPECT_TRUE(program.right());
  }
}

// Uses 10 groups, two at a time.
void use_in_pairs(WeightStreamer& streamer, StreamedProgram& program) {
  for (std::uint32_t group = 0; group < 10; group += 2) {
    const Range first = streamer.acquire(group, program.stream()),
                second = streamer.acquire(group + 1, program.stream());
    program.mix(first, group);
    program.mix(second, group + 1);
    streamer.release(group, program.stream());
    streamer.release(group + 1, program.stream());
  }
}

// A program that holds two groups at a time: once this is known, no load is on demand.
TEST(WeightStreamer, UsesThatOverlapAreLearned) {
  const Weights weights = test::random_groups(6, 10, 10'000);
  const Device device = Device::open("cpu", {.policy = CpuPolicy::kRandom, .seed = 6});
  StreamerOptions options = with_budget(4 * test::largest_of(weights));
  options.ring = 3 * test::largest_of(weights);
  WeightStreamer streamer(device, test::from_callback(weights), options);
  const WeightPass pass = streamer.add_pass("pairs", test::uses_of(test::in_order(10), 1'000));
  StreamedProgram program(device, weights);
  std::uint64_t on_demand = 0;
  for (int step = 0; step < 6; ++step) {
    streamer.begin(pass);
    if (step == 3) on_demand = streamer.report().on_demand.count;
    use_in_pairs(streamer, program);
  }
  EXPECT_TRUE(program.right());
  EXPECT_EQ(streamer.report().replans, 1u);
  EXPECT_EQ(streamer.report().on_demand.count, on_demand);
  EXPECT_TRUE(streamer.verify(pass).proven()) << streamer.verify(pass).text;
}

// If the pass says which uses are held, no load is on demand from the first step on.
TEST(WeightStreamer, UsesThatOverlapArePlanned) {
  const Weights weights = test::random_groups(6, 10, 10'000);
  const Device device = Device::open("cpu", {.policy = CpuPolicy::kRandom, .seed = 6});
  StreamerOptions options = with_budget(4 * test::largest_of(weights));
  options.ring = 3 * test::largest_of(weights);
  WeightStreamer streamer(device, test::from_callback(weights), options);
  std::vector<GroupUse> uses = test::uses_of(test::in_order(10), 1'000);
  for (std::size_t i = 0; i < uses.size(); i += 2) uses[i].held = 1;
  const WeightPass pass = streamer.add_pass("pairs", uses);
  StreamedProgram program(device, weights);
  for (int step = 0; step < 4; ++step) {
    streamer.begin(pass);
    use_in_pairs(streamer, program);
  }
  EXPECT_TRUE(program.right());
  EXPECT_EQ(streamer.report().replans, 0u);
  EXPECT_EQ(streamer.report().on_demand.count, 0u) << streamer.report().text();
  EXPECT_TRUE(streamer.verify(pass).proven()) << streamer.verify(pass).text;
  uses.back().held = 1;
  EXPECT_TRUE(test::fails([&] { streamer.add_pass("too long", uses); }, ErrorCode::kInvalidValue, {"too long"}));
}

TEST(WeightStreamer, TimesThatAreNotGivenAreMeasured) {
  const Weights weights = test::random_groups(8, 6, 10'000);
  const Device device = Device::open("sim:h200");
  WeightStreamer streamer(device, test::from_callback(weights), part_of(weights, 0.4));
  const WeightPass pass = streamer.add_pass("all", test::uses_of(test::in_order(6)));
  StreamedProgram program(device, weights);
  for (int step = 0; step < 3; ++step) {  // the events are made, the uses are measured, the times are read
    program.step(streamer, pass, test::in_order(6));
    device.sync();
  }
  EXPECT_TRUE(program.right());
  const WeightsPlan& plan = streamer.plan_of(pass);
  EXPECT_GE(plan.compute, 6 * 1'000'000) << "each use takes a microsecond of virtual time, and the launch its own";
  EXPECT_LE(plan.compute, 6 * 20'000'000);
  EXPECT_GT(streamer.predict(pass).step, 6 * 1'000'000);
  device.sync();
}

// Uses in order take the time that is predicted for the plan.
TEST(WeightStreamer, StepsTakeThePredictedTime) {
  const Weights weights(12, std::vector<std::uint32_t>(std::size_t{1} << 20));
  for (const Picos time : {Picos{2'000'000'000}, Picos{6'000'000'000}}) {
    const Device device = Device::open("sim:" SLIP_SOURCE_DIR "/tests/support/ideal.json", {.run_functions = false});
    WeightStreamer streamer(device, test::from_callback(weights), with_budget(std::uint64_t{30} << 20));
    const WeightPass pass = streamer.add_pass("all", test::uses_of(test::in_order(12), time));
    streamer.plan();
    static const Kernel kSpend{"spend", [](const Args&) {}};
    const Stream stream = device.stream(StreamFlags::kNonBlocking);
    const auto step = [&] {
      streamer.begin(pass);
      for (std::uint32_t group = 0; group < 12; ++group) {
        const Range place = streamer.acquire(group, stream);
        stream.launch(kSpend, {.reads = {place}, .writes = {}, .scalars = {}, .name = {}}, {.time = time});
        streamer.release(group, stream);
      }
    };
    step();
    step();
    stream.sync();
    const Picos began = device.now();
    for (int i = 0; i < 6; ++i) step();
    stream.sync();
    const auto took = static_cast<double>(device.now() - began) / 6;
    EXPECT_LE(took, 1.02 * static_cast<double>(streamer.predict(pass, 8).step)) << streamer.describe(pass);
    EXPECT_EQ(streamer.report().on_demand.count, 0u);
  }
}

TEST(WeightStreamer, StepsAllocateNothing) {
  if (!test::kCountsAllocations) GTEST_SKIP() << "no count of allocations under a sanitizer";
  const Weights weights = test::random_groups(9, 12, 3'000);
  const Order skips{0, 1, 4, 2, 2, 11, 7, 0};
  for (const bool learn : {false, true}) {
    const Device device = Device::open("cpu", {.policy = CpuPolicy::kSingle});  // starts no worker in a step
    StreamerOptions options = part_of(weights, 0.2);
    options.learn = learn;
    WeightStreamer streamer(device, test::from_callback(weights), options);
    const WeightPass pass = streamer.add_pass("all", test::uses_of(test::in_order(12), 1'000));
    const Stream stream = device.stream(StreamFlags::kNonBlocking);
    const auto steps = [&](const Order& order, std::uint32_t count) {
      const std::uint64_t before = test::allocations();
      for (std::uint32_t i = 0; i < count; ++i) {
        streamer.begin(pass);
        for (const std::uint32_t group : order) {
          streamer.acquire(group, stream);
          streamer.release(group, stream);
        }
      }
      return test::allocations() - before;
    };
    EXPECT_GT(steps(test::in_order(12), 4), 0u) << "the first begin() plans: the counter works";
    EXPECT_EQ(steps(test::in_order(12), 8), 0u);
    if (learn) {
      EXPECT_EQ(steps(skips, 1), 0u);
      EXPECT_EQ(steps(test::in_order(12), 1), 0u);
    } else {
      EXPECT_EQ(steps(skips, 8), 0u);
    }
    EXPECT_GT(streamer.report().on_demand.count, 0u);
    device.sync();
  }
}

}  // namespace
}  // namespace slip::test_weight_streamer
