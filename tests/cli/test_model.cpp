// `slip model stack`: a model on disk.
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/program.hpp"
#include "support/model_folder.hpp"

namespace slip::cli_test::test_model {
namespace {

TEST(CliModel, StackWritesAModel) {
  const std::string one = scratch("stack-one"), many = scratch("stack-many");
  const std::string sizes = "model stack --blocks 2 --hidden 64 --intermediate 96 --tokens 3 --seed 7 ";
  const Outcome outcome = run(sizes + "-o " + one);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(lines(outcome.out), 1U);
  EXPECT_NE(outcome.out.find("2 blocks"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("19 weights"), std::string::npos) << outcome.out;
  EXPECT_EQ(run(sizes + "--type bf16 --uneven --shards 3 -o " + many).status, 0);

  const test::ModelFolder model = test::open_model(one);
  EXPECT_EQ(model.tensors.paths().size(), 1U);
  EXPECT_EQ(model.graph[*model.graph.find("x")].shape, (Shape{3, 64}));
  EXPECT_EQ(model.graph[*model.graph.find("blocks.1.down.weight")].shape, (Shape{64, 96}));
  const test::ModelFolder sharded = test::open_model(many);
  EXPECT_EQ(sharded.tensors.paths().size(), 3U);
  EXPECT_EQ(sharded.graph[*sharded.graph.find("x")].type, DataType::kBF16);
  EXPECT_EQ(sharded.graph[*sharded.graph.find("blocks.0.down.weight")].shape, (Shape{64, 96}));
  EXPECT_EQ(sharded.graph[*sharded.graph.find("blocks.1.down.weight")].shape, (Shape{64, 384}));

  const Outcome again = run(sizes + "-o " + one);
  EXPECT_EQ(again.status, 1);
  EXPECT_NE(again.err.find("already"), std::string::npos) << again.err;
  std::filesystem::remove_all(one);
  std::filesystem::remove_all(many);
}

TEST(CliModel, WrongValuesAreNamed) {
  EXPECT_EQ(run("model").status, 2);
  EXPECT_EQ(run("model stack").status, 2);
  const Outcome type = run("model stack --type f64 -o nowhere");
  EXPECT_EQ(type.status, 2);
  EXPECT_NE(type.err.find("f64"), std::string::npos) << type.err;
  const Outcome none = run("model stack --blocks 0 -o nowhere");
  EXPECT_EQ(none.status, 2);
  EXPECT_EQ(lines(none.err), 1U);
  const Outcome folder = run("model stack --blocks 1 --hidden 8 --intermediate 8 -o /proc/none");
  EXPECT_EQ(folder.status, 1);
  EXPECT_NE(folder.err.find("/proc/none"), std::string::npos) << folder.err;
  EXPECT_LE(max_line(run("model stack --help").out), 110U);
}

}  // namespace
}  // namespace slip::cli_test::test_model
