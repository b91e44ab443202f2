// `slip check` and SLIP_CHECK, as a user meets them.
#include <gtest/gtest.h>

#include "cli/program.hpp"
#include "slip/slip.hpp"

namespace slip::cli_test::test_check {
namespace {

const Kernel kTouch{"touch", [](const Args&) {}};

// Writes the trace of two streams that meet in one buffer, with or without the event between them.
std::string traced(const std::string& name, bool ordered, Name stream = {}) {
  const std::string file = scratch(name);
  const Device device = Device::open("sim:h200");
  const Stream a = device.stream({.name = stream}), b = device.stream();
  const Buffer shared = device.alloc(1024, MemoryKind::kDevice, "shared <buffer>");
  Trace trace;
  a.launch(kTouch, {.writes = {shared}, .name = "load"});
  if (ordered) b.wait(a.record());
  b.launch(kTouch, {.reads = {shared.slice(512, 64)}, .name = "add"});
  device.sync();
  trace.stop();
  trace.write(file);
  return file;
}

TEST(CliCheck, ACleanTraceIsStatusZero) {
  const Outcome outcome = run("check " + traced("clean.json", true));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("no race in 2 ops"), std::string::npos) << outcome.out;
}

TEST(CliCheck, ARaceIsReportedWithBothOpsAndTheRemedy) {
  const Outcome outcome = run("check " + traced("clean.json", true) + " " + traced("racy.json", false));
  EXPECT_EQ(outcome.status, 1);
  for (const char* word : {"'load' writes", "'add' reads", "bytes 512 to 576", "shared <buffer>",
                           "test_check.cpp:", "record an event in stream"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word << " in\n" << outcome.out;
}

TEST(CliCheck, FindingsNameStreamsByTheirIdsAndNames) {
  const std::string file = scratch("named-findings.json");
  const Outcome outcome = run("check " + traced("named.json", false, "loads") + " --json " + file);
  const nlohmann::json race = nlohmann::json::parse(read_file(file))[0]["races"][0];
  const std::string first = race["first"]["stream"].dump(), second = race["second"]["stream"].dump();
  EXPECT_EQ(race["first"]["stream_name"], "loads");
  EXPECT_EQ(race["second"]["stream_name"], nlohmann::json());
  for (const std::string& part :
       {"'load' writes them in stream " + first + " 'loads' (", "'add' reads them in stream " + second + " (",
        "record an event in stream " + first + " 'loads' after 'load' (",
        "and make stream " + second + " wait for it before 'add' ("})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in\n" << outcome.out;
}

TEST(CliCheck, FindingsAreWrittenAsDataAndAsAPage) {
  const std::string json = scratch("findings.json"), page = scratch("findings.html");
  const Outcome outcome = run("check " + traced("racy.json", false) + " --json " + json + " --html " + page);
  EXPECT_EQ(outcome.status, 1) << outcome.err;
  const std::string data = read_file(json);
  for (const char* word : {"\"races\"", "\"name\": \"load\"", "\"record_after\"", "\"clean\": false"})
    EXPECT_NE(data.find(word), std::string::npos) << word << " in\n" << data;
  EXPECT_NE(read_file(page).find("<html"), std::string::npos);
  const std::string both = traced("clean.json", true) + " " + traced("racy.json", false);
  EXPECT_EQ(run("check " + both + " --html " + page).status, 2) << "a page shows one trace, or ranks of one job";
}

TEST(CliCheck, WhatIsNoTraceIsRefused) {
  const Outcome missing = run("check " + scratch("absent.json"));
  EXPECT_EQ(missing.status, 1);
  EXPECT_NE(missing.err.find("absent.json"), std::string::npos) << missing.err;
  EXPECT_EQ(run("check").status, 2) << "it wants a file";
}

// The labs are programs with many streams, and correct ones.
TEST(CliCheck, ALabRunsCleanUnderTheChecker) {
  setenv("SLIP_CHECK", "1", 1);
  const Outcome outcome = run("lab weights --device sim:h200 --quick");
  unsetenv("SLIP_CHECK");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("SLIP_CHECK: no race"), std::string::npos) << outcome.err;
}

TEST(CliCheck, SaysThatLaunchBlockingHidesRaces) {
  setenv("SLIP_CHECK", "1", 1);
  setenv("SLIP_LAUNCH_BLOCKING", "1", 1);
  const Outcome outcome = run("lab weights --device sim:h200 --quick");
  unsetenv("SLIP_LAUNCH_BLOCKING");
  unsetenv("SLIP_CHECK");
  EXPECT_NE(outcome.err.find("SLIP_LAUNCH_BLOCKING=1 makes the host wait after every op"), std::string::npos)
      << outcome.err;
}

// In a process of its own, which ends with the checker's status.
void race_and_exit() {
  setenv("SLIP_CHECK", "1", 1);
  static_cast<void>(traced("never.json", false));
  std::exit(0);
}

TEST(CliCheck, ARaceChangesTheExitStatusOfAnyProgram) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(race_and_exit(), testing::ExitedWithCode(66), "SLIP_CHECK: race 1 of 1");
}

}  // namespace
}  // namespace slip::cli_test::test_check
