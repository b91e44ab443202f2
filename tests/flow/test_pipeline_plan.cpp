// Planning a pipeline: the best of all chunk sizes within the memory, and specs that are refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "slip/pipeline.hpp"
#include "support/errors.hpp"

namespace slip::test::test_pipeline_plan {
namespace {

constexpr Picos kMicro = 1'000'000;

PipelineSpec spec_of(std::uint64_t elements) {
  return {.elements = elements,
          .bytes_in = 1000,
          .bytes_out = 500,
          .issue = [](const PipelineChunk&) {},
          .memory = 1 << 30,
          .stages = {.in = {1e9, 2 * kMicro}, .kernels = {2e9, kMicro}, .out = {0.5e9, 2 * kMicro}}};
}

TEST(PipelinePlan, TimesAreThoseOfTheStages) {
  PipelineSpec spec = spec_of(100);
  spec.chunk = 10;
  spec.depth = 2;
  const PipelinePlan plan = plan_pipeline(spec);
  EXPECT_EQ(plan.chunks, 10u);
  EXPECT_EQ(plan.in, 12 * kMicro);
  EXPECT_EQ(plan.kernels, 6 * kMicro);
  EXPECT_EQ(plan.out, 12 * kMicro);
  EXPECT_EQ(plan.predicted, (12 + 6 + 12 + 9 * 12) * kMicro);
  EXPECT_EQ(plan.bound, 100 * kMicro);
  EXPECT_EQ(plan.memory, 2u * (10240 + 5120));  // slots are aligned
  spec.depth = 1;                               // a kernel and the copies of its slot follow each other
  EXPECT_EQ(plan_pipeline(spec).predicted, (30 + 9 * 18) * kMicro);
  spec.depth = 2;
  EXPECT_EQ(plan_pipeline(spec, 1).predicted, (30 + 9 * 24) * kMicro);  // one engine for both directions
  EXPECT_EQ(plan_pipeline(spec, 1).bound, 200 * kMicro);
  EXPECT_EQ(plan_pipeline(spec, 0).predicted, 10 * 30 * kMicro);  // copies in place of kernels
}

TEST(PipelinePlan, NoOtherChunkSizeIsBetter) {
  constexpr unsigned kSeed = 311;
  std::mt19937_64 random(kSeed);
  const auto below = [&](std::uint64_t max) { return 1 + random() % max; };
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(fmt::format("seed {}, round {}", kSeed, round));
    PipelineSpec spec = spec_of(below(60));
    spec.bytes_in = below(100'000);
    spec.bytes_out = below(100'000);
    spec.granule = below(3);
    spec.stages.in = {1e6 * static_cast<double>(below(10'000)), static_cast<Picos>(below(100)) * kMicro};
    spec.stages.out = {1e6 * static_cast<double>(below(10'000)), static_cast<Picos>(below(100)) * kMicro};
    spec.stages.kernels = {1e6 * static_cast<double>(below(10'000)), static_cast<Picos>(below(100)) * kMicro};
    spec.memory = 700'000 + below(12'000'000);
    const int engines = static_cast<int>(random() % 3);
    const PipelinePlan best = plan_pipeline(spec, engines);
    EXPECT_LE(best.memory, spec.memory);
    EXPECT_LE(best.bound, best.predicted);
    EXPECT_TRUE(best.chunk % spec.granule == 0 || best.chunk == spec.elements);
    for (std::uint64_t chunk = spec.granule; chunk < spec.elements + spec.granule; chunk += spec.granule) {
      for (std::uint32_t depth = 1; depth <= 4; ++depth) {
        PipelineSpec other = spec;
        other.chunk = chunk;
        other.depth = depth;
        try {
          const Picos time = plan_pipeline(other, engines).predicted;
          EXPECT_LE(best.predicted, time + time / 100) << chunk << " in " << depth;
        } catch (const Error& error) {  // does not fit
          EXPECT_EQ(error.code(), ErrorCode::kInvalidValue);
        }
      }
    }
  }
}

TEST(PipelinePlan, WhatEveryChunkCostsMakesThemLarger) {
  PipelineSpec spec = spec_of(1000);
  const PipelinePlan free = plan_pipeline(spec);
  spec.stages.chunk = 200 * kMicro;
  const PipelinePlan expensive = plan_pipeline(spec);
  EXPECT_GT(expensive.chunk, free.chunk);
  spec.chunk = 10;
  EXPECT_EQ(plan_pipeline(spec).predicted, (30 + 99 * 200) * kMicro);
  spec.stages.chunk = 0;
  spec.stages.beside = 0.5;
  EXPECT_EQ(plan_pipeline(spec).predicted, (30 + 99 * 18) * kMicro);
}

TEST(PipelinePlan, ManyElementsArePlannedNearTheBound) {
  PipelineSpec spec = spec_of(100'000'000);
  const PipelinePlan plan = plan_pipeline(spec);
  EXPECT_LT(static_cast<double>(plan.predicted), 1.03 * static_cast<double>(plan.bound));
  EXPECT_EQ(plan.depth, 2u);
  spec.memory = 1 << 20;
  EXPECT_LE(plan_pipeline(spec).memory, 1u << 20);
}

TEST(PipelinePlan, TooLittleMemoryNamesTheSmallestThatWorks) {
  PipelineSpec spec = spec_of(100);
  spec.granule = 7;
  spec.memory = 1000;
  const std::uint64_t smallest = 7168 + 3584;  // one slot of seven elements each
  EXPECT_TRUE(fails([&] { static_cast<void>(plan_pipeline(spec)); }, ErrorCode::kInvalidValue,
                    {"1000 bytes", fmt::format("at least {} bytes", smallest)}));
  spec.memory = smallest - 1;
  EXPECT_TRUE(fails([&] { static_cast<void>(plan_pipeline(spec)); }, ErrorCode::kInvalidValue));
  spec.memory = smallest;
  EXPECT_EQ(plan_pipeline(spec).memory, smallest);
  spec.depth = 3;
  EXPECT_TRUE(fails([&] { static_cast<void>(plan_pipeline(spec)); }, ErrorCode::kInvalidValue,
                    {"3 slot", fmt::format("at least {} bytes", 3 * smallest)}));
  spec.memory = 3 * smallest;
  EXPECT_EQ(plan_pipeline(spec).depth, 3u);
}

// All elements may be one chunk, whatever the granule.
TEST(PipelinePlan, OneChunkNeedsNoWholeGranule) {
  PipelineSpec spec = spec_of(100);
  spec.granule = 30;
  for (const std::uint64_t chunk : {100, 110}) {
    spec.chunk = chunk;
    EXPECT_EQ(plan_pipeline(spec).chunk, 100U);
  }
  spec.chunk = 60;
  EXPECT_EQ(plan_pipeline(spec).chunks, 2U);
}

TEST(PipelinePlan, WhatCannotBeRightIsRefused) {
  const auto refused = [](const std::function<void(PipelineSpec&)>& change,
                          std::initializer_list<std::string_view> words) {
    PipelineSpec spec = spec_of(100);
    change(spec);
    return fails([&] { static_cast<void>(plan_pipeline(spec)); }, ErrorCode::kInvalidValue, words);
  };
  EXPECT_TRUE(refused([](PipelineSpec& spec) { spec.elements = 0; }, {"0 elements"}));
  EXPECT_TRUE(refused([](PipelineSpec& spec) { spec.bytes_in = 0; }, {"0 bytes in", "500 bytes out"}));
  EXPECT_TRUE(refused([](PipelineSpec& spec) { spec.bytes_out = 0; }, {"0 bytes out"}));
  EXPECT_TRUE(refused([](PipelineSpec& spec) { spec.memory = 0; }, {"0 bytes of device memory", "at least"}));
  EXPECT_TRUE(refused([](PipelineSpec& spec) { spec.granule = 0; }, {"granule"}));
  EXPECT_TRUE(refused([](PipelineSpec& spec) { spec.stages.beside = -0.5; }, {"-0.5"}));
  EXPECT_TRUE(refused([](PipelineSpec& spec) { spec.issue = nullptr; }, {"PipelineSpec::issue"}));
  EXPECT_TRUE(refused([](PipelineSpec& spec) { spec.depth = 5000; }, {"5000 slots"}));
  EXPECT_TRUE(refused([](PipelineSpec& spec) { spec.elements = ~std::uint64_t{0} / 2; }, {"more than can be counted"}));
  EXPECT_TRUE(refused([](PipelineSpec& spec) { spec.elements = 1 << 30, spec.chunk = 1; }, {"1073741824 of them"}));
  EXPECT_TRUE(
      refused([](PipelineSpec& spec) { spec.chunk = 10, spec.granule = 20; }, {"10 elements", "granule of 20"}));
  EXPECT_TRUE(
      refused([](PipelineSpec& spec) { spec.chunk = 50, spec.granule = 20; }, {"50 elements", "granule of 20"}));
  EXPECT_TRUE(refused([](PipelineSpec& spec) { spec.stages.out = {}; }, {"not known"}));
}

}  // namespace
}  // namespace slip::test::test_pipeline_plan
