// Graph files and model folders: reading gives what was written, and hostile files are refused with the position.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "model/folder.hpp"
#include "model/kernels.hpp"
#include "model/stack.hpp"
#include "run_graph.hpp"
#include "support/errors.hpp"
#include "support/model_folder.hpp"

namespace slip::test_graph_file {
namespace {

using test::fails;

class GraphFile : public testing::Test {
 protected:
  void SetUp() override {
    folder = std::filesystem::temp_directory_path() / ("slip-graph-" + std::to_string(::getpid()) + "-" +
                                                       testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(folder);
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  std::filesystem::path folder;
};

// Every kind of op and of value.
Graph all_ops() {
  Graph graph({.part_bytes = 40000, .join_bytes = 4096});
  const Value x = graph.input("x \"quoted\"\n", DataType::kBF16, {3, 5, 64});
  const Value w = graph.weight("w", DataType::kBF16, {1000, 64}), b = graph.weight("b", DataType::kBF16, {1000});
  const Value state = graph.state("state", DataType::kBF16, {3, 5, 1000});
  const Value y = graph.bias("bias", graph.linear("y", x, w), b);
  const Value late = graph.weight("late", DataType::kBF16, {1000});
  const Value n = graph.layer_norm("ln", graph.rms_norm("rn", y, b, 0.1), b, late, 3e-7);
  const Value sum = graph.add("sum", n, state);
  graph.output(graph.relu("relu", graph.gelu("gelu", graph.silu("silu", graph.multiply("product", sum, y)))));
  graph.output(sum);
  return graph;
}

TEST_F(GraphFile, WhatIsWrittenIsRead) {
  const Graph graph = all_ops();
  std::filesystem::create_directories(folder);
  const std::string path = folder / "graph.json";
  write_graph(graph, path);
  const Graph again = read_graph(path);
  EXPECT_EQ(model::graph_text(again, {}), model::graph_text(graph, {}));
  EXPECT_EQ(again.options().join_bytes, 4096U);
  ASSERT_EQ(again.ops().size(), graph.ops().size());
  EXPECT_GT(graph.ops().size(), 11U) << "the linear has parts";
  for (std::size_t i = 0; i < graph.ops().size(); ++i) {
    const GraphOp &a = graph.ops()[i], &b = again.ops()[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.kernel, b.kernel);
    EXPECT_EQ(a.cost.flops, b.cost.flops);
    ASSERT_EQ(a.scalars.size(), b.scalars.size());
    for (std::size_t k = 0; k < a.scalars.size(); ++k) EXPECT_EQ(a.scalars[k].as<double>(), b.scalars[k].as<double>());
    ASSERT_EQ(a.reads.size(), b.reads.size());
    for (std::size_t k = 0; k < a.reads.size(); ++k) {
      EXPECT_EQ(graph[a.reads[k].value].name, again[b.reads[k].value].name);
      EXPECT_EQ(a.reads[k].offset, b.reads[k].offset);
    }
  }
  for (const GraphValue& value : graph.values()) {
    const std::optional<Value> found = again.find(value.name);
    ASSERT_TRUE(found) << value.name;
    EXPECT_EQ(again[*found].role, value.role);
    EXPECT_EQ(again[*found].type, value.type);
    EXPECT_EQ(again[*found].shape, value.shape);
    EXPECT_EQ(again[*found].output, value.output);
  }
}

TEST_F(GraphFile, OnlyBuiltInOpsAreWritten) {
  static const Kernel kOwn{"own"};
  Graph graph;
  const Value a = graph.activation("a", DataType::kF32, {4});
  graph.add_op({.name = "mine", .kernel = &kOwn, .writes = {graph.all_of(a)}});
  EXPECT_TRUE(fails([&] { model::graph_text(graph, {}); }, ErrorCode::kInvalidValue, {"'mine'"}));
  Graph forged;
  const Value x = forged.input("x", DataType::kF32, {4}), y = forged.activation("y", DataType::kF32, {4});
  forged.add_op({.name = "other name",
                 .kernel = &model::kernel_of(model::BuiltIn::kRelu),
                 .reads = {forged.all_of(x)},
                 .writes = {forged.all_of(y)}});
  EXPECT_TRUE(fails([&] { model::graph_text(forged, {}); }, ErrorCode::kInvalidValue, {"'other name'"}));
}

TEST_F(GraphFile, ErrorsNameTheirPlaceAndWhatIsExpected) {
  const std::string head = R"({"format": "slip graph", "version": 1,)";
  const std::string x = R"("values": [{"name": "x", "role": "input", "type": "F32", "shape": [2, 4]}],)";
  const struct {
    std::string text, place, word;
  } wrong[] = {
      {"", "bad.json:", "parse error"},
      {"[]", "bad.json is []", "object"},
      {"{}", "bad.json.format", "is missing"},
      {R"({"format": "tar"})", "bad.json.format is \"tar\"", "\"slip graph\" is expected"},
      {R"({"format": "slip graph", "version": 2})", "bad.json.version is 2", "version 1 is expected"},
      {head + R"("colour": 1})", "bad.json.colour is 1", "known are: format, version, part_bytes"},
      {head + x + R"("values": []})", "bad.json.values is there twice", "expected once"},
      {head + R"("join_bytes": -1})", "bad.json.join_bytes is -1", "a whole number from 0"},
      {head + R"("values": {}})", "bad.json.values is {}", "a list"},
      {head + R"("values": [7]})", "bad.json.values[0] is 7", "object"},
      {head + R"("values": [{"name": "x", "role": "input", "type": "F99", "shape": [2]}]})",
       "bad.json.values[0].type is \"F99\"", "data type"},
      {head + R"("values": [{"name": "x", "role": "king", "type": "F32", "shape": [2]}]})",
       "bad.json.values[0].role is \"king\"", "\"weight\""},
      {head + R"("values": [{"name": "x", "role": "input", "type": "F32", "shape": [3, -2]}]})",
       "bad.json.values[0].shape[1] is -2", "a whole number"},
      {head + R"("values": [{"name": "x", "role": "input", "type": "F32", "shape": [2, 0]}]})",
       "bad.json.values[0] is refused", "dimension of 0"},
      {head + R"("values": [{"role": "input", "type": "F32", "shape": [2]}]})", "bad.json.values[0].name",
       "is missing; present are"},
      {head + R"("values": [{"name": "x", "name": "y", "role": "input", "type": "F32", "shape": [2]}]})",
       "bad.json.values[0].name is there twice", "once"},
      {head + x + R"("ops": [{"op": "dance", "name": "y", "reads": ["x"]}]})", "bad.json.ops[0].op is \"dance\"",
       "built-in"},
      {head + x + R"("ops": [{"op": "relu", "name": "y", "reads": ["z"]}]})", "bad.json.ops[0].reads is \"z\"",
       "a value above"},
      {head + x + R"("ops": [{"op": "relu", "name": "y", "reads": ["x", "x"]}]})",
       "bad.json.ops[0].reads is [\"x\",\"x\"]", "1 values"},
      {head + x + R"("ops": [{"op": "relu", "name": "y", "reads": [1]}]})", "bad.json.ops[0].reads[0] is 1", "a text"},
      {head + x + R"("ops": [{"op": "relu", "name": "y", "reads": ["x"], "epsilon": 1}]})",
       "bad.json.ops[0].epsilon is 1", "known are: op, name, reads"},
      {head + x + R"("ops": [{"op": "bias", "name": "y", "reads": ["x", "x"]}]})", "bad.json.ops[0] is refused",
       "[2, 4]"},
      {head + x + R"("ops": [{"op": "relu", "name": "x", "reads": ["x"]}]})", "bad.json.ops[0] is refused", "taken"},
      {head + x + R"("outputs": ["y"]})", "bad.json.outputs is \"y\"", "a value of this graph"},
      {head + x + R"("outputs": ["x"]})", "bad.json is refused", "'x'"},
      {head + x + R"("ops": [] } trailing)", "bad.json:", "parse error"},
  };
  for (const auto& each : wrong)
    EXPECT_TRUE(
        fails([&] { model::parse_graph(each.text, "bad.json", {}); }, ErrorCode::kParse, {each.place, each.word}))
        << each.text;
}

TEST_F(GraphFile, BrokenTextIsRefusedOrReadButNothingElse) {
  const std::string good = model::graph_text(all_ops(), {});
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::size_t refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string text = good;
    for (unsigned change = random() % 3; change < 3; ++change) {
      const std::size_t at = random() % text.size();
      if (random() % 2 == 0) text[at] = static_cast<char>(random());
      else text.erase(at, 1 + random() % 20);
    }
    try {
      static_cast<void>(model::parse_graph(text, "broken", {}));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kParse) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000U);
}

class StackFolder : public GraphFile, public testing::WithParamInterface<DataType> {};

// The folder holds the graph and exactly the weights that the maker gives, and running it stays finite.
TEST_P(StackFolder, HoldsTheModel) {
  const model::StackOptions options{
      .blocks = 3, .hidden = 96, .intermediate = 160, .tokens = 5, .type = GetParam(), .uneven = true};
  const Graph graph = model::stack_graph(options);
  EXPECT_EQ(graph[*graph.find("blocks.0.up.weight")].shape, (Shape{160, 96}));
  EXPECT_EQ(graph[*graph.find("blocks.1.up.weight")].shape, (Shape{640, 96}));
  const model::FillWeight fill = [&](Value weight, std::uint64_t offset, std::span<std::byte> into) {
    model::fill_stack_weight(graph, options, weight, offset, into);
  };
  for (const std::size_t shards : {1, 4, 1000}) {
    const std::string path = folder / std::to_string(shards);
    model::write_model(graph, path, fill, shards);
    EXPECT_TRUE(
        fails([&] { model::write_model(graph, path, fill, shards); }, ErrorCode::kInvalidValue, {path, "already"}));
    const test::ModelFolder model = test::open_model(path);
    const std::size_t weights = 9 * options.blocks + 1;
    EXPECT_EQ(model.tensors.tensors().size(), weights);
    EXPECT_EQ(model.tensors.paths().size(), std::min(shards, weights));
    std::map<std::string, model_test::Bytes> given;
    for (const TensorInfo& tensor : model.tensors.tensors()) {
      model_test::Bytes& bytes = given[tensor.name];
      bytes.resize(tensor.bytes);
      model.tensors.read(tensor, bytes.data());
      model_test::Bytes expected(tensor.bytes);
      const std::uint64_t half = tensor.bytes / 8 * 4;  // in two pieces: the same bytes
      const std::span<std::byte> all(expected);
      model::fill_stack_weight(model.graph, options, *model.graph.find(tensor.name), half, all.subspan(half));
      model::fill_stack_weight(model.graph, options, *model.graph.find(tensor.name), 0, all.first(half));
      EXPECT_TRUE(bytes == expected) << tensor.name;
    }
    given["x"] = model_test::stored(options.type, std::vector<double>(options.tokens * options.hidden, 0.5));
    const auto results = model_test::run_graph(model.graph, Device::open("cpu"), given);
    // In strict mode an op fails if it uses memory that it did not declare.
    EXPECT_TRUE(model_test::run_graph(model.graph, Device::open("cpu", {.strict = true}), given) == results);
    double squares = 0;
    const std::vector<double> y = model_test::loaded(options.type, results.at("y"));
    for (const double value : y) squares += value * value;
    EXPECT_NEAR(std::sqrt(squares / static_cast<double>(y.size())), 1, 0.2);  // the last op is a norm
  }
}

INSTANTIATE_TEST_SUITE_P(Types, StackFolder, testing::Values(DataType::kF32, DataType::kBF16),
                         [](const testing::TestParamInfo<DataType>& of) {
                           return std::string(data_type_name(of.param));
                         });

TEST_F(GraphFile, WeightsMustBeThoseOfTheGraph) {
  const model::StackOptions options{.blocks = 1, .hidden = 8, .intermediate = 8, .tokens = 1};
  const Graph graph = model::stack_graph(options);
  model::write_model(graph, folder, [&](Value weight, std::uint64_t offset, std::span<std::byte> into) {
    model::fill_stack_weight(graph, options, weight, offset, into);
  });
  const TensorFiles tensors = TensorFiles::open(folder);
  Graph other = graph;
  other.weight("more", DataType::kF32, {1});
  EXPECT_TRUE(fails([&] { model::require_weights(other, tensors); }, ErrorCode::kInvalidValue, {"'more'"}));
  const model::StackOptions wider{.blocks = 1, .hidden = 8, .intermediate = 9, .tokens = 1};
  EXPECT_TRUE(fails([&] { model::require_weights(model::stack_graph(wider), tensors); }, ErrorCode::kInvalidValue,
                    {"'blocks.0.gate.weight'", "[9, 8]", "[8, 8]"}));
}

}  // namespace
}  // namespace slip::test_graph_file
