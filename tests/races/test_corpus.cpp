#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>

#include "races/scenario.hpp"
#include "support/devices.hpp"
#include "support/processes.hpp"

namespace slip::races {

std::vector<Scenario>& corpus() {
  static std::vector<Scenario> scenarios;
  return scenarios;
}

namespace {

class Corpus : public test::DeviceTest {
 protected:
  bool can_run(const Scenario& scenario) const {
    return GetParam().max_devices >= scenario.devices && (scenario.on_cuda || !on_cuda());
  }
  void expect_right(const Scenario& scenario);
  // The program's report, live and from its trace.
  std::pair<RaceReport, RaceReport> run(const Scenario& scenario) {
    std::vector<Device> devices = open_all(scenario.devices);
    Setting setting{devices.front(), devices.back()};
    for (const Device& device : devices) device.sync();
    RaceChecker checker;
    Trace trace;
    scenario.program(setting);
    for (const Device& device : devices) device.sync();
    trace.stop();
    checker.stop();
    data_ = trace.data();
    return {checker.report(), check_races(data_)};
  }

 private:
  TraceData data_;  // the report refers to it
};

void expect_race(const Scenario& scenario, const RaceReport& report) {
  const auto is_reported = std::any_of(report.races.begin(), report.races.end(), [&](const Race& race) {
    return race.first.name.starts_with(scenario.first) && race.second.name.starts_with(scenario.second);
  });
  EXPECT_TRUE(is_reported) << "'" << scenario.first << "' and '" << scenario.second << "' race:\n" << report.text();
  EXPECT_FALSE(report.fixes.empty()) << "it does not say what is missing\n" << report.text();
}

void Corpus::expect_right(const Scenario& scenario) {
  SCOPED_TRACE(std::to_string(scenario.number) + ": " + scenario.title);
  const auto [live, offline] = run(scenario);
  for (const RaceReport* report : {&live, &offline}) {
    if (scenario.first) expect_race(scenario, *report);
    else EXPECT_TRUE(report->races.empty()) << report->text();
  }
  EXPECT_EQ(live.races.size(), offline.races.size()) << live.text() << offline.text();
}

// If set, IsJudgedCorrectly runs this scenario only. FreshProcess sets it for the processes that it starts.
constexpr const char* kNumber = "SLIP_TEST_CORPUS_NUMBER";

TEST_P(Corpus, IsJudgedCorrectly) {
  const char* const number = std::getenv(kNumber);
  for (const Scenario& scenario : corpus()) {
    if (number && std::to_string(scenario.number) != number) continue;
    if (can_run(scenario)) expect_right(scenario);
  }
}

// The cpu and the sim device keep their streams apart, so both are new in one process.
TEST(FreshProcess, EachProgramIsJudgedCorrectly) {
  for (const Scenario& scenario : corpus()) {
    const std::string command =
        kNumber + ("=" + std::to_string(scenario.number)) +
        " CUDA_VISIBLE_DEVICES= " + test::own_path() +  // starting CUDA takes seconds
        " --gtest_brief=1 --gtest_filter='*Corpus.IsJudgedCorrectly/cpu_concurrent:*Corpus.IsJudgedCorrectly/sim_h200' "
        "2>&1";
    std::FILE* child = ::popen(command.c_str(), "r");  // its watchdog ends it, should it hang
    ASSERT_NE(child, nullptr);
    std::string said;
    std::array<char, 4096> part{};
    while (std::fgets(part.data(), part.size(), child)) said += part.data();
    EXPECT_EQ(::pclose(child), 0) << scenario.number << ": " << scenario.title << "\n" << said;
    EXPECT_NE(said.find("2 tests"), std::string::npos) << said;
  }
}

TEST(CorpusItself, IsHalfRacyAndNumbered) {
  std::set<int> numbers;
  std::ptrdiff_t racy = 0;
  for (const Scenario& scenario : corpus()) {
    EXPECT_TRUE(numbers.insert(scenario.number).second) << scenario.number << " is there twice";
    racy += scenario.first ? 1 : 0;
  }
  const auto all = static_cast<std::ptrdiff_t>(corpus().size());
  ASSERT_FALSE(numbers.empty());
  EXPECT_EQ(*numbers.rbegin(), all) << "a number is missing";
  EXPECT_EQ(racy * 2, all);
}

SLIP_OVER_DEVICES(Corpus);

}  // namespace
}  // namespace slip::races
