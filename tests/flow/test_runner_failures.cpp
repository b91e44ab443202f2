// Runners that fail, are destroyed early or share a device: nothing hangs, nothing uses freed memory, errors are
// reported.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>

#include "flow/random_graph.hpp"
#include "flow/stacks.hpp"
#include "slip/runner.hpp"
#include "support/errors.hpp"
#include "support/share.hpp"
#include "support/test_alarm.hpp"

namespace slip::test_runner_failures {
namespace {

using test::Chain;
using test::Weights;

[[maybe_unused]] const bool kAlarm = test::TestAlarm::install();
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

Chain chain_of(std::size_t layers) {
  return test::make_chain(std::vector<test::Layer>(layers, {kMiB + 4, 1'000'000}), 1e9);
}

WeightSource from(const Weights& weights) {
  return WeightSource::memory([&weights](const GraphValue& weight) {
    return std::as_bytes(std::span(weights[std::stoul(weight.name.substr(1))]));
  });
}

WeightsPlan half(const Chain& chain) {
  return plan_weights(chain.graph, chain.costs,
                      {.budget = chain.graph.bytes_of(ValueRole::kWeight) / 3 + 3 * kMiB, .search_effort = 20'000});
}

std::vector<std::uint32_t> filled(Runner& runner, const Chain& chain, std::uint32_t with) {
  const auto input = runner.input<std::uint32_t>(*chain.graph.find("x"));
  std::ranges::fill(input, with);
  return {input.begin(), input.end()};
}

void expect_right(Runner& runner, const Chain& chain, const Weights& weights, std::uint32_t with) {
  const std::vector<std::uint32_t> input = filled(runner, chain, with);
  runner.step();
  const Value y = *chain.graph.find(fmt::format("y{}", weights.size() - 1));
  EXPECT_TRUE(std::ranges::equal(runner.output<std::uint32_t>(y), test::expected(weights, input)));
}

// A chain whose op number `at` throws from its call number `on` on.
std::atomic<int> calls_until_failure{0};
void fail_in_time(const Args& args) {
  // Relaxed: only the number of calls counts.
  if (calls_until_failure.fetch_sub(1, std::memory_order_relaxed) <= 0) throw std::runtime_error("no more");
  std::ranges::copy(args.in<std::uint32_t>(0), args.out<std::uint32_t>(0).begin());
}
const Kernel kFail{"fail in time", fail_in_time};

struct FailingChain : Chain {
  FailingChain() : Chain(chain_of(12)) {
    const Value last = *graph.find("y11"), copy = graph.activation("copy", DataType::kU32, {64});
    graph.add_op({"fail", &kFail, {graph.all_of(last)}, {graph.all_of(copy)}, {}, {.bytes = 1}});
    const Value w = graph.weight("w12", DataType::kU32, {kMiB}), end = graph.activation("end", DataType::kU32, {64});
    const Kernel* mix = graph.ops().front().kernel;
    graph.add_op({"after", mix, {graph.all_of(copy), graph.all_of(w)}, {graph.all_of(end)}, {}, {.bytes = 1}});
    graph.output(end);
    costs.samples.push_back({"fail in time", 0, 0, 1, 1000});
  }
};

TEST(RunnerFailure, AKernelThatThrowsIsReportedByTheNextCalls) {
  for (int good = 0; good < 4; ++good) {
    const FailingChain chain;
    const Weights weights = test::random_weights(chain, 1);
    const WeightsPlan plan = half(chain);
    const Device device = Device::open("cpu");
    calls_until_failure.store(good, std::memory_order_relaxed);  // relaxed: nothing runs yet
    Runner runner(device, chain.graph, plan, from(weights));
    const Value end = *chain.graph.find("end");
    for (int i = 0; i < good; ++i) {
      filled(runner, chain, 1);
      runner.step();
    }
    if (good > 0) {
      EXPECT_NO_THROW(runner.output<std::uint32_t>(end));
    }
    filled(runner, chain, 2);
    runner.step();
    EXPECT_TRUE(test::fails([&] { runner.output<std::uint32_t>(end); }, ErrorCode::kLaunchFailed, {"no more"}));
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(test::fails([&] { runner.step(); }, ErrorCode::kLaunchFailed, {"no more"})) << i;
      EXPECT_TRUE(test::fails([&] { runner.sync(); }, ErrorCode::kLaunchFailed, {"no more"})) << i;
      EXPECT_TRUE(test::fails([&] { runner.output<std::uint32_t>(end); }, ErrorCode::kLaunchFailed, {"no more"})) << i;
    }
  }
}

TEST(RunnerFailure, OneThatFailsIsGivenUpWhileStepsAreOnTheirWay) {
  for (unsigned round = 0; round < 20 / test::kShare + 3; ++round) {
    const FailingChain chain;
    const Weights weights = test::random_weights(chain, 1);
    const WeightsPlan plan = half(chain);
    const Device device = Device::open("cpu");
    calls_until_failure.store(static_cast<int>(round % 3), std::memory_order_relaxed);  // relaxed: nothing runs yet
    {
      Runner runner(device, chain.graph, plan, from(weights));
      try {
        for (int i = 0; i < 4; ++i) {
          filled(runner, chain, 1);
          runner.step();
        }
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("no more"), std::string::npos) << error.what();
      }
    }
    // The device still works.
    const Chain other = chain_of(5);
    const Weights others = test::random_weights(other, 2);
    Runner runner(device, other.graph, half(other), from(others));
    expect_right(runner, other, others, 3);
  }
}

// Weights in a temporary file, in the page cache or only on disk.
class WeightsFile {
 public:
  WeightsFile(const Weights& weights, bool cold)
      : path(fmt::format("{}/slip-weights-{}.safetensors", testing::TempDir(), ::getpid())) {
    std::vector<TensorData> tensors;
    for (std::size_t i = 0; i < weights.size(); ++i)
      tensors.push_back(
          {fmt::format("w{}", i), DataType::kU32, {weights[i].size()}, std::as_bytes(std::span(weights[i]))});
    write_tensors(path, tensors);
    if (!cold) return;
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    ::fsync(file);  // dirty pages stay
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
  ~WeightsFile() { std::filesystem::remove(path); }
  WeightsFile(const WeightsFile&) = delete;
  WeightsFile& operator=(const WeightsFile&) = delete;
  const std::string path;
};

TEST(RunnerFailure, AReadThatFailsWithOthersInFlight) {
  const Chain chain = chain_of(20);
  const Weights weights = test::random_weights(chain, 3);
  const WeightsPlan plan = half(chain);
  for (int round = 0; round < 10; ++round) {
    const WeightsFile file(weights, round >= 4);
    const Device device = Device::open("cpu");
    bool named = false;
    {
      Runner runner(device, chain.graph, plan, WeightSource::files(file.path));
      filled(runner, chain, 1);
      runner.step();
      std::filesystem::resize_file(file.path, std::filesystem::file_size(file.path) / 3);
      try {
        for (int i = 0; i < 6; ++i) {
          filled(runner, chain, 1);
          runner.step();
        }
        if (round % 2) runner.sync();
      } catch (const Error& error) {
        named = std::string(error.what()).find(file.path) != std::string::npos;
        EXPECT_TRUE(named) << error.what();
      }
      EXPECT_TRUE(named || round % 2 == 0);
    }
  }
}

TEST(RunnerFailure, GivenUpWhileTheDiskReadsAhead) {
  const Chain chain = chain_of(20);
  const Weights weights = test::random_weights(chain, 11);
  const WeightsPlan plan = half(chain);
  const WeightsFile file(weights, true);
  const Device device = Device::open("cpu");
  for (int round = 0; round < 12; ++round) {
    Runner runner(device, chain.graph, plan, WeightSource::files(file.path));
    for (int i = 0; i < round % 3; ++i) {
      filled(runner, chain, 1);
      runner.step();
    }
    if (round == 11) expect_right(runner, chain, weights, 5);
  }
  EXPECT_EQ(device.memory().used, 0u);
}

TEST(RunnerFailure, GivenUpRightAfterAStep) {
  const Chain chain = chain_of(12);
  const Weights weights = test::random_weights(chain, 4);
  const WeightsPlan plan = half(chain);
  const Device device = Device::open("cpu");
  for (int round = 0; round < 30; ++round) {
    Runner runner(device, chain.graph, plan, from(weights));
    for (int i = 0; i < round % 4; ++i) {
      filled(runner, chain, 1);
      runner.step();
    }
  }
  EXPECT_EQ(device.memory().used, 0u);
}

TEST(RunnerFailure, TwoOnOneDeviceDoNotMeet) {
  const Chain chain = chain_of(12), other = chain_of(7);
  const Weights weights = test::random_weights(chain, 5), others = test::random_weights(other, 6);
  const Device device = Device::open("cpu");
  Runner first(device, chain.graph, half(chain), from(weights)), second(device, other.graph, half(other), from(others));
  for (std::uint32_t i = 0; i < 5; ++i) {
    filled(second, other, i);
    second.step();
    expect_right(first, chain, weights, i + 7);
    expect_right(second, other, others, i + 9);
  }
  std::thread beside([&] {
    for (std::uint32_t i = 0; i < 5; ++i) expect_right(first, chain, weights, i);
  });
  for (std::uint32_t i = 0; i < 5; ++i) expect_right(second, other, others, i);
  beside.join();
}

TEST(RunnerFailure, AnotherThreadThanTheMakersUsesAndEndsIt) {
  const Chain chain = chain_of(12);
  const Weights weights = test::random_weights(chain, 7);
  const Device device = Device::open("cpu");
  auto runner = std::make_unique<Runner>(device, chain.graph, half(chain), from(weights));
  expect_right(*runner, chain, weights, 1);
  filled(*runner, chain, 2);
  runner->step();
  std::thread([&] {
    expect_right(*runner, chain, weights, 3);
    filled(*runner, chain, 4);
    runner->step();
    runner.reset();
  }).join();
  EXPECT_EQ(device.memory().used, 0u);
}

TEST(RunnerFailure, CallsThatMakeNoSenseAreRefusedAndHarmNothing) {
  const Chain chain = chain_of(6);
  const Weights weights = test::random_weights(chain, 8);
  const Device device = Device::open("cpu");
  Runner runner(device, chain.graph, half(chain), from(weights));
  const Value x = *chain.graph.find("x"), y = *chain.graph.find("y5"), w = *chain.graph.find("w0");
  EXPECT_TRUE(test::fails([&] { runner.output<std::uint32_t>(y); }, ErrorCode::kNotReady, {"step"}));
  EXPECT_TRUE(test::fails([&] { runner.input<std::uint32_t>(w); }, ErrorCode::kInvalidValue, {"w0"}));
  expect_right(runner, chain, weights, 1);
  EXPECT_TRUE(test::fails([&] { runner.output<std::uint32_t>(x); }, ErrorCode::kInvalidValue, {"x"}));
  EXPECT_TRUE(test::fails([&] { runner.output<std::uint32_t>({1000}); }, ErrorCode::kInvalidValue, {"1000"}));
  expect_right(runner, chain, weights, 2);
}

TEST(RunnerFailure, APlanOfAnotherGraphIsRefused) {
  const Chain chain = chain_of(6), longer = chain_of(9), shorter = chain_of(3);
  const Weights weights = test::random_weights(longer, 9);
  const Device device = Device::open("cpu");
  for (const Chain* other : {&longer, &shorter}) {
    EXPECT_TRUE(
        test::fails([&] { Runner(device, chain.graph, half(*other), from(weights)); }, ErrorCode::kInvalidValue));
    EXPECT_TRUE(test::fails([&] { verify_weights(half(*other), chain.graph); }, ErrorCode::kInvalidValue));
    EXPECT_TRUE(
        test::fails([&] { predict_weights(half(*other), chain.graph, chain.costs); }, ErrorCode::kInvalidValue));
  }
  EXPECT_EQ(device.memory().used, 0u);
}

TEST(RunnerFailure, ASourceThatThrowsLeavesNothingBehind) {
  const Chain chain = chain_of(12);
  const Device device = Device::open("cpu");
  for (int good = 0; good < 12; ++good) {
    int left = good;
    const auto source = WeightSource::callback([&](const GraphValue&, std::uint64_t, std::span<std::byte> into) {
      if (left-- == 0) throw Error(ErrorCode::kIo, "the source is gone", Here::at());
      std::ranges::fill(into, std::byte{1});
    });
    EXPECT_TRUE(test::fails([&] { Runner(device, chain.graph, half(chain), source); }, ErrorCode::kIo, {"gone"}))
        << good;
    EXPECT_EQ(device.memory().used, 0u);
  }
}

// The program may destroy the graph before the runner, which keeps a copy.
TEST(RunnerFailure, TheGraphMayGo) {
  auto chain = std::make_unique<Chain>(chain_of(6));
  const Chain kept = chain_of(6);
  const Weights weights = test::random_weights(kept, 10);
  const Device device = Device::open("cpu");
  Runner runner(device, chain->graph, half(*chain), from(weights));
  chain.reset();
  expect_right(runner, kept, weights, 1);
  expect_right(runner, kept, weights, 2);
}

}  // namespace
}  // namespace slip::test_runner_failures
