// Every built-in op on every device of this machine against sums in double, with fresh random values each time.
//
// Tolerances: an op on F32 may be off by what rounding does to sums of that length (a random walk, with a margin of
// some deviations; far below what sums in TF32 or BF16 would give); BF16 adds the rounding of its result.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <ostream>
#include <random>

#include "backend/child.hpp"
#include "base/team.hpp"
#include "model/kernels.hpp"
#include "run_graph.hpp"
#include "support/devices.hpp"

namespace slip::test_kernels {
namespace {

using model_test::Bytes;
using model_test::loaded;
using model_test::run_graph;
using model_test::stored;
using Numbers = std::vector<double>;

constexpr double kUlp = 0x1p-24;  // the largest relative error of rounding to F32

struct Expected {
  double value = 0, tolerance = 0;
};

struct KernelCase {
  std::string device;
  DataType type;
};
void PrintTo(const KernelCase& of, std::ostream* out) { *out << of.device << ' ' << data_type_name(of.type); }

class Kernels : public testing::TestWithParam<KernelCase> {
 protected:
  void SetUp() override {
    if (GetParam().device == "cuda:0" && !test::has_cuda()) GTEST_SKIP() << "there is no cuda:0 on this machine";
    seed_ = std::random_device{}();
    random_.seed(seed_);
    std::printf("seed %u\n", seed_);
  }

  DataType type() const { return GetParam().type; }

  // Values of the type, so that they are exact in the reference, too.
  Numbers some(std::size_t count, double scale = 1) {
    std::normal_distribution<double> normal(0, scale);
    Numbers values(count);
    for (double& value : values) value = normal(random_);
    return loaded(type(), stored(type(), values));
  }

  Numbers run(const Graph& graph, const std::map<std::string, Numbers>& given) const {
    std::map<std::string, Bytes> bytes;
    for (const auto& [name, values] : given) bytes[name] = stored(type(), values);
    return loaded(type(), run_graph(graph, Device::open(GetParam().device), bytes).begin()->second);
  }

  void expect_close(const Numbers& found, const std::function<Expected(std::size_t)>& expected) const {
    const double of_result = type() == DataType::kBF16 ? 0x1p-8 : 0;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < found.size() && wrong < 3; ++i) {
      const Expected at = expected(i);
      const double allowed = at.tolerance + of_result * std::abs(at.value) + 1e-37;
      if (std::abs(found[i] - at.value) <= allowed) continue;
      ++wrong;
      ADD_FAILURE() << "element " << i << " is " << found[i] << ", not " << at.value << " +- " << allowed << " (seed "
                    << seed_ << ")";
    }
  }

  // One op on x [tokens, columns].
  using Make = std::function<Value(Graph&, Value)>;
  Numbers run_one(std::size_t tokens, std::size_t columns, const Make& make,
                  std::map<std::string, Numbers> given) const {
    Graph graph;
    graph.output(make(graph, graph.input("x", type(), {tokens, columns})));
    return run(graph, given);
  }

  void check_linear(std::size_t tokens, std::size_t in, std::size_t out, std::uint64_t part_bytes) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens, " << in << " to " << out << ", parts of " << part_bytes);
    const Numbers x = some(tokens * in), w = some(out * in);
    Graph graph({.part_bytes = part_bytes});
    const Value from = graph.input("x", type(), {tokens, in});
    graph.output(graph.linear("y", from, graph.weight("w", type(), {out, in})));
    expect_close(run(graph, {{"x", x}, {"w", w}}), [&](std::size_t i) {
      const double *a = &x[i / out * in], *b = &w[i % out * in];
      double sum = 0, sizes = 0;
      for (std::size_t k = 0; k < in; ++k) sum += a[k] * b[k], sizes += std::abs(a[k] * b[k]);
      return Expected{sum, kUlp * (8 + 2 * std::sqrt(static_cast<double>(in))) * sizes};
    });
  }

  unsigned seed_ = 0;
  std::mt19937 random_;
};

constexpr std::size_t kTokens[] = {1, 3, 64, 257};

TEST_P(Kernels, Linear) {
  for (const std::size_t tokens : kTokens) {
    check_linear(tokens, 64, 128, 1 << 25);
    check_linear(tokens, 33, 131, 1 << 25);
    check_linear(tokens, 1, 1, 1 << 25);
    check_linear(tokens, 5, 300, 1);  // parts of 128 rows and a rest
  }
  check_linear(1, 2048, 1024, 1 << 20);
  check_linear(64, 1100, 520, 1 << 20);
  check_linear(4, 1027, 259, 1 << 25);
  check_linear(5, 1027, 259, 1 << 25);
}

TEST_P(Kernels, AddMultiplyBias) {
  for (const std::size_t tokens : kTokens) {
    for (const std::size_t columns : {1, 7, 256, 1031}) {
      const Numbers x = some(tokens * columns), w = some(tokens * columns), b = some(columns);
      const Shape whole = {tokens, columns};
      expect_close(
          run_one(tokens, columns, [&](Graph& g, Value v) { return g.add("y", v, g.weight("w", type(), whole)); },
                  {{"x", x}, {"w", w}}),
          [&](std::size_t i) {
            return Expected{x[i] + w[i], kUlp * std::abs(x[i] + w[i])};
          });
      expect_close(
          run_one(tokens, columns, [&](Graph& g, Value v) { return g.multiply("y", v, g.weight("w", type(), whole)); },
                  {{"x", x}, {"w", w}}),
          [&](std::size_t i) {
            return Expected{x[i] * w[i], kUlp * std::abs(x[i] * w[i])};
          });
      expect_close(
          run_one(tokens, columns, [&](Graph& g, Value v) { return g.bias("y", v, g.weight("b", type(), {columns})); },
                  {{"x", x}, {"b", b}}),
          [&](std::size_t i) {
            const double sum = x[i] + b[i % columns];
            return Expected{sum, kUlp * std::abs(sum)};
          });
    }
  }
}

TEST_P(Kernels, Activations) {
  for (const std::size_t tokens : kTokens) {
    for (const std::size_t columns : {1, 7, 256, 1031}) {
      const Numbers x = some(tokens * columns, 4);
      expect_close(run_one(tokens, columns, [](Graph& g, Value v) { return g.relu("y", v); }, {{"x", x}}),
                   [&](std::size_t i) {
                     return Expected{std::max(x[i], 0.0), 0};
                   });
      expect_close(run_one(tokens, columns, [](Graph& g, Value v) { return g.gelu("y", v); }, {{"x", x}}),
                   [&](std::size_t i) {
                     const double y = 0.5 * x[i] * std::erfc(-x[i] * M_SQRT1_2);
                     return Expected{
                         y, std::abs(y) * kUlp * (16 + 4 * x[i] * x[i])};  // the argument's error grows with its square
                   });
      expect_close(run_one(tokens, columns, [](Graph& g, Value v) { return g.silu("y", v); }, {{"x", x}}),
                   [&](std::size_t i) {
                     const double y = x[i] / (1 + std::exp(-x[i]));
                     return Expected{y, std::abs(y) * kUlp * 16};
                   });
    }
  }
}

TEST_P(Kernels, Norms) {
  for (const std::size_t tokens : kTokens) {
    for (const std::size_t columns : {1, 7, 256, 1031, 5000}) {
      const double epsilon = 1e-5, count = static_cast<double>(columns);
      const Numbers w = some(columns), b = some(columns);
      Numbers x = some(tokens * columns, 3);
      for (double& value : x) value += 8;  // a large mean
      x = loaded(type(), stored(type(), x));
      Numbers mean(tokens), square(tokens), variance(tokens);
      for (std::size_t i = 0; i < x.size(); ++i)
        mean[i / columns] += x[i] / count, square[i / columns] += x[i] * x[i] / count;
      for (std::size_t i = 0; i < x.size(); ++i) variance[i / columns] += std::pow(x[i] - mean[i / columns], 2) / count;
      const double rounding = kUlp * (16 + 2 * std::sqrt(count));
      const auto rms = [&](Graph& g, Value v) { return g.rms_norm("y", v, g.weight("w", type(), {columns}), epsilon); };
      expect_close(run_one(tokens, columns, rms, {{"x", x}, {"w", w}}), [&](std::size_t i) {
        const double y = x[i] / std::sqrt(square[i / columns] + epsilon) * w[i % columns];
        return Expected{y, std::abs(y) * rounding};
      });
      const auto layer = [&](Graph& g, Value v) {
        return g.layer_norm("y", v, g.weight("w", type(), {columns}), g.weight("b", type(), {columns}), epsilon);
      };
      expect_close(run_one(tokens, columns, layer, {{"x", x}, {"w", w}, {"b", b}}), [&](std::size_t i) {
        const std::size_t row = i / columns;
        const double scale = std::abs(w[i % columns]) / std::sqrt(variance[row] + epsilon);
        const double y = (x[i] - mean[row]) / std::sqrt(variance[row] + epsilon) * w[i % columns] + b[i % columns];
        return Expected{y, ((std::abs(x[i]) + std::abs(mean[row])) * scale + std::abs(b[i % columns])) * rounding};
      });
    }
  }
}

TEST_P(Kernels, WhatIsNoNumberStaysWhereItBelongs) {
  for (const std::size_t tokens : {2, 70}) {
    constexpr std::size_t kIn = 40, kOut = 130;
    Numbers x = some(tokens * kIn), w = some(kOut * kIn);
    x[kIn + 3] = NAN;           // token 1
    w[5 * kIn + 7] = INFINITY;  // row 5
    x[7] = 1;
    Graph graph;
    const Value from = graph.input("x", type(), {tokens, kIn});
    graph.output(graph.linear("y", from, graph.weight("w", type(), {kOut, kIn})));
    const Numbers y = run(graph, {{"x", x}, {"w", w}});
    EXPECT_EQ(y[5], INFINITY);
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (i / kOut == 1) EXPECT_TRUE(std::isnan(y[i])) << i;
      else if (i % kOut != 5) EXPECT_TRUE(std::isfinite(y[i])) << i;
      else EXPECT_FALSE(std::isfinite(y[i])) << i;
    }
  }
  const Numbers x = {NAN, INFINITY, -INFINITY, -0.0, 1};
  const auto apply = [&](const Make& make) { return run_one(1, x.size(), make, {{"x", x}}); };
  for (const Make& make :
       {Make([](Graph&g, Value v) { return g.relu("y", v); }), Make([](Graph&g, Value v) { return g.gelu("y", v); }),
        Make([](Graph&g, Value v) { return g.silu("y", v); })}) {
    const Numbers y = apply(make);
    EXPECT_TRUE(std::isnan(y[0]));
    EXPECT_EQ(y[1], INFINITY);
    EXPECT_EQ(y[2], 0);
    EXPECT_EQ(y[3], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Kernels,
                         testing::Values(KernelCase{"cpu", DataType::kF32}, KernelCase{"cpu", DataType::kBF16},
                                         KernelCase{"cuda:0", DataType::kF32}, KernelCase{"cuda:0", DataType::kBF16}),
                         [](const testing::TestParamInfo<KernelCase>& of) {
                           return (of.param.device == "cpu" ? std::string("cpu_") : std::string("cuda_")) +
                                  data_type_name(of.param.type);
                         });

// The bits of a linear on the cpu, in one part or in many, on all cores or on one.
TEST(CpuLinear, BitsDependOnNothingButTheValues) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  const Device device = Device::open("cpu");
  for (const DataType type : {DataType::kF32, DataType::kBF16}) {
    for (const std::size_t tokens : {1, 4, 5, 64, 300}) {
      SCOPED_TRACE(testing::Message() << data_type_name(type) << ", " << tokens << " tokens, seed " << seed);
      constexpr std::size_t kIn = 1500, kOut = 700;
      Numbers x(tokens * kIn), w(kOut * kIn);
      for (double& value : x) value = normal(random);
      for (double& value : w) value = normal(random);
      const std::map<std::string, Bytes> given = {{"x", stored(type, x)}, {"w", stored(type, w)}};
      Bytes whole;
      for (const std::uint64_t part_bytes : {1ULL << 30, 1ULL << 20, 1ULL}) {
        Graph graph({.part_bytes = part_bytes});
        const Value from = graph.input("x", type, {tokens, kIn});
        graph.output(graph.linear("y", from, graph.weight("w", type, {kOut, kIn})));
        EXPECT_EQ(graph.ops().size() == 1, part_bytes == 1ULL << 30);
        const Bytes y = run_graph(graph, device, given).at("y");
        if (whole.empty()) whole = y;
        EXPECT_TRUE(y == whole) << part_bytes;
      }
      // Inside for_each_index the team of threads is busy, so that the kernel runs on one thread.
      Bytes alone(whole.size());
      Bytes xs = given.at("x"), ws = given.at("w");
      const ArgBytes reads[] = {{xs.data(), xs.size()}, {ws.data(), ws.size()}},
                     writes[] = {{alone.data(), alone.size()}};
      const auto scalars = model::LinearSizes{type, tokens, kIn, kOut, 0, kOut}.scalars();
      base::for_each_index(2, [&](std::size_t index) {
        if (index == 0) model::kernel_of(model::BuiltIn::kLinear).cpu(Args(reads, writes, scalars));
      });
      EXPECT_TRUE(alone == whole);
    }
  }
}

// Kernels of several streams at once: they share the cores, and the BLAS is called by many threads.
TEST(CpuLinear, SeveralStreamsAtOnce) {
  constexpr std::size_t kTokens64 = 64, kIn = 300, kOut = 520, kStreams = 4, kRounds = 25;
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Numbers x(kTokens64 * kIn), w(kOut * kIn);
  for (double& value : x) value = normal(random);
  for (double& value : w) value = normal(random);
  Bytes xs = stored(DataType::kF32, x), ws = stored(DataType::kF32, w);
  const Device device = Device::open("cpu", {.compute_workers = kStreams});
  const Buffer from = device.wrap(xs.data(), xs.size(), MemoryKind::kPinned);
  const Buffer rows = device.wrap(ws.data(), ws.size(), MemoryKind::kPinned);
  const auto scalars = model::LinearSizes{DataType::kF32, kTokens64, kIn, kOut, 0, kOut}.scalars();
  std::vector<Stream> streams;
  std::vector<Bytes> results(kStreams * kRounds, Bytes(kTokens64 * kOut * sizeof(float)));
  std::vector<Buffer> into;
  for (Bytes& result : results) into.push_back(device.wrap(result.data(), result.size(), MemoryKind::kPinned));
  for (std::size_t i = 0; i < kStreams; ++i) streams.push_back(device.stream(StreamFlags::kNonBlocking));
  for (std::size_t i = 0; i < results.size(); ++i)
    streams[i % kStreams].launch(model::kernel_of(model::BuiltIn::kLinear),
                                 {.reads = {from, rows}, .writes = {into[i]}, .scalars = scalars});
  device.sync();
  for (const Bytes& result : results) EXPECT_TRUE(result == results[0]);
  EXPECT_NE(results[0], Bytes(results[0].size()));
}

// exit() while kernels run: they must not race with the destructors of libraries.
TEST(CpuLinear, TheProcessMayExitMeanwhile) {
  if (!test::kThreadsAfterFork) GTEST_SKIP() << "the thread sanitizer ends a child that starts threads";
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the leak check at exit counts memory of threads that still run";
#endif
  for (int round = 0; round < 10; ++round) {
    const int code = test::child_exit([] {
      constexpr std::size_t kTokens256 = 256, kSize = 1024;
      const auto scalars = model::LinearSizes{DataType::kF32, kTokens256, kSize, kSize, 0, kSize}.scalars();
      const Device device = Device::open("cpu");
      const Stream stream = device.stream();
      const Buffer x = device.alloc(kTokens256 * kSize * 4), w = device.alloc(kSize * kSize * 4),
                   y = device.alloc(kTokens256 * kSize * 4);
      device.fill(x, 0);
      device.fill(w, 0);
      const auto launch = [&] {
        stream.launch(model::kernel_of(model::BuiltIn::kLinear), {.reads = {x, w}, .writes = {y}, .scalars = scalars});
      };
      launch();
      const Event first = stream.record();
      for (int i = 0; i < 20; ++i) launch();
      first.sync();
      std::exit(0);  // the second kernel runs, or starts at once
      return 1;
    });
    EXPECT_EQ(code, 0);
  }
}

}  // namespace
}  // namespace slip::test_kernels
