// Graphs: shapes and types of ops, parts of weights, costs, and errors.
#include <gtest/gtest.h>

#include <numeric>

#include "model/kernels.hpp"
#include "slip/graph.hpp"
#include "support/errors.hpp"

namespace slip::test_graph {
namespace {

using test::fails;
constexpr DataType kF32 = DataType::kF32;

struct GraphTest : testing::Test {
  Graph graph;
  Value x = graph.input("x", kF32, {2, 3, 8});
  Value w = graph.weight("w", kF32, {16, 8});
  Value scale = graph.weight("scale", kF32, {8});
};

TEST_F(GraphTest, KnowsShapesRolesAndBytes) {
  const Value y = graph.linear("y", x, w);
  EXPECT_EQ(graph[y].shape, (Shape{2, 3, 16}));
  EXPECT_EQ(graph[y].role, ValueRole::kActivation);
  EXPECT_EQ(graph[y].bytes, 2U * 3 * 16 * 4);
  EXPECT_EQ(graph.find("y"), y);
  EXPECT_EQ(graph.find("z"), std::nullopt);
  EXPECT_EQ(graph.bytes_of(ValueRole::kWeight), 16U * 8 * 4 + 8 * 4);
  EXPECT_FALSE(graph[y].output);
  graph.output(y);
  EXPECT_TRUE(graph[y].output);
}

TEST_F(GraphTest, CostsAreThoseOfTheOp) {
  graph.linear("y", x, w);
  const Cost linear = graph.ops()[0].cost;
  EXPECT_EQ(linear.flops, 2U * 6 * 8 * 16);
  EXPECT_EQ(linear.bytes, 4U * (6 * 8 + 16 * 8 + 6 * 16));
  graph.rms_norm("n", x, scale);
  EXPECT_EQ(graph.ops()[1].cost.bytes, 4U * (48 + 8 + 48));
  const Value sum = graph.add("sum", x, x);
  EXPECT_EQ(graph.ops()[2].cost.bytes, 4U * 48 * 3);
  EXPECT_EQ(graph.ops()[2].cost.flops, 48U);
  EXPECT_EQ(graph[sum].shape, graph[x].shape);
}

// Parts are of whole rows, in order, without gaps, and sum up to the op.
TEST(GraphParts, LargeWeightsAreUsedInParts) {
  for (const std::uint64_t out : {1ULL, 127ULL, 128ULL, 129ULL, 1000ULL, 1024ULL, 5000ULL}) {
    for (const std::uint64_t part_bytes : {1ULL, 100000ULL, 300000ULL, 1ULL << 40}) {
      SCOPED_TRACE(testing::Message() << out << " rows, parts of " << part_bytes);
      constexpr std::uint64_t kIn = 100, kRow = kIn * 4;
      Graph graph({.part_bytes = part_bytes});
      const Value x = graph.input("x", kF32, {3, kIn});
      const Value w = graph.weight("w", kF32, {out, kIn});
      graph.linear("y", x, w);
      std::uint64_t at = 0, flops = 0;
      for (std::size_t i = 0; i < graph.ops().size(); ++i) {
        const GraphOp& op = graph.ops()[i];
        EXPECT_EQ(op.name, graph.ops().size() == 1 ? "y" : "y." + std::to_string(i));
        ASSERT_EQ(op.reads.size(), 2U);
        const ValueBytes& rows = op.reads[1];
        EXPECT_EQ(rows.value, w);
        EXPECT_EQ(rows.offset, at);
        EXPECT_EQ(op.scalars.at(4).as<std::uint64_t>() * kRow, at);
        EXPECT_EQ(op.scalars.at(5).as<std::uint64_t>() * kRow, rows.bytes);
        EXPECT_TRUE(i + 1 == graph.ops().size() || rows.bytes % (model::kPartRows * kRow) == 0);
        EXPECT_LE(rows.bytes, std::max(part_bytes, model::kPartRows * kRow));
        at += rows.bytes, flops += op.cost.flops;
      }
      EXPECT_EQ(at, graph[w].bytes);
      EXPECT_EQ(flops, 2 * 3 * kIn * out);
    }
  }
}

TEST_F(GraphTest, ShapesAndTypesMustFit) {
  const auto bad = ErrorCode::kInvalidValue;
  const Value narrow = graph.weight("narrow", kF32, {16, 7});
  const Value half = graph.weight("half", DataType::kBF16, {16, 8});
  const Value longer = graph.weight("longer", kF32, {9});
  const Value whole = graph.input("whole", DataType::kI32, {2, 3, 8});
  const Value cube = graph.weight("cube", kF32, {2, 8, 8});
  const Value bare = graph.input("bare", kF32, {});
  EXPECT_TRUE(fails([&] { graph.linear("y", x, narrow); }, bad, {"'y'", "'x' F32 [2, 3, 8]", "'narrow' F32 [16, 7]"}));
  EXPECT_TRUE(fails([&] { graph.linear("y", x, cube); }, bad, {"'y'", "'cube' F32 [2, 8, 8]", "[out, in]"}));
  EXPECT_TRUE(fails([&] { graph.linear("y", x, half); }, bad, {"'y'", "types", "'half' BF16 [16, 8]"}));
  EXPECT_TRUE(fails([&] { graph.linear("y", bare, w); }, bad, {"'y'", "'bare'"}));
  EXPECT_TRUE(fails([&] { graph.relu("y", whole); }, bad, {"'y'", "'whole' I32", "BF16"}));
  EXPECT_TRUE(fails([&] { graph.bias("y", x, longer); }, bad, {"'y'", "[8]", "'longer' F32 [9]"}));
  EXPECT_TRUE(fails([&] { graph.rms_norm("y", x, longer); }, bad, {"'y'", "'longer' F32 [9]"}));
  EXPECT_TRUE(fails([&] { graph.layer_norm("y", x, scale, longer); }, bad, {"'y'", "'longer' F32 [9]"}));
  EXPECT_TRUE(fails([&] { graph.rms_norm("y", x, scale, -1); }, bad, {"'y'", "-1"}));
  EXPECT_TRUE(fails([&] { graph.add("y", x, w); }, bad, {"'y'", "'x'", "'w'"}));
  EXPECT_TRUE(fails([&] { graph.multiply("y", w, w); }, bad, {"'y'", "both weights"}));
  EXPECT_EQ(graph.ops().size(), 0U);
  EXPECT_EQ(graph.find("y"), std::nullopt) << "a call that throws leaves the graph as it was";
}

TEST_F(GraphTest, NamesAreTakenOnce) {
  const auto bad = ErrorCode::kInvalidValue;
  EXPECT_TRUE(fails([&] { graph.input("w", kF32, {1}); }, bad, {"'w' F32 [1]", "'w' F32 [16, 8]"}));
  graph.relu("r", x);
  EXPECT_TRUE(fails([&] { graph.gelu("r", x); }, bad, {"'r'"}));
  EXPECT_TRUE(fails([&] { graph.relu("scale", x); }, bad, {"'scale'"}));
  EXPECT_TRUE(fails([&] { graph.relu("", x); }, bad, {"name"}));
  EXPECT_TRUE(fails([&] { graph.weight("\xff", kF32, {1}); }, bad, {"UTF-8"}));
  EXPECT_EQ(graph.ops().size(), 1U);
}

TEST_F(GraphTest, SizesMustBeSizes) {
  const auto bad = ErrorCode::kInvalidValue;
  EXPECT_TRUE(fails([&] { graph.input("a", kF32, {4, 0}); }, bad, {"'a' F32 [4, 0]", "0"}));
  EXPECT_TRUE(fails([&] { graph.input("a", kF32, {1ULL << 40, 1ULL << 40}); }, bad, {"'a'", "2^63"}));
  graph.weight("big", kF32, {1ULL << 60});
  EXPECT_TRUE(fails([&] { graph.input("a", kF32, {1ULL << 60}); }, bad, {"'a'", "2^63"}));
  // A hostile file may ask for an absurd number of parts.
  Graph small({.part_bytes = 1});
  const Value from = small.input("x", kF32, {1, 1}), rows = small.weight("w", kF32, {1ULL << 50, 1});
  EXPECT_TRUE(fails([&] { small.linear("y", from, rows); }, bad, {"'y'", "part_bytes"}));
}

TEST_F(GraphTest, ValuesOfAnotherGraphAreRefused) {
  Graph other;
  const Value theirs = other.input("x", kF32, {2, 3, 8});
  EXPECT_TRUE(fails([&] { graph.relu("y", theirs); }, ErrorCode::kInvalidValue, {"'y'", "another graph"}));
  EXPECT_TRUE(fails([&] { graph.relu("y", Value{99}); }, ErrorCode::kInvalidValue, {"'y'", "99"}));
  EXPECT_TRUE(fails([&] { graph.output(theirs); }, ErrorCode::kInvalidValue, {"another graph"}));
  Graph copy = graph;
  copy.relu("y", x);  // a copy has the same values
  EXPECT_EQ(copy.ops().size(), 1U);
  EXPECT_EQ(graph.ops().size(), 0U);
}

TEST_F(GraphTest, BytesAreWrittenBeforeTheyAreRead) {
  const auto bad = ErrorCode::kInvalidValue;
  const Kernel& kernel = model::kernel_of(model::BuiltIn::kRelu);
  const Value a = graph.activation("a", kF32, {100});
  const auto op = [&](const char* name, std::vector<ValueBytes> reads, std::vector<ValueBytes> writes) {
    graph.add_op({.name = name, .kernel = &kernel, .reads = std::move(reads), .writes = std::move(writes)});
  };
  EXPECT_TRUE(fails([&] { graph.relu("r", a); }, bad, {"'r'", "'a'", "no earlier op"}));
  EXPECT_TRUE(fails([&] { graph.output(a); }, bad, {"'a'"}));
  op("first", {}, {{a, 0, 100}});
  op("last", {}, {{a, 300, 100}});
  op("middle", {}, {{a, 100, 100}});
  op("reads both", {{a, 50, 150}}, {});
  EXPECT_TRUE(fails([&] { op("gap", {{a, 150, 100}}, {}); }, bad, {"'gap'", "150 to 250", "'a' F32 [100]"}));
  EXPECT_TRUE(fails([&] { op("beyond", {{a, 300, 101}}, {}); }, bad, {"'beyond'", "it has 400"}));
  EXPECT_TRUE(fails([&] { op("wrapped", {{a, 300, ~0ULL}}, {}); }, bad, {"'wrapped'"}));
  EXPECT_TRUE(fails([&] { op("none", {{a, 0, 0}}, {}); }, bad, {"'none'"}));
  EXPECT_TRUE(fails([&] { op("first", {}, {}); }, bad, {"'first'", "taken"}));
  EXPECT_TRUE(fails([&] { op("weight", {}, {graph.all_of(w)}); }, bad, {"'weight'", "never written"}));
  EXPECT_TRUE(fails([&] { op("input", {}, {graph.all_of(x)}); }, bad, {"'input'", "never written"}));
  EXPECT_TRUE(fails([&] { graph.add_op({.name = "bare"}); }, bad, {"'bare'", "kernel"}));
  op("hole", {}, {{a, 200, 100}});
  graph.output(a);
  const Value state = graph.state("s", kF32, {8});
  op("state", {graph.all_of(state)}, {graph.all_of(state)});  // zero before the first step
  EXPECT_TRUE(fails([&] { graph.output(w); }, bad, {"'w'"}));
}

}  // namespace
}  // namespace slip::test_graph
