// Pipelines: results on every device and policy, proofs, predictions, failures.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "slip/pipeline.hpp"
#include "slip/race.hpp"
#include "support/errors.hpp"

namespace slip::test::test_pipeline {
namespace {

constexpr Picos kMicro = 1'000'000;

// Two kernels per chunk, the second in place.
const Kernel kWiden{"widen", [](const Args& args) {
                      const auto in = args.in<std::uint32_t>(0);
                      const auto out = args.out<std::uint64_t>(0);
                      for (std::size_t i = 0; i < in.size(); ++i) out[i] = std::uint64_t{in[i]} * 3;
                    }};
const Kernel kNumber{"number", [](const Args& args) {
                       auto place = args.scalar<std::uint64_t>(0);
                       for (std::uint64_t& value : args.out<std::uint64_t>(0)) value += place++;
                     }};
std::uint64_t expected(std::uint32_t value, std::uint64_t place) { return std::uint64_t{value} * 3 + place; }

void issue_both(const PipelineChunk& chunk) {
  chunk.stream.launch(kWiden, {.reads = {chunk.input}, .writes = {chunk.output}}, {.bytes = chunk.input.bytes});
  chunk.stream.launch(kNumber, {.reads = {chunk.output}, .writes = {chunk.output}, .scalars = {chunk.first}},
                      {.bytes = chunk.output.bytes});
}

PipelineSpec spec_of(std::uint64_t elements, std::uint64_t chunk, std::uint32_t depth) {
  return {.elements = elements,
          .bytes_in = sizeof(std::uint32_t),
          .bytes_out = sizeof(std::uint64_t),
          .issue = issue_both,
          .memory = 1 << 20,
          .stages = {.in = {1e9, 0}, .kernels = {1e9, 0}, .out = {1e9, 0}},
          .chunk = chunk,
          .depth = depth};
}

enum class End { kPinned, kPageable, kFunction };

// The data of one run, with a source and a sink of any kind.
struct Data {
  Data(const Device& device, std::uint64_t elements, unsigned seed)
      : values(elements),
        results(elements),
        pinned_in(device.alloc(elements * sizeof(std::uint32_t), MemoryKind::kPinned, "input")),
        pinned_out(device.alloc(elements * sizeof(std::uint64_t), MemoryKind::kPinned, "output")),
        pageable_in(device.wrap(values.data(), elements * sizeof(std::uint32_t))),
        pageable_out(device.wrap(results.data(), elements * sizeof(std::uint64_t))) {
    std::mt19937 random(seed);
    for (std::uint32_t& value : values) value = static_cast<std::uint32_t>(random());
    std::copy(values.begin(), values.end(), pinned_in.host_write<std::uint32_t>().begin());
  }

  PipelineSource source(End end) {
    if (end == End::kPinned) return pinned_in;
    if (end == End::kPageable) return pageable_in;
    return PipelineSource([this](std::uint64_t first, std::span<std::byte> into) {
      std::memcpy(into.data(), values.data() + first, into.size());
    });
  }
  PipelineSink sink(End end) {
    if (end == End::kPinned) return pinned_out;
    if (end == End::kPageable) return pageable_out;
    return PipelineSink([this](std::uint64_t first, std::span<const std::byte> from) {
      std::memcpy(results.data() + first, from.data(), from.size());
    });
  }
  testing::AssertionResult right(End sink_end) {
    if (sink_end == End::kPinned) {
      const auto view = pinned_out.host_read<std::uint64_t>();
      results.assign(view.begin(), view.end());
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (results[i] != expected(values[i], i)) return testing::AssertionFailure() << "element " << i;
    }
    std::fill(results.begin(), results.end(), 0);
    return testing::AssertionSuccess();
  }

  std::vector<std::uint32_t> values;
  std::vector<std::uint64_t> results;
  Buffer pinned_in, pinned_out, pageable_in, pageable_out;
};

constexpr End kEnds[] = {End::kPinned, End::kPageable, End::kFunction};

void expect_right_results(const Device& device, unsigned seed) {
  std::mt19937 random(seed);
  for (const End from : kEnds) {
    for (const End to : kEnds) {
      const std::uint64_t elements = 1 + random() % 5000, chunk = 1 + random() % 900;
      const std::uint32_t depth = 1 + random() % 4;
      SCOPED_TRACE(fmt::format("seed {}: {} elements, chunks of {}, {} slots, ends {} {}", seed, elements, chunk, depth,
                               static_cast<int>(from), static_cast<int>(to)));
      Data data(device, elements, seed);
      Pipeline pipeline(device, spec_of(elements, chunk, depth));
      for (int again = 0; again < 2; ++again) {
        const PipelineReport report = pipeline.run(data.source(from), data.sink(to));
        EXPECT_GE(report.measured, 0);
        ASSERT_TRUE(data.right(to));
      }
    }
  }
}

TEST(Pipeline, GivesTheResultsOfADirectComputation) {
  for (unsigned seed = 1; seed <= 5; ++seed) expect_right_results(Device::open("cpu"), seed);
  expect_right_results(Device::open("cpu", {.policy = CpuPolicy::kSingle}), 6);
  expect_right_results(Device::open("cpu", {.strict = true}), 7);
  expect_right_results(Device::open("sim:h200"), 8);
  expect_right_results(Device::open("sim:laptop"), 9);
}

// Ready ops run in random order: a missing wait would give wrong results.
TEST(Pipeline, HoldsInEveryOrderOfReadyWork) {
  for (unsigned seed = 1; seed <= 40; ++seed)
    expect_right_results(Device::open("cpu", {.policy = CpuPolicy::kRandom, .seed = seed}), seed);
}

TEST(Pipeline, PlansByItself) {
  const Device device = Device::open("cpu");
  Data data(device, 100'000, 5);
  PipelineSpec spec = spec_of(100'000, 0, 0);
  spec.stages = {};  // measured
  spec.memory = 200'000;
  RaceChecker checker;  // measuring reuses memory, too
  Pipeline pipeline(device, spec);
  EXPECT_GT(pipeline.stages().kernels.bytes_per_second, 0);
  EXPECT_LE(device.memory().peak, 200'000u);
  pipeline.run(data.source(End::kPinned), data.sink(End::kPinned));
  EXPECT_TRUE(data.right(End::kPinned));
  EXPECT_TRUE(checker.report().races.empty()) << checker.report().text();
  EXPECT_LE(device.memory().peak, 200'000u);
}

// Copies Plan::nodes() without wait number `left_out`.
Plan without(const Plan& plan, std::size_t left_out) {
  Plan result;
  std::size_t count = 0;
  for (PlanNode node : plan.nodes()) {
    std::vector<std::uint32_t> waits;
    for (const std::uint32_t wait : node.waits) {
      if (count++ != left_out) waits.push_back(wait);
    }
    node.waits = std::move(waits);
    result.add(std::move(node));
  }
  return result;
}

TEST(Pipeline, IsProvenAndNeedsEveryWait) {
  const Device device = Device::open("sim:h200", {.run_functions = false});
  for (const End from : kEnds) {
    for (const End to : kEnds) {
      for (const std::uint32_t depth : {1, 2, 3}) {
        SCOPED_TRACE(fmt::format("ends {} {}, {} slots", static_cast<int>(from), static_cast<int>(to), depth));
        Data data(device, 1000, 1);
        Pipeline pipeline(device, spec_of(1000, 150, depth));
        const Plan plan = pipeline.capture(data.source(from), data.sink(to));
        const Verification proof = verify(plan);
        EXPECT_TRUE(proof.proven()) << proof.text(plan);
        EXPECT_TRUE(proof.superfluous.empty()) << proof.text(plan);
        std::size_t waits = 0;
        for (const PlanNode& node : plan.nodes()) waits += node.waits.size();
        EXPECT_GE(waits, 2 * 7 + 2 * (7 - depth));  // 7 chunks: forward edges for each, back edges for reused slots
        for (std::size_t i = 0; i < waits; ++i) {
          const Plan wrong = without(plan, i);
          EXPECT_EQ(verify(wrong).verdict, Verdict::kRace) << "wait " << i;
        }
      }
    }
  }
}

TEST(Pipeline, ItsPlanCanBeLaunched) {
  const Device device = Device::open("cpu");
  Data data(device, 3000, 3);
  Pipeline pipeline(device, spec_of(3000, 400, 2));
  Plan plan = pipeline.capture(data.source(End::kPageable), data.sink(End::kFunction));
  const Stream stream = device.stream();
  stream.launch(plan);
  stream.sync();
  EXPECT_TRUE(data.right(End::kFunction));
}

// Every plan has the source and the sink of its capture, whatever the pipeline has run or captured since.
TEST(Pipeline, ItsPlansKeepTheirEnds) {
  const Device device = Device::open("cpu");
  const Stream stream = device.stream();
  for (const End from : kEnds) {
    for (const End to : kEnds) {
      SCOPED_TRACE(fmt::format("ends {} {}", static_cast<int>(from), static_cast<int>(to)));
      Data first(device, 3000, 3), second(device, 3000, 4), third(device, 3000, 5);
      Pipeline pipeline(device, spec_of(3000, 400, 2));
      Plan plan = pipeline.capture(first.source(from), first.sink(to));
      Plan later = pipeline.capture(second.source(from), second.sink(to));
      pipeline.run(third.source(to), third.sink(from));
      ASSERT_TRUE(third.right(from));
      stream.launch(plan);
      stream.launch(later);
      stream.sync();
      EXPECT_TRUE(first.right(to));
      EXPECT_TRUE(second.right(to));
    }
  }
}

TEST(Pipeline, WorksInPlace) {
  const Device device = Device::open("cpu", {.policy = CpuPolicy::kRandom, .seed = 3});
  static const Kernel kAdd{"add", [](const Args& args) {
                             for (std::size_t i = 0; i < args.out<float>(0).size(); ++i)
                               args.out<float>(0)[i] = args.in<float>(0)[i] + 1;
                           }};
  Buffer data = device.alloc(4 * 1000, MemoryKind::kPinned);
  for (float& value : data.host_write<float>()) value = 41;
  PipelineSpec spec = spec_of(1000, 90, 2);
  spec.bytes_out = 4;
  spec.issue = [](const PipelineChunk& chunk) {
    chunk.stream.launch(kAdd, {.reads = {chunk.input}, .writes = {chunk.output}});
  };
  Pipeline pipeline(device, spec);
  const Plan plan = pipeline.capture(data, data);
  EXPECT_TRUE(verify(plan).proven());
  pipeline.run(data, data);
  for (const float value : data.host_read<float>()) ASSERT_EQ(value, 42);
}

// Copies of 1,000 bytes take 1 us in and 2 us out; calls cost nothing.
constexpr const char* kDevice = R"(sim:{"name": "even", "memory": "1 GB",
  "compute": {"flops": "1 TFLOP/s", "bandwidth": "4 GB/s", "launch": "3 us"},
  "copies": {"in": "1 GB/s", "out": "1 GB/s", "latency": "5 us"}})";

TEST(Pipeline, StagesArePredictedAndSimulatedAlike) {
  const Device device = Device::open(kDevice, {.run_functions = false});
  Data data(device, 100'000, 1);
  PipelineSpec spec = spec_of(100'000, 0, 0);
  spec.stages = {};
  spec.granule = 1000;
  Pipeline pipeline(device, spec);
  EXPECT_NEAR(pipeline.stages().in.bytes_per_second, 1e9, 1e5);
  EXPECT_NEAR(static_cast<double>(pipeline.stages().in.latency), 5e6, 5e3);
  // An element is 4 bytes for one kernel and 8 for the other, at 4 GB/s: 3 ns for 4 bytes of input
  EXPECT_NEAR(pipeline.stages().kernels.bytes_per_second, 4e9 / 3, 1e6);
  EXPECT_NEAR(static_cast<double>(pipeline.stages().kernels.latency), 6e6, 5e3);

  const PipelineReport report = pipeline.run(data.source(End::kPinned), data.sink(End::kPinned));
  const auto measured = static_cast<double>(report.measured);
  EXPECT_NEAR(static_cast<double>(pipeline.predict()) / measured, 1, 1e-3);
  // The formula counts the last chunk as a full one.
  EXPECT_NEAR(static_cast<double>(report.predicted) / measured, 1, 0.05);
  EXPECT_LE(report.bound, report.measured);
  EXPECT_NEAR(report.gigabytes_per_second, 1.2e6 / measured * 1e3, 1e-6);
}

TEST(Pipeline, HowStagesSlowEachOtherIsMeasured) {
  const Device device = Device::open(R"(sim:{"name": "shared", "memory": "1 GB",
    "compute": {"flops": "1 TFLOP/s", "bandwidth": "4 GB/s", "launch": "3 us", "copy_slowdown_ppm": 100000},
    "copies": {"in": "1 GB/s", "out": "1 GB/s", "both": "1.2 GB/s", "latency": "5 us"},
    "host": {"launch": "2 us", "copy": "2 us"}})",
                                     {.run_functions = false});
  Data data(device, 100'000, 1);
  PipelineSpec spec = spec_of(100'000, 0, 0);
  spec.stages = {};
  Pipeline pipeline(device, spec);
  EXPECT_GE(pipeline.stages().chunk, 8 * kMicro);  // what two copies and two launches cost the host
  EXPECT_GT(pipeline.stages().beside, 0.2);        // the copies out get 0.6 to 0.8 GB/s beside those in
  const PipelineReport report = pipeline.run(data.source(End::kPinned), data.sink(End::kPinned));
  const auto measured = static_cast<double>(report.measured);
  EXPECT_NEAR(static_cast<double>(report.predicted) / measured, 1, 0.05);
  // The formula also slows the first and the last chunk, although these overlap with nothing.
  EXPECT_NEAR(static_cast<double>(pipeline.predict()) / measured, 1, 0.1);
}

TEST(Pipeline, ReportsWhatATraceSaw) {
  const Device device = Device::open(kDevice, {.run_functions = false});
  Data data(device, 4000, 1);
  PipelineSpec spec = spec_of(4000, 1000, 2);
  Pipeline pipeline(device, spec);
  Trace trace;
  pipeline.run(data.source(End::kPinned), data.sink(End::kPinned));  // is in the trace, too, and not in the report
  pipeline.start(data.source(End::kPinned), data.sink(End::kPinned));
  const PipelineReport report = pipeline.finish(&trace);
  // A chunk: 9 us in, 4 + 5 us of kernels, 13 us out. The copies out follow each other from 18 us on.
  EXPECT_EQ(report.measured, (9 + 9 + 4 * 13) * kMicro);
  // Kernels run from 9 to 18, 18 to 27, then once a slot is out: from 31 to 40 and 44 to 53.
  EXPECT_EQ(report.exposed, (70 - 4 * 9) * kMicro);
  EXPECT_FALSE(report.text().empty());
}

// Throws in the chunk that the scalar names, while a flag is set.
bool g_throws = true;
const Kernel kSometimes{"sometimes", [](const Args& args) {
                          if (g_throws && args.scalar<int>(0) == 3) throw std::runtime_error("on purpose");
                          for (std::uint64_t& value : args.out<std::uint64_t>(0)) value = 7;
                        }};

TEST(Pipeline, AFailureArrivesAndThePipelineGoesOn) {
  for (const char* name : {"cpu", "sim:h200"}) {
    SCOPED_TRACE(name);
    const Device device = Device::open(name);
    {
      Data data(device, 1000, 1);
      PipelineSpec spec = spec_of(1000, 100, 2);
      spec.issue = [](const PipelineChunk& chunk) {
        chunk.stream.launch(
            kSometimes, {.reads = {chunk.input}, .writes = {chunk.output}, .scalars = {static_cast<int>(chunk.index)}});
      };
      Pipeline pipeline(device, spec);
      for (const End end : kEnds) {
        g_throws = true;
        EXPECT_TRUE(fails([&] { pipeline.run(data.source(end), data.sink(end)); }, ErrorCode::kLaunchFailed,
                          {"sometimes", "on purpose"}));
        g_throws = false;
        EXPECT_NO_THROW(pipeline.run(data.source(end), data.sink(end)));
      }
      for (const std::uint64_t result : data.results) ASSERT_EQ(result, 7u);
      EXPECT_EQ(device.memory().used, pipeline.plan().memory);
    }
    EXPECT_EQ(device.memory().used, 0u);
  }
}

TEST(Pipeline, FunctionsThatFailAreReported) {
  const Device device = Device::open("cpu");
  Data data(device, 1000, 1);
  Pipeline pipeline(device, spec_of(1000, 100, 2));
  const PipelineSource bad([](std::uint64_t first, std::span<std::byte>) {
    if (first == 300) throw std::runtime_error("disk on fire");
  });
  EXPECT_TRUE(fails([&] { pipeline.run(bad, data.sink(End::kPinned)); }, ErrorCode::kLaunchFailed, {"disk on fire"}));
  const PipelineSink full([](std::uint64_t, std::span<const std::byte>) { throw std::runtime_error("no space"); });
  EXPECT_TRUE(fails([&] { pipeline.run(data.source(End::kPinned), full); }, ErrorCode::kLaunchFailed, {"no space"}));
  pipeline.run(data.source(End::kFunction), data.sink(End::kPageable));
  EXPECT_TRUE(data.right(End::kPageable));

  PipelineSpec throws = spec_of(1000, 100, 2);
  throws.issue = [](const PipelineChunk& chunk) {
    if (chunk.index == 4) throw std::out_of_range("chunk 4");
    issue_both(chunk);
  };
  Pipeline other(device, throws);
  EXPECT_THROW(other.run(data.source(End::kPinned), data.sink(End::kPinned)), std::out_of_range);
  EXPECT_THROW(static_cast<void>(other.capture(data.source(End::kPinned), data.sink(End::kPinned))), std::out_of_range);
  EXPECT_NO_THROW(device.sync());
}

TEST(Pipeline, CallsThatDoNotFitAreRefused) {
  const Device device = Device::open("cpu");
  Data data(device, 1000, 1), small(device, 999, 1);
  Pipeline pipeline(device, spec_of(1000, 100, 2));
  EXPECT_EQ(device.memory().peak, pipeline.plan().memory);
  EXPECT_TRUE(fails([&] { pipeline.run(small.source(End::kPinned), data.sink(End::kPinned)); },
                    ErrorCode::kInvalidValue, {"source", "3996", "4000"}));
  EXPECT_TRUE(fails([&] { pipeline.run(data.source(End::kPinned), small.sink(End::kPinned)); },
                    ErrorCode::kInvalidValue, {"sink", "7992", "8000"}));
  EXPECT_TRUE(fails([&] { pipeline.finish(); }, ErrorCode::kNotReady, {"start()"}));
  pipeline.start(data.source(End::kPageable), data.sink(End::kPinned));
  EXPECT_TRUE(fails([&] { pipeline.start(data.source(End::kPinned), data.sink(End::kPinned)); }, ErrorCode::kNotReady,
                    {"finish()"}));
  pipeline.finish();
  EXPECT_TRUE(data.right(End::kPinned));

  PipelineSpec spec = spec_of(1000, 0, 0);
  spec.memory = 100;
  spec.stages = {};
  EXPECT_TRUE(fails([&] { Pipeline(device, spec); }, ErrorCode::kInvalidValue, {"100 bytes", "at least 512 bytes"}));
  // The memory is enough for this chunk, and too small for a granule, with which the rates would be measured.
  spec.chunk = 10, spec.granule = 500, spec.memory = 1024;
  EXPECT_TRUE(fails([&] { Pipeline(device, spec); }, ErrorCode::kInvalidValue, {"10 elements", "granule of 500"}));
  spec.chunk = 500;
  EXPECT_TRUE(fails([&] { Pipeline(device, spec); }, ErrorCode::kInvalidValue, {"1024 bytes", "at least"}));
  spec.elements = 0;
  EXPECT_TRUE(fails([&] { Pipeline(device, spec); }, ErrorCode::kInvalidValue, {"0 elements"}));
}

}  // namespace
}  // namespace slip::test::test_pipeline
