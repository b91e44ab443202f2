#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "races/scenario.hpp"
#include "support/devices.hpp"

namespace slip::races {

std::vector<Scenario>& corpus() {
  static std::vector<Scenario> scenarios;
  return scenarios;
}

namespace {

class Corpus : public test::DeviceTest {
 protected:
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
  const auto is_told = std::any_of(report.races.begin(), report.races.end(), [&](const Race& race) {
    return race.first.name.starts_with(scenario.first) && race.second.name.starts_with(scenario.second);
  });
  EXPECT_TRUE(is_told) << "'" << scenario.first << "' and '" << scenario.second << "' race:\n" << report.text();
  EXPECT_FALSE(report.fixes.empty()) << "it does not say what is missing\n" << report.text();
}

TEST_P(Corpus, IsToldRight) {
  for (const Scenario& scenario : corpus()) {
    if (GetParam().most < scenario.devices) continue;
    SCOPED_TRACE(std::to_string(scenario.number) + ": " + scenario.title);
    const auto [live, offline] = run(scenario);
    for (const RaceReport* report : {&live, &offline}) {
      if (scenario.first) expect_race(scenario, *report);
      else EXPECT_TRUE(report->races.empty()) << report->text();
    }
    EXPECT_EQ(live.races.size(), offline.races.size()) << live.text() << offline.text();
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
  EXPECT_EQ(*numbers.rbegin(), all) << "a number is missing";
  EXPECT_EQ(racy * 2, all);
}

SLIP_OVER_DEVICES(Corpus);

}  // namespace
}  // namespace slip::races
