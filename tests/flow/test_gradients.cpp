// Gradients of ranks that are threads: results for all features.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>

#include "base/clock.hpp"
#include "base/sync.hpp"
#include "gradient_ranks.hpp"
#include "slip/verify.hpp"
#include "support/errors.hpp"
#include "support/share.hpp"

namespace slip::test_gradients {
namespace {

using test::as_trainers;
using test::expect_no_errors;
using test::fails;
using test::Met;
using test::Network;
using test::Trainer;

const std::vector<std::size_t> kLayers = {1000, 3, 70'000, 16, 400'000, 1, 5000};

// A cost with which the planner cuts gradients and reorders buckets.
ReduceCost some_cost() { return ReduceCost::of({.bytes_per_second = 1e9, .latency = 20'000'000}); }

class GradientsByRule : public testing::TestWithParam<BucketRule> {};
INSTANTIATE_TEST_SUITE_P(All, GradientsByRule,
                         testing::Values(BucketRule::kPlanned, BucketRule::kDdp, BucketRule::kEach),
                         [](const auto& one) { return bucket_rule_name(one.param); });

TEST_P(GradientsByRule, BecomeTheAverage) {
  constexpr int kSteps = test::kShare > 1 ? 5 : 12;
  for (const int ranks : {1, 2, 4}) {
    expect_no_errors(as_trainers(ranks, [](Trainer& trainer) {
      Network network(trainer, kLayers, {.buckets = GetParam(), .check_every = 2});
      for (int step = 0; step < kSteps; ++step) {
        network.run_step(step);
        network.expect_average(step);
      }
      EXPECT_EQ(network.gradients.steps(), static_cast<std::uint64_t>(kSteps));
    }));
  }
}

// Gradients arrive in a different order on each rank and in each step; all ranks issue the calls in one order.
TEST_P(GradientsByRule, ComeInAnyOrder) {
  expect_no_errors(as_trainers(3, [](Trainer& trainer) {
    const unsigned seed = 77 + static_cast<unsigned>(trainer.rank());
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Network network(trainer, kLayers, {.buckets = GetParam(), .cost = some_cost(), .check_every = 3});
    std::vector<std::size_t> order(kLayers.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (int step = 0; step < (test::kShare > 1 ? 7 : 20); ++step) {
      std::shuffle(order.begin(), order.end(), random);
      network.run_step(step, order);
      network.expect_average(step);
    }
  }));
}

// The host does not wait between steps, so that steps overlap.
TEST_P(GradientsByRule, ManyStepsAhead) {
  expect_no_errors(as_trainers(2, [](Trainer& trainer) {
    Network network(trainer, {5000, 200, 30'000}, {.buckets = GetParam(), .check_every = 4});
    for (int step = 0; step < 60; ++step) network.run_step(step);
    network.expect_average(59);
  }));
}

TEST(Gradients, AllRanksHaveOnePlan) {
  std::vector<BucketPlan> plans(3);
  std::vector<std::uint64_t> counts(3);
  expect_no_errors(as_trainers(3, [&](Trainer& trainer) {
    Network network(trainer, kLayers, {.cost = some_cost(), .check_every = 1});
    for (int step = 0; step < 15; ++step) network.run_step(step);
    trainer.compute.sync();
    plans[static_cast<std::size_t>(trainer.rank())] = network.gradients.plan();
    counts[static_cast<std::size_t>(trainer.rank())] = network.gradients.plans();
  }));
  EXPECT_EQ(plans[0], plans[1]);
  EXPECT_EQ(plans[0], plans[2]);
  EXPECT_EQ(counts[0], counts[1]);
  EXPECT_GE(counts[0], 2U);
}

// The given cost is 0.1 ms; in steps the calls take 2 ms and more.
TEST(Gradients, LearnWhatCallsCostInSteps) {
  expect_no_errors(as_trainers(2, [](Trainer& trainer) {
    static const Kernel kLong{"long", [](const Args&) {
                                for (const std::int64_t until = base::now_ns() + 2'000'000; base::now_ns() < until;)
                                  base::cpu_relax();
                              }};
    constexpr Picos kHinted = 100'000'000;
    const GradientHook hook = [](const GradientCall& call) {
      call.stream.launch(kLong, {});
      call.comm.all_reduce(call.data, call.data, call.type, ReduceOp::kAvg, call.stream);
    };
    Network network(trainer, {4000, 1000}, {.hook = hook, .cost = {{{1024, kHinted}}}, .check_every = 1});
    for (int step = 0; step < 8; ++step) network.run_step(step);
    trainer.compute.sync();
    EXPECT_EQ(network.gradients.cost().time(1024), 4 * kHinted);  // at most so much is believed
  }));
}

// Gradients arrive in the order of the forward pass: after the first step memory has this order, and they keep their
// values.
TEST(Gradients, AreLaidInTheOrderOfArrival) {
  expect_no_errors(as_trainers(2, [](Trainer& trainer) {
    Network network(trainer, {4096, 16, 1024}, {.cost = some_cost()});
    const Range before = network.gradients.view(network.parameters[0]);
    for (std::size_t i = 0; i < 3; ++i) network.backward(i, 0);
    network.gradients.step_end();
    const Range after = network.gradients.view(network.parameters[0]);
    EXPECT_NE(before.id, after.id);
    EXPECT_EQ(after.offset, 0U);
    for (std::size_t i = 0; i < 3; ++i)
      network.optimize(i);  // after the end: until the next step begins it is this one
    network.expect_average(0);
    for (int step = 1; step < 4; ++step) {
      network.run_step(step, {0, 1, 2});
      network.expect_average(step);
      EXPECT_EQ(network.gradients.view(network.parameters[0]).id, after.id);
    }
  }));
}

TEST(Gradients, OfSeveralTypesAndStreams) {
  expect_no_errors(as_trainers(2, [](Trainer& trainer) {
    Gradients gradients(trainer.comm, trainer.device, {.cost = some_cost()});
    const ParameterId floats = gradients.add("floats", 4000, DataType::kF32),
                      doubles = gradients.add("doubles", 80, DataType::kF64),
                      more = gradients.add("more floats", 12, DataType::kF32),
                      integers = gradients.add("integers", 4, DataType::kI32);
    gradients.seal();
    const Stream side = trainer.device.stream(StreamFlags::kNonBlocking);
    static const Kernel kOnes{"ones", [](const Args& args) {
                                for (float& one : args.out<float>(0)) one = args.scalar<float>(0);
                                for (double& one : args.out<double>(1)) one = args.scalar<double>(0);
                              }};
    static const Kernel kInteger{"integer",
                                 [](const Args& args) { args.out<std::int32_t>(0)[0] = args.scalar<std::int32_t>(0); }};
    Buffer result = trainer.device.alloc(4000, MemoryKind::kPinned);
    for (int step = 0; step < 4; ++step) {
      const double own = trainer.rank() * 2 + step;
      trainer.compute.launch(kOnes, {.writes = {gradients.view(floats), gradients.view(doubles)}, .scalars = {own}});
      gradients.ready(doubles, trainer.compute);
      side.launch(kInteger, {.writes = {gradients.view(integers)}, .scalars = {trainer.rank() * 10 + step}});
      side.launch(test::kCount, {.writes = {gradients.view(more)}, .scalars = {own}});
      gradients.ready(integers, side);
      gradients.ready(floats, trainer.compute);
      gradients.ready(more, side);
      for (const ParameterId one : {floats, doubles, more, integers}) {
        gradients.wait(one, trainer.compute);
        gradients.wait(one, side);
      }
      gradients.step_end();
      trainer.compute.sync();
      side.sync();
      trainer.device.copy(result, gradients.view(floats));
      EXPECT_EQ(result.host_read<float>()[999], static_cast<float>(1 + step));
      trainer.device.copy(result.slice(0, 80), gradients.view(doubles));
      EXPECT_EQ(result.host_read<double>()[9], 1.0 + step);
      trainer.device.copy(result.slice(0, 4), gradients.view(integers));
      EXPECT_EQ(result.host_read<std::int32_t>()[0], (0 + step + 10 + step) / 2);
      trainer.device.copy(result.slice(0, 12), gradients.view(more));
      EXPECT_EQ(result.host_read<float>()[2], static_cast<float>(1 + step + 2));
    }
  }));
}

// Three micro-batches are added up, then reduced.
TEST(Gradients, AreAddedUpWithoutSync) {
  expect_no_errors(as_trainers(2, [](Trainer& trainer) {
    Network network(trainer, {300, 40'000}, {.cost = some_cost()});
    for (int step = 0; step < 4; ++step) {
      for (std::size_t i = 0; i < 2; ++i) trainer.compute.fill(network.gradients.view(network.parameters[i]), 0);
      for (int micro = 0; micro < 3; ++micro) {
        const auto backward = [&] {
          for (std::size_t i = 2; i-- > 0;) {
            const Range view = network.gradients.view(network.parameters[i]);
            trainer.compute.launch(
                test::kAdd,
                {.reads = {view}, .writes = {view}, .scalars = {static_cast<float>(trainer.rank() + micro + step)}});
            network.gradients.ready(network.parameters[i], trainer.compute);
          }
        };
        if (micro < 2) {
          const Gradients::NoSync pause(network.gradients);
          backward();
          network.gradients.step_end();
        } else {
          backward();
        }
      }
      for (std::size_t i = 0; i < 2; ++i) network.optimize(i);
      network.gradients.step_end();
      trainer.compute.sync();
      const float sum = 3.0F * 0.5F + 3 + 3.0F * static_cast<float>(step);
      for (const Buffer& kept : network.kept)
        EXPECT_EQ(std::ranges::count(kept.host_read<float>().span(), sum), std::ssize(kept.host_read<float>().span()));
    }
    EXPECT_EQ(network.gradients.steps(), 4U);
  }));
}

// The communicator is moved between steps, and destroyed before the gradients.
TEST(Gradients, KeepTheirCommunicatorWhereverItMoves) {
  expect_no_errors(as_trainers(2, [](Trainer& trainer) {
    const int rank = trainer.rank();
    auto first = std::make_unique<Communicator>(std::move(trainer.comm));
    Gradients gradients(*first, trainer.device, {.cost = some_cost()});
    const ParameterId weight = gradients.add("weight", 4000, DataType::kF32);
    gradients.seal();
    const auto step = [&](int number) {
      trainer.compute.launch(test::kCount,
                             {.writes = {gradients.view(weight)}, .scalars = {Network::value(rank, 0, number)}});
      gradients.ready(weight, trainer.compute);
      gradients.wait(weight, trainer.compute);
      const Range view = gradients.view(weight);
      const Buffer kept = trainer.device.alloc(view.bytes, MemoryKind::kPinned, "kept");
      trainer.compute.copy(kept, view);
      gradients.step_end();
      trainer.compute.sync();
      EXPECT_EQ(kept.host_read<float>()[0], (Network::value(0, 0, number) + Network::value(1, 0, number)) / 2);
    };
    step(0);
    std::optional<Communicator> second(std::move(*first));
    first.reset();
    step(1);
    EXPECT_EQ(second->rank(), rank);
    second.reset();
    for (int number = 2; number < 12; ++number) step(number);
  }));
}

TEST(Gradients, ThatAreAbsentCountAsZero) {
  expect_no_errors(as_trainers(2, [](Trainer& trainer) {
    Network network(trainer, {1000, 10}, {.cost = some_cost()});
    for (int step = 0; step < 4; ++step) {
      network.backward(1, step);
      const bool here = trainer.rank() == 0 && step % 2 == 1;
      if (here) network.backward(0, step);
      else network.gradients.absent(network.parameters[0], trainer.compute);
      for (std::size_t i = 0; i < 2; ++i) network.optimize(i);
      network.gradients.step_end();
      trainer.compute.sync();
      const float wanted = step % 2 == 1 ? Network::value(0, 0, step) / 2 : 0.0F;
      EXPECT_EQ(network.kept[0].host_read<float>()[0], wanted);
      EXPECT_EQ(network.kept[1].host_read<float>()[0], (Network::value(0, 1, step) + Network::value(1, 1, step)) / 2);
    }
  }));
}

TEST(Gradients, TravelWithFewerBits) {
  for (const Compression compression : {Compression::kF16, Compression::kBF16}) {
    expect_no_errors(as_trainers(2, [&](Trainer& trainer) {
      Network network(trainer, kLayers, {.compression = compression, .check_every = 2});
      for (int step = 0; step < 5; ++step) {
        network.run_step(step);
        trainer.compute.sync();
        const double error = compression == Compression::kF16 ? 1e-3 : 8e-3;
        for (std::size_t p = 0; p < kLayers.size(); ++p) {
          const HostView<const float> values = network.kept[p].host_read<float>();
          for (std::size_t i = 0; i < values.size(); i += 101) {
            const double wanted =
                (Network::value(0, p, step) + Network::value(1, p, step)) / 2 + static_cast<float>(i % 1000);
            ASSERT_NEAR(values[i], wanted, wanted * error) << p << " " << i;
          }
        }
      }
    }));
  }
}

TEST(Gradients, AreReducedByAHook) {
  expect_no_errors(as_trainers(2, [](Trainer& trainer) {
    int calls = 0;
    const auto hook = [&](const GradientCall& call) {
      ++calls;
      EXPECT_EQ(call.scratch.bytes, call.data.bytes);
      call.comm.all_reduce(call.scratch, call.data, call.type, ReduceOp::kMax, call.stream);
      call.stream.launch(test::kKeep, {.reads = {call.scratch}, .writes = {call.data}});
    };
    Network network(trainer, kLayers, {.hook = hook});
    const int probes = calls;
    EXPECT_GT(probes, 0);  // what it costs was measured
    for (int step = 0; step < 3; ++step) network.run_step(step);
    trainer.compute.sync();
    EXPECT_GT(calls, probes);
    for (std::size_t p = 0; p < kLayers.size(); ++p)
      EXPECT_EQ(network.kept[p].host_read<float>()[0], Network::value(1, p, 2));
  }));
}

// Communicators of two halves of the ranks, for experts, and of all ranks, for shared parameters.
TEST(Gradients, OfSeveralCommunicators) {
  expect_no_errors(as_trainers(4, [](Trainer& trainer) {
    std::optional<Communicator> half = trainer.comm.split(trainer.rank() % 2);
    Trainer own{*half, trainer.device, trainer.device.stream(StreamFlags::kNonBlocking)};
    Network shared(trainer, kLayers, {.check_every = 2}), expert(own, {5000, 60'000}, {.check_every = 3});
    for (int step = 0; step < 8; ++step) {
      for (std::size_t i = 0; i < kLayers.size(); ++i) {
        shared.backward(i, step);
        if (i < 2) expert.backward(i, step);
      }
      for (std::size_t i = 0; i < 2; ++i) expert.optimize(i);
      for (std::size_t i = 0; i < kLayers.size(); ++i) shared.optimize(i);
      shared.gradients.step_end();
      expert.gradients.step_end();
      shared.expect_average(step);
      expert.expect_average(step);
    }
  }));
}

TEST(Gradients, SayWhatBecameOfAStep) {
  expect_no_errors(as_trainers(2, [](Trainer& trainer) {
    Network network(trainer, kLayers, {.cost = some_cost(), .check_every = 0, .measure = true});
    EXPECT_FALSE(network.gradients.report());
    for (int step = 0; step < 4; ++step) {
      network.run_step(step);
      trainer.compute.sync();
    }
    const std::optional<GradientReport> report = network.gradients.report();
    ASSERT_TRUE(report);
    EXPECT_EQ(report->step, 2U);  // the last one whose end is known: another follows
    EXPECT_EQ(report->buckets.size(), network.gradients.plan().buckets.size());
    EXPECT_GT(report->communication, 0);
    EXPECT_GE(report->time, report->bound);
    Picos sum = 0, exposed = 0;
    for (const GradientReport::Part& part : report->buckets) {
      EXPECT_LE(part.ready, part.start);
      EXPECT_LE(part.start, part.end);
      EXPECT_EQ(part.exposed > 0, !part.cause.empty());
      sum += part.end - part.start;
      exposed += part.exposed;
    }
    EXPECT_EQ(sum, report->communication);
    EXPECT_EQ(exposed, report->exposed);  // one stream waits
    EXPECT_NE(report->line().find("overlapped"), std::string::npos);
    EXPECT_NE(report->text().find("bucket"), std::string::npos);
  }));
}

// A captured step is proven; without one of its waits it is not.
TEST(Gradients, AStepIsProven) {
  for (const bool norm : {false, true}) {
    expect_no_errors(as_trainers(2, [&](Trainer& trainer) {
      Network network(trainer, kLayers, {.cost = some_cost(), .norm = norm});
      const auto issue = [&](int step, bool waits) {
        for (std::size_t i = kLayers.size(); i-- > 0;) network.backward(i, step);
        if (norm) network.gradients.clip_norm(1e12, trainer.compute);
        for (std::size_t i = 0; i < kLayers.size(); ++i) {
          if (waits || i > 0) network.optimize(i);
          else
            trainer.compute.launch(
                test::kKeep, {.reads = {network.gradients.view(network.parameters[i])}, .writes = {network.kept[i]}});
        }
        network.gradients.step_end();
      };
      issue(0, true);
      trainer.compute.sync();
      trainer.compute.begin_capture();
      issue(7, true);
      Plan plan = trainer.compute.end_capture();
      const Verification seen = verify(plan);
      EXPECT_TRUE(seen.proven()) << seen.text(plan);
      trainer.compute.launch(plan);
      network.expect_average(7);
      trainer.compute.launch(plan);
      network.expect_average(7);
      EXPECT_EQ(network.gradients.steps(), 1U);
      if (norm) return;
      trainer.compute.begin_capture();
      issue(8, false);
      plan = trainer.compute.end_capture();
      EXPECT_EQ(verify(plan).verdict, Verdict::kRace);
    }));
  }
}

// In the first step one stream writes all gradients of the bucket, in the second step another stream writes the last.
TEST(Gradients, AStreamMayJoinInALaterStep) {
  expect_no_errors(as_trainers(2, [](Trainer& trainer) {
    Network network(trainer, {300, 500, 1000}, {.buckets = BucketRule::kDdp});
    const Stream side = trainer.device.stream(StreamFlags::kNonBlocking);
    ASSERT_EQ(network.gradients.plan().buckets.size(), 1U);
    for (int step = 0; step < 2; ++step) network.run_step(step);
    network.expect_average(1);
    trainer.compute.begin_capture();
    side.wait(trainer.compute.record());
    network.backward(2, 7);
    network.backward(1, 7);
    const Range view = network.gradients.view(network.parameters[0]);
    side.launch(test::kCount, {.writes = {view}, .scalars = {Network::value(trainer.rank(), 0, 7)}});
    network.gradients.ready(network.parameters[0], side);
    for (std::size_t i = 0; i < 3; ++i) network.optimize(i);
    network.gradients.step_end();
    Plan plan = trainer.compute.end_capture();
    const Verification seen = verify(plan);
    EXPECT_TRUE(seen.proven()) << seen.text(plan);
    trainer.compute.launch(plan);
    network.expect_average(7);
  }));
}

}  // namespace
}  // namespace slip::test_gradients
