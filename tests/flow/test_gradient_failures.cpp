// Wrong uses of Gradients on one rank become errors on all ranks. No rank hangs: deadlines are short.
#include <gtest/gtest.h>

#include "gradient_ranks.hpp"
#include "support/errors.hpp"

namespace slip::test_gradient_failures {
namespace {

using test::as_trainers;
using test::fails;
using test::Met;
using test::Network;
using test::Trainer;

std::vector<Met> with_trainers(int count, const std::function<void(Trainer&)>& body) {
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(20);
  return as_trainers(count, body, options);
}

void expect_all(const std::vector<Met>& met, ErrorCode code, std::initializer_list<std::string_view> words) {
  for (std::size_t rank = 0; rank < met.size(); ++rank) {
    ASSERT_TRUE(met[rank].code) << "rank " << rank << " met no error";
    EXPECT_EQ(*met[rank].code, code) << met[rank].text;
    for (const std::string_view word : words)
      EXPECT_NE(met[rank].text.find(word), std::string::npos) << word << " is not in: " << met[rank].text;
  }
}

ReduceCost some_cost() { return ReduceCost::of({.bytes_per_second = 1e9, .latency = 20'000'000}); }

class GradientFailures : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GradientFailures, testing::Values(2, 4));

TEST_P(GradientFailures, RegisteredTwice) {
  expect_all(with_trainers(GetParam(),
                           [](Trainer& trainer) {
                             Gradients gradients(trainer.comm, trainer.device);
                             gradients.add("fc.weight", 4096, DataType::kF32);
                             if (trainer.rank() == 1) gradients.add("fc.weight", 512, DataType::kF32);
                             gradients.seal();
                           }),
             ErrorCode::kInvalidValue, {"rank 1", "'fc.weight'", "4096 bytes", "512 bytes"});
}

TEST_P(GradientFailures, OtherSizes) {
  expect_all(with_trainers(GetParam(),
                           [](Trainer& trainer) {
                             Gradients gradients(trainer.comm, trainer.device);
                             gradients.add("a", 64, DataType::kF32);
                             gradients.add("fc.weight", trainer.rank() == 1 ? 2048 : 4096, DataType::kF32);
                             gradients.seal();
                           }),
             ErrorCode::kMismatch, {"rank 1", "'fc.weight'", "2048 bytes", "4096 bytes", "rank 0"});
}

TEST_P(GradientFailures, OtherTypes) {
  expect_all(with_trainers(GetParam(),
                           [](Trainer& trainer) {
                             Gradients gradients(trainer.comm, trainer.device);
                             gradients.add("fc.weight", 4096, trainer.rank() == 1 ? DataType::kBF16 : DataType::kF32);
                             gradients.seal();
                           }),
             ErrorCode::kMismatch, {"rank 1", "'fc.weight'", "BF16", "F32"});
}

TEST_P(GradientFailures, OtherNumberOfParameters) {
  expect_all(with_trainers(GetParam(),
                           [](Trainer& trainer) {
                             Gradients gradients(trainer.comm, trainer.device);
                             gradients.add("a", 64, DataType::kF32);
                             if (trainer.rank() == 0) gradients.add("b", 128, DataType::kF32);
                             gradients.seal();
                           }),
             ErrorCode::kMismatch, {"parameter 1", "none", "'b' (128 bytes of F32)"});
}

TEST_P(GradientFailures, OtherOptions) {
  expect_all(with_trainers(GetParam(),
                           [](Trainer& trainer) {
                             Gradients gradients(
                                 trainer.comm, trainer.device,
                                 {.buckets = trainer.rank() == 1 ? BucketRule::kDdp : BucketRule::kEach});
                             gradients.add("a", 64, DataType::kF32);
                             gradients.seal();
                           }),
             ErrorCode::kMismatch, {"options", "rank 1", "ddp", "each"});
}

TEST_P(GradientFailures, ReadyTwice) {
  for (const int bad_step : {0, 4}) {
    expect_all(with_trainers(GetParam(),
                             [&](Trainer& trainer) {
                               Network network(trainer, {1000, 64}, {.cost = some_cost()});
                               for (int step = 0; step < 8; ++step) {
                                 network.backward(1, step);
                                 if (step == bad_step && trainer.rank() == 1) network.backward(1, step);
                                 network.backward(0, step);
                                 network.optimize(0);
                                 network.optimize(1);
                                 network.gradients.step_end();
                                 trainer.compute.sync();
                               }
                             }),
               ErrorCode::kInvalidValue, {"rank 1", "twice", "'layer1'", "256 bytes"});
  }
}

TEST_P(GradientFailures, ARankSkipsAParameter) {
  for (const int bad_step : {0, 4}) {
    for (const BucketRule rule : {BucketRule::kPlanned, BucketRule::kEach}) {
      expect_all(with_trainers(GetParam(),
                               [&](Trainer& trainer) {
                                 Network network(trainer, {1000, 64, 5000}, {.buckets = rule, .cost = some_cost()});
                                 for (int step = 0; step < 8; ++step) {
                                   network.backward(2, step);
                                   if (step != bad_step || trainer.rank() != 1) network.backward(1, step);
                                   network.backward(0, step);
                                   network.gradients.step_end();
                                   for (std::size_t i = 0; i < 3; ++i) network.optimize(i);
                                   trainer.compute.sync();
                                 }
                               }),
                 ErrorCode::kInvalidValue, {"rank 1", "'layer1'", "256 bytes", "neither"});
    }
  }
}

TEST_P(GradientFailures, AHookThrows) {
  for (const bool own_type : {false, true}) {
    const std::vector<Met> met = with_trainers(GetParam(), [&](Trainer& trainer) {
      bool throws = false;
      const auto hook = [&](const GradientCall& call) {
        if (throws && own_type) throw Error(ErrorCode::kOutOfMemory, "no room for it");
        if (throws) throw std::runtime_error("no room for it");
        call.comm.all_reduce(call.data, call.data, call.type, ReduceOp::kAvg, call.stream);
      };
      Network network(trainer, {1000, 64}, {.hook = hook, .cost = some_cost()});
      for (int step = 0; step < 5; ++step) {
        throws = step == 3 && trainer.rank() == 1;
        network.run_step(step);
        trainer.compute.sync();
      }
    });
    expect_all(met, own_type ? ErrorCode::kOutOfMemory : ErrorCode::kLaunchFailed,
               {"rank 1", "'layer", "bytes of F32", "hook", "no room for it"});
  }
}

// The kernel that writes a gradient fails on one rank.
TEST_P(GradientFailures, AKernelThrows) {
  static const Kernel kFail{"fails", [](const Args&) { throw std::runtime_error("bad numbers"); }};
  const std::vector<Met> met = with_trainers(GetParam(), [&](Trainer& trainer) {
    Network network(trainer, {1000, 64}, {.cost = some_cost()});
    for (int step = 0; step < 3; ++step) {
      if (step == 2 && trainer.rank() == 1)
        trainer.compute.launch(kFail, {.writes = {network.gradients.view(network.parameters[1])}});
      network.run_step(step);
      trainer.compute.sync();
    }
  });
  EXPECT_NE(met[1].text.find("bad numbers"), std::string::npos) << met[1].text;
  for (const Met& one : met) {
    EXPECT_TRUE(one.code && *one.code != ErrorCode::kTimeout) << one.text;
    const bool named =
        one.text.find("bad numbers") != std::string::npos || one.text.find("rank 1") != std::string::npos;
    EXPECT_TRUE(named) << one.text;
  }
}

TEST(GradientMisuse, IsReportedAtOnce) {
  const std::vector<Met> met = with_trainers(1, [](Trainer& trainer) {
    Gradients gradients(trainer.comm, trainer.device, {.buckets = BucketRule::kDdp});
    const ParameterId a = gradients.add("a", 64, DataType::kF32);
    EXPECT_TRUE(fails([&] { gradients.ready(a, trainer.compute); }, ErrorCode::kNotReady, {"seal"}));
    const ParameterId b = gradients.add("b", 64, DataType::kF32);
    gradients.seal();
    EXPECT_TRUE(fails([&] { gradients.seal(); }, ErrorCode::kInvalidValue, {"already"}));
    EXPECT_TRUE(fails([&] { gradients.add("c", 64, DataType::kF32); }, ErrorCode::kInvalidValue, {"'c'"}));
    EXPECT_TRUE(fails([&] { gradients.ready(ParameterId{2}, trainer.compute); }, ErrorCode::kInvalidValue, {"2"}));
    gradients.ready(b, trainer.compute);
    EXPECT_TRUE(
        fails([&] { gradients.wait(b, trainer.compute); }, ErrorCode::kNotReady, {"'b'", "'a' (64 bytes of F32)"}));
    EXPECT_TRUE(fails([&] { gradients.clip_norm(1, trainer.compute); }, ErrorCode::kInvalidValue, {"norm"}));
    gradients.ready(a, trainer.compute);
    gradients.wait(b, trainer.compute);
    gradients.step_end();
    EXPECT_TRUE(fails([&] { Gradients wrong(trainer.comm, trainer.device, {.check_every = -1}); },
                      ErrorCode::kInvalidValue, {"-1"}));
    trainer.compute.sync();
  });
  test::expect_no_errors(met);
  const struct {
    const char* name;
    std::uint64_t bytes;
    DataType type;
  } wrong[] = {
      {"", 64, DataType::kF32}, {"odd", 63, DataType::kF32}, {"empty", 0, DataType::kF32}, {"b", 4, DataType::kBool}};
  for (const auto& one : wrong) {
    const std::vector<Met> each = with_trainers(1, [&](Trainer& trainer) {
      Gradients gradients(trainer.comm, trainer.device);
      gradients.add(one.name, one.bytes, one.type);
    });
    EXPECT_TRUE(each[0].code) << one.name;
  }
}

}  // namespace
}  // namespace slip::test_gradient_failures
