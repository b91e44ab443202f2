// What the labs conclude follows from what they measured.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>

#include "cli/program.hpp"

namespace slip::cli_test::test_conclusions {
namespace {

constexpr const char* kNotShown = "(this run did not show it)";

std::string conclusion_of(const std::string& lab, const std::string& device) {
  const Outcome outcome = run("lab " + lab + " --device " + device + " --json");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out).at("labs").at(0).at("conclusion");
}

// An H200 whose kernels and copies slow each other down tenfold: nothing is hidden there.
std::string device_without_overlap() {
  std::string text = read_file(SLIP_SOURCE_DIR "/src/backend/sim/devices/h200.json");
  const auto set = [&](const std::string& group, const std::string& field) {
    text = std::regex_replace(text, std::regex(",?\\s*\"" + field + "\": [0-9]+"), "");
    const std::string begin = "\"" + group + "\": {";
    const std::size_t at = text.find(begin);
    ASSERT_NE(at, std::string::npos) << text;
    text.insert(at + begin.size(), "\"" + field + "\": 10000000, ");
  };
  set("compute", "copy_slowdown_ppm");
  set("copies", "kernel_slowdown_ppm");
  const std::string file = scratch("without-overlap.json");
  std::ofstream(file) << text;
  return file;
}

TEST(CliConclusions, AreBorneOutWhereDevicesOverlap) {
  for (const char* lab : {"overlap", "host", "default-stream", "weights", "hook", "gradients", "events"})
    EXPECT_EQ(conclusion_of(lab, "sim:h200").find(kNotShown), std::string::npos) << conclusion_of(lab, "sim:h200");
}

TEST(CliConclusions, SaySoWhereARunDidNotShowIt) {
  const std::string device = device_without_overlap();
  const std::string weights = conclusion_of("weights", device), overlap = conclusion_of("overlap", device);
  EXPECT_NE(weights.find(std::string("hide them ") + kNotShown), std::string::npos) << weights;
  EXPECT_NE(overlap.find(std::string("another stream ") + kNotShown), std::string::npos) << overlap;
}

// Between a || b || c there may be a -> c, and then it is said.
TEST(CliConclusions, OpsThatDidNotOverlapAreNotShownSideBySide) {
  const Outcome outcome = run("lab questions --device sim:h200 --json");
  const auto rows = nlohmann::json::parse(outcome.out).at("labs").at(0).at("tables").at(0).at("rows");
  EXPECT_EQ(rows.at(1).at("seen"), "blocking || free || default, blocking -> default");
}

TEST(CliConclusions, FindingsOnThePageHaveUnitsForPeople) {
  const Outcome page = run("lab hook --device sim:h200 --html");
  EXPECT_NE(page.out.find("It cost 22.5 ms in this run."), std::string::npos);
}

TEST(CliConclusions, OnlyLabsInVirtualTimeCallTheirFiguresExact) {
  const Outcome deadlock = run("lab deadlock --quick --device sim:h200"), hook = run("lab hook --device sim:h200");
  EXPECT_EQ(deadlock.out.find("figures are exact"), std::string::npos) << deadlock.out;
  EXPECT_NE(deadlock.out.find("waits for deadlines in real"), std::string::npos) << deadlock.out;
  EXPECT_NE(hook.out.find("figures are exact"), std::string::npos) << hook.out;
}

}  // namespace
}  // namespace slip::cli_test::test_conclusions
