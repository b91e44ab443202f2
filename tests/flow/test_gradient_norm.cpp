// Clipping gradients by their norm, for one communicator and for several together.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "gradient_ranks.hpp"
#include "support/errors.hpp"

namespace slip::test_gradient_norm {
namespace {

using test::as_trainers;
using test::expect_no_errors;
using test::fails;
using test::Network;
using test::Trainer;

ReduceCost some_cost() { return ReduceCost::of({.bytes_per_second = 1e9, .latency = 20'000'000}); }

TEST(GradientNorms, ClipTheGradients) {
  expect_no_errors(as_trainers(2, [](Trainer& trainer) {
    Network network(trainer, {1000, 7, 50'000}, {.cost = some_cost(), .norm = true});
    for (int step = 0; step < 4; ++step) {
      for (std::size_t i = 3; i-- > 0;) network.backward(i, step);
      const double max_norm = step == 3 ? 1e9 : 2.5;
      network.gradients.clip_norm(max_norm, trainer.compute);
      for (std::size_t i = 0; i < 3; ++i) network.optimize(i);
      network.gradients.step_end();
      trainer.compute.sync();
      double squares = 0, clipped = 0;
      for (std::size_t p = 0; p < 3; ++p) {
        const HostView<const float> values = network.kept[p].host_read<float>();
        for (std::size_t i = 0; i < values.size(); ++i) {
          const double one =
              (Network::value(0, p, step) + Network::value(1, p, step)) / 2 + static_cast<float>(i % 1000);
          squares += one * one;
          clipped += static_cast<double>(values[i]) * values[i];
        }
      }
      Buffer norm = trainer.device.alloc(8, MemoryKind::kPinned);
      trainer.device.copy(norm, network.gradients.norm());
      EXPECT_NEAR(norm.host_read<double>()[0], std::sqrt(squares), 1e-9 * std::sqrt(squares));
      EXPECT_NEAR(std::sqrt(clipped), std::min(max_norm, std::sqrt(squares)), 1e-5 * std::sqrt(squares));
    }
  }));
}

// Two halves of the ranks have experts of their own, and all ranks share parameters. There is one norm, the same on all
// ranks, in which each parameter counts once.
TEST(GradientNorms, OfSeveralCommunicatorsAreOne) {
  const std::vector<std::size_t> of_all = {1000, 70'000}, of_half = {5000, 300};
  std::vector<double> norms(4);
  expect_no_errors(as_trainers(4, [&](Trainer& trainer) {
    std::optional<Communicator> half = trainer.comm.split(trainer.rank() % 2);
    Trainer own{*half, trainer.device, trainer.device.stream(StreamFlags::kNonBlocking)};
    Network shared(trainer, of_all, {.check_every = 2, .norm = true});
    // The values differ between the halves.
    Network expert(own, of_half, {.check_every = 3, .norm = true});
    const int apart = 100 * (trainer.rank() % 2);
    for (int step = 0; step < 5; ++step) {
      for (std::size_t i = 2; i-- > 0;) {
        shared.backward(i, step);
        expert.backward(i, step + apart);
      }
      const double max_norm = step == 4 ? 1e9 : 2.5;
      Gradients* const sets[] = {&shared.gradients, &expert.gradients};
      Gradients::clip_norm(sets, trainer.comm, max_norm, trainer.compute);
      for (std::size_t i = 0; i < 2; ++i) shared.optimize(i), expert.optimize(i);
      shared.gradients.step_end();
      expert.gradients.step_end();
      trainer.compute.sync();
      own.compute.sync();
      double squares = 0;
      const auto value = [](std::size_t p, int at, std::size_t i, int ranks) {
        double sum = 0;
        for (int rank = 0; rank < ranks; ++rank) sum += Network::value(rank, p, at) + static_cast<float>(i % 1000);
        return sum / ranks;
      };
      for (std::size_t p = 0; p < 2; ++p) {
        for (std::size_t i = 0; i < of_all[p]; ++i) squares += std::pow(value(p, step, i, 4), 2);
        for (const int at : {step, step + 100}) {
          for (std::size_t i = 0; i < of_half[p]; ++i) squares += std::pow(value(p, at, i, 2), 2);
        }
      }
      const double norm = std::sqrt(squares), factor = std::min(1.0, max_norm / norm);
      for (const Network* network : {&shared, &expert}) {
        Buffer host_norm = trainer.device.alloc(8, MemoryKind::kPinned);
        trainer.device.copy(host_norm, network->gradients.norm());
        EXPECT_NEAR(host_norm.host_read<double>()[0], norm, 1e-9 * norm);
        norms[static_cast<std::size_t>(trainer.rank())] = host_norm.host_read<double>()[0];
      }
      for (std::size_t p = 0; p < 2; ++p) {
        const float mine = shared.kept[p].host_read<float>()[7], theirs = expert.kept[p].host_read<float>()[7];
        EXPECT_NEAR(mine, factor * value(p, step, 7, 4), 1e-6 * value(p, step, 7, 4));
        EXPECT_NEAR(theirs, factor * value(p, step + apart, 7, 2), 1e-6 * value(p, step + apart, 7, 2));
      }
    }
    Gradients* const sets[] = {&shared.gradients, &expert.gradients};
    EXPECT_TRUE(
        fails([&] { Gradients::clip_norm({}, trainer.comm, 1, trainer.compute); }, ErrorCode::kInvalidValue, {"none"}));
    EXPECT_TRUE(fails([&] { Gradients::clip_norm(sets, trainer.comm, 1, trainer.compute); }, ErrorCode::kNotReady,
                      {"waits for"}));
  }));
  for (const double norm : norms) EXPECT_EQ(norm, norms[0]);
}

}  // namespace
}  // namespace slip::test_gradient_norm
