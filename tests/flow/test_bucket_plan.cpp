// Planning of gradient buckets, compared with exhaustive searches.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "exhaustive_plan.hpp"
#include "flow/gradients/bucket_plan.hpp"
#include "flow/gradients/predict_step.hpp"
#include "support/errors.hpp"
#include "support/share.hpp"

namespace slip::test_bucket_plan {
namespace {

using test::fails;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr Picos kUs = 1'000'000;

// A latency of 10 us, then 1 GB/s.
ReduceCost simple_cost() { return ReduceCost::of({.bytes_per_second = 1e9, .latency = 10 * kUs}); }

// A backward pass with `count` gradients, then work that needs them, the last one first.
GradientProfile random_step(std::mt19937_64& random, std::size_t count) {
  const auto between = [&](std::uint64_t low, std::uint64_t high) { return low + random() % (high - low + 1); };
  GradientProfile profile;
  Picos now = 0;
  for (std::size_t i = 0; i < count; ++i) {
    now += static_cast<Picos>(between(1, 300)) * kUs;
    profile.gradients.push_back({between(1, 4000) * 64, now, 0, 0});
  }
  profile.backward_end = now + static_cast<Picos>(between(0, 50)) * kUs;
  const bool forward = random() % 4 != 0;
  Picos needed = profile.backward_end;
  for (std::size_t i = count; i-- > 0;) {
    profile.gradients[i].needed = needed;
    if (forward) needed += static_cast<Picos>(between(0, 200)) * kUs;
  }
  return profile;
}

Picos lateness(const std::vector<flow::TimedCall>& calls, const std::vector<std::uint32_t>& order) {
  Picos now = 0, latest = std::numeric_limits<Picos>::min();
  for (const std::uint32_t call : order) {
    now = std::max(now, calls[call].ready) + calls[call].time;
    latest = std::max(latest, now - calls[call].due);
  }
  return latest;
}

TEST(ReduceCost, LiesOnLinesBetweenPoints) {
  const ReduceCost cost{{{1000, 10}, {2000, 20}, {4000, 100}}};
  EXPECT_EQ(cost.time(0), 10);
  EXPECT_EQ(cost.time(1000), 10);
  EXPECT_EQ(cost.time(1500), 15);
  EXPECT_EQ(cost.time(3000), 60);
  EXPECT_EQ(cost.time(6000), 180);
  EXPECT_EQ(simple_cost().time(kMiB), 10 * kUs + static_cast<Picos>(kMiB) * 1000);
  EXPECT_TRUE(fails([] { static_cast<void>(ReduceCost{}.time(1)); }, ErrorCode::kInvalidValue, {"not known"}));
}

TEST(BucketOrder, IsTheBestOfAllOrders) {
  std::mt19937_64 random(20261);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(testing::Message() << "seed 20261, round " << round);
    std::vector<flow::TimedCall> calls(1 + random() % 7);
    for (flow::TimedCall& call : calls)
      call = {static_cast<Picos>(random() % 60), static_cast<Picos>(1 + random() % 20),
              static_cast<Picos>(random() % 90)};
    std::vector<std::uint32_t> order(calls.size());
    std::iota(order.begin(), order.end(), 0U);
    Picos min = std::numeric_limits<Picos>::max();
    do min = std::min(min, lateness(calls, order));
    while (std::next_permutation(order.begin(), order.end()));
    const flow::OrderedCalls found = flow::best_order(calls, 100'000);
    EXPECT_TRUE(found.exact);
    EXPECT_EQ(found.lateness, min);
    EXPECT_EQ(lateness(calls, found.calls), min);
    const flow::OrderedCalls quick = flow::due_first(calls);
    EXPECT_EQ(lateness(calls, quick.calls), quick.lateness);
    EXPECT_GE(quick.lateness, min);
  }
}

TEST(BucketPlan, DdpClosesBucketsAsTorchDoes) {
  GradientProfile profile;
  for (const std::uint64_t mib : {1, 10, 10, 10, 30, 2}) profile.gradients.push_back({mib * kMiB, 0, 0, 0});
  const BucketPlan plan = ddp_buckets(profile);
  const std::vector<Bucket> wanted = {{0, kMiB}, {kMiB, 30 * kMiB}, {31 * kMiB, 30 * kMiB}, {61 * kMiB, 2 * kMiB}};
  EXPECT_EQ(plan.buckets, wanted);
  profile.gradients[2].group = profile.gradients[3].group = 1;  // another type closes a bucket
  profile.gradients[4].group = profile.gradients[5].group = 2;
  EXPECT_EQ(ddp_buckets(profile).buckets.size(), 6U);
}

TEST(BucketPlan, ExposureFollowsTheRecurrence) {
  GradientProfile profile;
  profile.gradients = {{1000, 10 * kUs, 100 * kUs, 0}, {1000, 20 * kUs, 60 * kUs, 0}, {1000, 50 * kUs, 50 * kUs, 0}};
  profile.backward_end = 50 * kUs;
  const ReduceCost cost = simple_cost();  // 11 us each
  const BucketExposure alone = exposure_of(profile, cost, bucket_per_gradient(profile));
  EXPECT_EQ(alone.exposed, 11 * kUs);  // the last one; the others are long done
  EXPECT_EQ(alone.communication, 33 * kUs);
  const BucketExposure together = exposure_of(profile, cost, {{{0, 3000}}});
  EXPECT_EQ(together.exposed, 13 * kUs);
  EXPECT_EQ(together.buckets[0].ready, 50 * kUs);
  // The last gradient is reduced before the two others, which arrive together.
  const BucketExposure overtaken = exposure_of(profile, cost, {{{2000, 1000}, {0, 2000}}});
  EXPECT_EQ(overtaken.buckets[1].start, 61 * kUs);
  EXPECT_EQ(overtaken.exposed, 13 * kUs);
  EXPECT_TRUE(fails(
      [&] {
        static_cast<void>(exposure_of(profile, cost, {{{0, 2000}}}));
      },
      ErrorCode::kInvalidValue, {"2000", "3000"}));
  EXPECT_TRUE(fails(
      [&] {
        static_cast<void>(exposure_of(profile, cost, {{{0, 2000}, {1000, 2000}}}));
      },
      ErrorCode::kInvalidValue, {"1000", "2000"}));
}

// If calls keep their order, dynamic programming finds the earliest end of all borders.
TEST(BucketPlan, DynamicProgrammingEndsFirst) {
  std::mt19937_64 random(20262);
  const ReduceCost cost = simple_cost();
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(testing::Message() << "seed 20262, round " << round);
    const GradientProfile profile = needed_at_once(random_step(random, 2 + random() % 8));
    const std::vector<flow::GradientSlice> slices = flow::slices_of(profile, 0, 64);
    const BucketPlan found = flow::ordered(slices, flow::earliest_end(slices, cost, profile.bytes()), cost, 1);
    EXPECT_EQ(exposure_of(profile, cost, found).exposed,
              exposure_of(profile, cost, test::exhaustive_plan(slices, cost)).exposed);
  }
}

TEST(BucketPlan, IsNearTheBestOfAllPlans) {
  std::mt19937_64 random(20263);
  const ReduceCost cost = simple_cost();
  int exact = 0, rounds = 0;
  double worst = 1;
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(testing::Message() << "seed 20263, round " << round);
    const GradientProfile profile = random_step(random, 2 + random() % 11);
    const Picos best = exposure_of(profile, cost, test::exhaustive_plan(flow::slices_of(profile, 0, 64), cost)).exposed;
    const Picos ours = exposure_of(profile, cost, plan_buckets(profile, cost, {.slices = false})).exposed;
    const Picos sliced = exposure_of(profile, cost, plan_buckets(profile, cost)).exposed;
    EXPECT_GE(ours, best);
    EXPECT_LE(static_cast<double>(ours), 1.1 * static_cast<double>(best));
    EXPECT_LE(sliced, ours);
    exact += ours == best;
    ++rounds;
    if (best > 0) worst = std::max(worst, static_cast<double>(ours) / static_cast<double>(best));
  }
  RecordProperty("exact", exact);
  EXPECT_GE(exact * 10, rounds * 9) << "of " << rounds << "; the worst is " << worst << " of the best";
}

TEST(BucketPlan, IsNeverWorseThanDdp) {
  std::mt19937_64 random(20264);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(testing::Message() << "seed 20264, round " << round);
    GradientProfile profile = random_step(random, 1 + random() % 80);
    for (GradientProfile::Gradient& gradient : profile.gradients) gradient.bytes *= 1 + random() % 200;
    for (std::size_t i = profile.gradients.size() / 2; i < profile.gradients.size(); ++i)
      profile.gradients[i].group = random() % 2 == 0 ? 0 : 1;
    std::stable_sort(profile.gradients.begin(), profile.gradients.end(),
                     [](const auto& a, const auto& b) { return a.group < b.group; });
    const ReduceCost cost = ReduceCost::of({.bytes_per_second = 1e9 * static_cast<double>(1 + random() % 50),
                                            .latency = static_cast<Picos>(random() % 500) * kUs});
    const BucketPlan plan = plan_buckets(profile, cost, {.effort = 300});
    const Picos ours = exposure_of(profile, cost, plan).exposed;
    EXPECT_LE(ours, exposure_of(profile, cost, ddp_buckets(profile)).exposed);
    const GradientProfile at_once = needed_at_once(profile);
    EXPECT_LE(ours, exposure_of(at_once, cost, ddp_buckets(profile)).exposed);
    std::vector<Bucket> buckets = plan.buckets;  // none has two groups
    std::uint64_t border = 0;
    for (const auto& gradient : profile.gradients) border += gradient.group == 0 ? gradient.bytes : 0;
    for (const Bucket& bucket : buckets)
      EXPECT_TRUE(bucket.first >= border || bucket.first + bucket.bytes <= border) << border;
  }
}

// A gradient as large as all others together arrives first and is needed last: later gradients go before its slices.
TEST(BucketPlan, LargeGradientsAreOvertaken) {
  GradientProfile profile;
  profile.gradients.push_back({64 * kMiB, 10 * kUs, 100'000 * kUs, 0});
  for (int i = 1; i <= 4; ++i) profile.gradients.push_back({kMiB, i * 1000 * kUs, (20'000 - i * 100) * kUs, 0});
  profile.backward_end = 4000 * kUs;
  const ReduceCost cost = simple_cost();
  const BucketPlan whole = plan_buckets(profile, cost, {.slices = false}), sliced = plan_buckets(profile, cost);
  EXPECT_EQ(exposure_of(profile, cost, sliced).exposed, 0);
  EXPECT_EQ(exposure_of(profile, cost, whole).exposed, 0);  // it is put last
  // The due times leave no time to wait for the small ones: only slices help.
  profile.gradients[0].needed = 72'000 * kUs;
  for (int i = 1; i <= 4; ++i)
    profile.gradients[static_cast<std::size_t>(i)].needed =
        profile.gradients[static_cast<std::size_t>(i)].arrival + 3000 * kUs;
  profile.gradients[0].arrival = 0;
  EXPECT_LT(exposure_of(profile, cost, plan_buckets(profile, cost)).exposed,
            exposure_of(profile, cost, plan_buckets(profile, cost, {.slices = false})).exposed);
}

// A link with a token bucket: small calls seem to cost nothing, so that the finest slices seem to pay.
TEST(BucketPlan, CutsNoFinerThanPays) {
  constexpr std::uint64_t kGradients = 24;
  GradientProfile profile;
  for (std::uint64_t i = 0; i < kGradients; ++i)
    profile.gradients.push_back({std::uint64_t{2560} << 10, static_cast<Picos>(i) * 37'000'000'000,
                                 static_cast<Picos>(2 * kGradients - i) * 18'000'000'000 + 420'000'000'000});
  profile.backward_end = profile.gradients.back().arrival;
  const ReduceCost cost{{{1024, 5'000'000}, {4096, 5'000'000}, {16384, 340'000'000}, {1 << 20, 21'900'000'000}}};
  const BucketPlan plan = plan_buckets(profile, cost);
  EXPECT_LE(plan.buckets.size(), kGradients + flow::kMaxSlices);
  EXPECT_LT(exposure_of(profile, cost, plan).exposed, exposure_of(profile, cost, ddp_buckets(profile)).exposed / 2);
}

// The simulated step agrees with the recurrence, to whole nanoseconds.
TEST(BucketPlan, IsWhatTheSimulatorSays) {
  std::mt19937_64 random(20265);
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(testing::Message() << "seed 20265, round " << round);
    const GradientProfile profile = random_step(random, 2 + random() % 30);
    const ReduceCost cost = simple_cost();
    for (const BucketPlan& plan :
         {plan_buckets(profile, cost, {.effort = 200}), ddp_buckets(profile), bucket_per_gradient(profile)}) {
      const Prediction seen = predict_step(profile, cost, plan);
      EXPECT_NEAR(static_cast<double>(seen.exposed), static_cast<double>(exposure_of(profile, cost, plan).exposed),
                  1000);
    }
  }
}

// Calls in the compute stream are completely exposed; waits at the end of the backward pass expose less, and waits by
// need least.
TEST(BucketPlan, MannersOfAStep) {
  std::mt19937_64 random(20266);
  const Device device = Device::open("sim:h200", {.run_functions = false});
  const GradientProfile profile = random_step(random, 12);
  const ReduceCost cost = simple_cost();
  const BucketPlan plan = bucket_per_gradient(profile);
  const Picos blocking = flow::simulate_step(device, profile, cost, plan, flow::OverlapPolicy::kInCompute).exposed,
              at_end = flow::simulate_step(device, profile, cost, plan, flow::OverlapPolicy::kAtTheEnd).exposed,
              by_need = flow::simulate_step(device, profile, cost, plan, flow::OverlapPolicy::kByNeed).exposed;
  EXPECT_GE(blocking, exposure_of(profile, cost, plan).communication);
  EXPECT_LT(at_end, blocking);
  EXPECT_LE(by_need, at_end);
}

TEST(BucketPlan, OfNothingIsNothing) {
  EXPECT_TRUE(plan_buckets({}, simple_cost()).buckets.empty());
  EXPECT_TRUE(ddp_buckets({}).buckets.empty());
  GradientProfile one;
  one.gradients = {{64, 5, 5, 0}};
  EXPECT_EQ(plan_buckets(one, simple_cost()).buckets.size(), 1U);
  EXPECT_TRUE(fails([&] { static_cast<void>(plan_buckets(one, {})); }, ErrorCode::kInvalidValue, {"not known"}));
}

}  // namespace

namespace {

TopoSystem machine() { return read_topology(SLIP_SOURCE_DIR "/tests/topo/data/nvswitch8.xml"); }

// The extrapolated cost is near a complete simulation of six machines in a ring and of sixteen in a tree, which takes a
// second. Sanitizers take 100 times as long, and test only the smallest case.
TEST(ClusterCost, GoesOnFromFewerMachines) {
  const TopoSystem one = machine();
  const bool slow = test::kShare > 1;
  for (const bool by_tree : {false, true}) {
    if (slow && !by_tree) continue;
    const int machines = slow ? 8 : by_tree ? 16 : 6;
    constexpr std::uint64_t kBytes = std::uint64_t{1} << 18;
    const double all = flow::all_reduce_us(one, machines, kBytes, by_tree, machines, {}),
                 extended = flow::all_reduce_us(one, machines, kBytes, by_tree, 4, {});
    EXPECT_NEAR(extended, all, 0.1 * all) << (by_tree ? "tree" : "ring");
  }
}

TEST(ClusterCost, MoreBytesCostMore) {
  const flow::ClusterCost few = flow::cluster_cost({machine()}, 1);
  EXPECT_EQ(few.ranks, 8);
  EXPECT_GT(few.cost.points.back().time, few.cost.points.front().time);
  // 100,000 ranks: a larger latency, at rates that the NICs limit.
  const flow::ClusterCost many = flow::cluster_cost({machine()}, 12'500);
  EXPECT_EQ(many.ranks, 100'000);
  for (std::size_t i = 0; i < few.cost.points.size(); ++i) {
    EXPECT_EQ(many.cost.points[i].bytes, few.cost.points[i].bytes);
    EXPECT_GT(many.cost.points[i].time, few.cost.points[i].time) << few.cost.points[i].bytes;
  }
}

// A dump may describe several hosts. Two equal hosts cost as much as two copies of one.
TEST(ClusterCost, SeveralHosts) {
  const flow::ClusterCost hosts = flow::cluster_cost({machine(), machine()}, 1),
                          copies = flow::cluster_cost({machine()}, 2);
  EXPECT_EQ(hosts.ranks, 16);
  for (std::size_t i = 0; i < hosts.cost.points.size(); ++i)
    EXPECT_EQ(hosts.cost.points[i].time, copies.cost.points[i].time);
  const std::vector<TopoSystem> many(600, machine());
  EXPECT_TRUE(fails([&] { flow::cluster_cost(many, 1); }, ErrorCode::kInvalidValue, {"4800 ranks", "at most 4096"}));
  const TopoSystem one = parse_topology("<system><cpu numaid=\"0\"/></system>", "one.xml");
  EXPECT_TRUE(fails([&] { flow::cluster_cost({one}, 1); }, ErrorCode::kInvalidValue, {"one.xml", "one device"}));
  EXPECT_TRUE(fails([&] { flow::cluster_cost({machine(), one}, 1); }, ErrorCode::kInvalidValue, {"not all have GPUs"}));
}

}  // namespace

}  // namespace slip::test_bucket_plan
