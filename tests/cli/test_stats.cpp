// `slip stats`, as a user meets it.
#include <gtest/gtest.h>

#include <fstream>

#include "cli/program.hpp"
#include "slip/slip.hpp"

namespace slip::cli_test::test_stats {
namespace {

const Kernel kWork{"work", [](const Args&) {}};
constexpr Picos kMicro = 1'000'000;

// Copies in, computes and copies out, in two halves: the second half's copy hides behind the first half's kernel.
std::string traced(const std::string& name, const std::string& op = "multiply", Name stream = {}) {
  const std::string file = scratch(name);
  const Device device = Device::open("sim:h200");
  const Stream copies = device.stream({.name = stream}), compute = device.stream();
  const Buffer memory = device.alloc(8 << 20), host = device.alloc(8 << 20, MemoryKind::kPinned);
  Trace trace;
  for (std::size_t half = 0; half < 2; ++half) {
    const Range there = memory.slice(half * (4 << 20), 4 << 20);
    copies.copy(there, host.slice(half * (4 << 20), 4 << 20), "load");
    compute.wait(copies.record());
    compute.launch(kWork, {.reads = {there}, .writes = {there}, .name = op}, {.time = 200 * kMicro});
  }
  device.sync();
  trace.stop();
  trace.write(file);
  return file;
}

nlohmann::json stats_of(const std::string& arguments) {
  const std::string file = scratch("stats.json");
  const Outcome outcome = run("stats " + arguments + " --json " + file);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return nlohmann::json::parse(read_file(file))["traces"];
}

TEST(CliStats, FiguresComeAsText) {
  const std::string file = traced("two_halves.json");
  const Outcome outcome = run("stats " + file);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* words : {"two_halves.json", "lower bound", "overlap", "copy time while computing / copy time",
                            "exposed", "engines: busy", "critical path", "multiply", "load", "slack", "dependency"})
    EXPECT_NE(outcome.out.find(words), std::string::npos) << words << " in\n" << outcome.out;
  EXPECT_EQ(outcome.out.find("unknown"), std::string::npos) << "times of the sim device are exact\n" << outcome.out;
  EXPECT_LE(max_line(outcome.out), 100U) << outcome.out;
}

TEST(CliStats, TheSameAsData) {
  const nlohmann::json all = stats_of(traced("data.json"));
  ASSERT_EQ(all.size(), 1U);
  const nlohmann::json& trace = all[0];
  EXPECT_EQ(trace["ops"], 4);
  const nlohmann::json& figures = trace["figures"];
  const Picos total = figures["total"], exposed = figures["exposed"], copy = figures["copy"];
  EXPECT_EQ(figures["overlapped"].get<Picos>() + exposed, copy);
  EXPECT_DOUBLE_EQ(figures["overlap_percent"], 50.0) << "one of two equal copies";
  EXPECT_EQ(figures["distance"].get<Picos>() + figures["bound"].get<Picos>(), total);
  ASSERT_EQ(trace["engines"].size(), 2U);
  for (const nlohmann::json& engine : trace["engines"]) {
    Picos sum = engine["busy"].get<Picos>() + engine["done"].get<Picos>();
    for (const char* cause : {"host", "dependency", "queue", "engine", "unknown"})
      sum += engine[std::string("idle_") + cause].get<Picos>();
    EXPECT_EQ(sum, total) << engine;
  }
  // load, multiply, multiply: the second copy is hidden.
  const nlohmann::json& path = trace["critical_path"];
  EXPECT_EQ(path["ops"], 3);
  Picos path_time = path["time"];
  for (const auto& [cause, time] : path["waits"].items()) path_time += time.get<Picos>();
  EXPECT_EQ(path_time, total);
  EXPECT_EQ(path["longest"][0]["name"], "multiply");
  EXPECT_EQ(path["stretches"][0]["ops"], 2);
  EXPECT_EQ(trace["names"][0]["name"], "multiply");
  EXPECT_EQ(trace["names"][0]["path_ops"], 2);
  EXPECT_EQ(trace["names"][1]["least_slack"], 0);
  EXPECT_FALSE(trace.contains("all_ops"));
}

TEST(CliStats, EveryOpWhenAskedFor) {
  const nlohmann::json trace = stats_of(traced("ops.json") + " --ops")[0];
  ASSERT_EQ(trace["all_ops"].size(), 4U);
  int critical = 0;
  for (const nlohmann::json& op : trace["all_ops"]) {
    EXPECT_EQ(op["slack"] == 0, op["critical"]) << op;
    EXPECT_LE(op["ready"], op["started"]) << op;
    critical += op["critical"].get<bool>();
  }
  EXPECT_EQ(critical, 3);
  EXPECT_EQ(trace["all_ops"][1]["cause"], "dependency");
  EXPECT_EQ(trace["all_ops"][1]["after"], 0);
}

TEST(CliStats, StreamsAreShownWithTheirNames) {
  const std::string file = traced("named.json", "multiply", "loads");
  const nlohmann::json trace = stats_of(file + " --ops")[0];
  std::uint64_t loads = 0, compute = 0;
  for (const nlohmann::json& op : trace["all_ops"]) {
    const bool is_load = op["name"] == "load";
    EXPECT_EQ(op["stream_name"], is_load ? nlohmann::json("loads") : nlohmann::json()) << op;
    (is_load ? loads : compute) = op["stream"];
  }
  const nlohmann::json& longest = trace["critical_path"]["longest"];
  EXPECT_EQ(longest[0]["stream"], compute);
  EXPECT_EQ(longest[0]["stream_name"], nlohmann::json());
  EXPECT_EQ(longest[2]["stream"], loads);
  EXPECT_EQ(longest[2]["stream_name"], "loads");
  const std::string printed = run("stats " + file).out;
  EXPECT_NE(printed.find(std::to_string(loads) + " 'loads'"), std::string::npos) << printed;
  EXPECT_EQ(printed.find(std::to_string(compute) + " '"), std::string::npos) << printed;
  EXPECT_LE(max_line(printed), 100U) << printed;
}

TEST(CliStats, TopLimitsTheTables) {
  EXPECT_EQ(stats_of(traced("top.json") + " --top 1")[0]["names"].size(), 1U);
  EXPECT_EQ(stats_of(traced("top.json") + " --top 2")[0]["names"].size(), 2U);
}

TEST(CliStats, SeveralTracesEachByItself) {
  const nlohmann::json all = stats_of(traced("one.json") + " " + traced("two.json"));
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0]["figures"], all[1]["figures"]) << "the sim device repeats itself to the picosecond";
  EXPECT_NE(all[0]["file"], all[1]["file"]);
}

TEST(CliStats, LongAndHostileNamesKeepTheTablesInShape) {
  const std::string name =
      "a very long name of a kernel \x1b[31m with \xC3\xA9 and a line\nbreak, which goes on and on";
  const std::string file = traced("names.json", name);
  const Outcome outcome = run("stats " + file);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_LE(max_line(outcome.out), 100U) << outcome.out;
  EXPECT_EQ(outcome.out.find('\x1b'), std::string::npos);
  EXPECT_EQ(stats_of(file)[0]["names"][0]["name"], name);
}

// Spans only, as a program of others might leave them behind.
TEST(CliStats, WithoutSubmissionsItSaysWhatItCannotKnow) {
  const std::string file = scratch("spans.json");
  std::ofstream(file) << R"({"traceEvents":[
    {"ph":"X","pid":1,"tid":1,"ts":0,"dur":10,"cat":"compute","name":"a",
     "args":{"engine":"compute","stream":1,"position":1,"thread":[0,1],"seq":[0,1]}},
    {"ph":"X","pid":1,"tid":1,"ts":500,"dur":10,"cat":"compute","name":"b",
     "args":{"engine":"compute","stream":1,"position":2,"thread":[0,1],"seq":[0,2]}}
  ],"slip":{"version":1}})";
  const Outcome outcome = run("stats " + file);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("no submissions"), std::string::npos) << outcome.out;
  const nlohmann::json trace = stats_of(file)[0];
  EXPECT_EQ(trace["unsubmitted"], 2);
  EXPECT_EQ(trace["engines"][0]["idle_unknown"], 490 * kMicro);
}

TEST(CliStats, AnEmptyTraceIsNoError) {
  const std::string file = scratch("empty.json");
  std::ofstream(file) << R"({"traceEvents":[],"slip":{"version":1}})";
  const Outcome outcome = run("stats " + file);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(stats_of(file)[0]["ops"], 0);
}

TEST(CliStats, BadInputIsReportedInOneLine) {
  const Outcome missing = run("stats " + scratch("absent.json"));
  EXPECT_EQ(missing.status, 1);
  EXPECT_NE(missing.err.find("absent.json"), std::string::npos) << missing.err;
  EXPECT_EQ(lines(missing.err), 1U) << missing.err;
  const std::string other = scratch("other.json");
  std::ofstream(other) << R"({"something": "else"})";
  EXPECT_EQ(run("stats " + other).status, 1);
  const Outcome unwritable = run("stats " + traced("fine.json") + " --json " + scratch("no/such/folder.json"));
  EXPECT_EQ(unwritable.status, 1);
  EXPECT_NE(unwritable.err.find("folder.json"), std::string::npos) << unwritable.err;
}

TEST(CliStats, BadUsageIsStatusTwo) {
  EXPECT_EQ(run("stats").status, 2) << "it wants a file";
  const std::string file = traced("usage.json");
  for (const char* option : {" --top 0", " --top -1", " --top few", " --ops", " --deep"})
    EXPECT_EQ(run("stats " + file + option).status, 2) << option;
}

}  // namespace
}  // namespace slip::cli_test::test_stats
