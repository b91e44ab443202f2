// The training example as a user runs it: alone and as ranks, with a rank that dies, and from a checkpoint.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "program.hpp"

namespace slip::cli_test::test_training {
namespace {

namespace fs = std::filesystem;

std::string example() { return (fs::path(SLIP_PROGRAM).parent_path() / "examples" / "10_train").string(); }

Outcome train(int ranks, const std::string& arguments) {
  return run("launch -n " + std::to_string(ranks) + " --timeout 60 -- " + example() + " " + arguments);
}

// The number behind the last `what` in the output.
double number_after(const std::string& text, const std::string& what, bool last) {
  const std::size_t at = last ? text.rfind(what) : text.find(what);
  return at == std::string::npos ? -1 : std::stod(text.substr(at + what.size()));
}

std::string digest(const std::string& text) {
  const std::size_t at = text.find("parameters ");
  return at == std::string::npos ? text : text.substr(at + 11, 16);
}

class Training : public testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(example())) GTEST_SKIP() << "the examples were not built";
  }
};

TEST_F(Training, RanksLearnWhatOneRankLearnsToTheBit) {
  for (const int ranks : {2, 4}) {
    const std::string more = " --steps 120 --micro-batches " + std::to_string(ranks);
    const Outcome several = train(ranks, more), alone = train(1, more);
    ASSERT_EQ(several.status, 0) << several.err;
    ASSERT_EQ(alone.status, 0) << alone.err;
    EXPECT_EQ(digest(several.out), digest(alone.out));
    EXPECT_EQ(digest(several.out).size(), 16U);
    EXPECT_EQ(number_after(several.out, "loss ", true), number_after(alone.out, "loss ", true));
    EXPECT_LT(number_after(several.out, "loss ", true), 0.5 * number_after(several.out, "loss ", false)) << several.out;
  }
}

// A line while it trains, and at the end what became of a step, beside what was predicted of it.
TEST_F(Training, SaysHowItGetsOn) {
  const Outcome outcome = train(2, "--steps 41 --progress 10");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("2 ranks, 2 micro-batches a step"), std::string::npos) << outcome.out;
  for (const char* step : {"step 0 loss ", "step 10 loss ", "step 20 loss ", "step 30 loss ", "step 40 loss "})
    EXPECT_NE(outcome.out.find(step), std::string::npos) << outcome.out;
  for (const char* what :
       {"% overlapped", "exposed", "x of the bound", "bucket   0", "% off", "communication: predicted"})
    EXPECT_NE(outcome.out.find(what), std::string::npos) << what << "\n" << outcome.out;
}

TEST_F(Training, GoesOnFromItsCheckpointAfterARankWasKilled) {
  const std::string file = scratch("train.ckpt"), with = " --checkpoint " + file;
  fs::remove(file);
  const Outcome whole = train(3, "--steps 90");
  ASSERT_EQ(whole.status, 0) << whole.err;
  const Outcome killed = train(3, "--steps 90 --kill 1@70" + with);
  EXPECT_NE(killed.status, 0);
  EXPECT_NE(killed.err.find("training stopped"), std::string::npos) << killed.err;
  EXPECT_NE(killed.err.find("rank 1"), std::string::npos) << killed.err;
  ASSERT_TRUE(fs::exists(file));
  const Outcome again = train(3, "--steps 90" + with);
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_NE(again.out.find("goes on at step 60"), std::string::npos) << again.out;
  EXPECT_EQ(digest(again.out), digest(whole.out));
}

TEST_F(Training, SaysWhatIsWrongWithACheckpoint) {
  const std::string file = scratch("short.ckpt");
  if (FILE* const made = std::fopen(file.c_str(), "wb")) {
    std::fputs("too short", made);
    std::fclose(made);
  }
  const Outcome outcome = train(2, "--steps 10 --checkpoint " + file);
  EXPECT_NE(outcome.status, 0);
  EXPECT_NE(outcome.err.find("cut short"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace slip::cli_test::test_training
