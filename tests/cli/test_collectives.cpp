// `slip bench all_reduce` and the others: what they measure and what they refuse.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/program.hpp"

namespace slip::cli_test::test_collectives {
namespace {

using nlohmann::json;

TEST(CliCollectives, EveryCollectiveIsRightAtEverySize) {
  for (const char* name : {"all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "gather",
                           "scatter", "sendrecv"}) {
    const Outcome outcome = run(std::string("bench ") + name + " -n 3 -b 4 -e 1M -f 64 --iters 2 -w 1 --json");
    ASSERT_EQ(outcome.status, 0) << name << "\n" << outcome.err;
    const json rows = json::parse(outcome.out, nullptr, false);
    ASSERT_EQ(rows.size(), 4U) << outcome.out;
    for (const json& row : rows) {
      EXPECT_EQ(row["collective"], name);
      EXPECT_EQ(row["ranks"], 3);
      EXPECT_EQ(row["out_of_place"]["wrong"], 0) << row;
      EXPECT_GT(row["out_of_place"]["time_us"], 0.0);
      EXPECT_GT(row["out_of_place"]["busbw_gb_s"], 0.0);
      EXPECT_EQ(row["in_place"].is_null() ? json(0) : row["in_place"]["wrong"], 0) << row;
    }
  }
}

TEST(CliCollectives, TheTableHasTheColumnsOfNcclTests) {
  const Outcome outcome = run("bench all_reduce -n 2 -b 1K -e 2K -d BF16 -o max --iters 2 --each");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* word : {"size", "count", "type", "redop", "root", "algbw", "busbw", "#wrong", "in place", "BF16",
                           "max", "1024", "2048", "2 ranks", "wrong elements: 0"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word << "\n" << outcome.out;
}

TEST(CliCollectives, WhatItShouldTakeIsBesideWhatItTook) {
  for (const char* way : {"", "--algorithm ring", "--algorithm tree --transport net"}) {
    const std::string command = std::string("bench all_reduce -n 2 -b 4K -e 4M -f 32 --iters 2 --predict ") + way;
    const Outcome outcome = run(command + " --json");
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const json rows = json::parse(outcome.out, nullptr, false);
    ASSERT_EQ(rows.size(), 3U) << outcome.out;
    double last = 0;
    for (const json& row : rows) {
      ASSERT_TRUE(row.contains("predicted_us")) << row;
      EXPECT_GT(row["predicted_us"], last) << way << row;
      last = row["predicted_us"];
    }
    EXPECT_NE(run(command).out.find("predicted"), std::string::npos);
  }
  EXPECT_FALSE(json::parse(run("bench all_reduce -b 8 -e 8 --iters 2 --json").out)[0].contains("predicted_us"));
}

TEST(CliCollectives, OverTheNetworkAndByAnAlgorithmItIsRight) {
  for (const char* arguments : {"all_reduce --algorithm ring", "all_reduce --algorithm doubling --transport net",
                                "broadcast --algorithm tree --transport net", "sendrecv --transport net"}) {
    const Outcome outcome = run(std::string("bench ") + arguments + " -n 3 -b 4 -e 256K -f 256 --iters 2 -w 1");
    EXPECT_EQ(outcome.status, 0) << arguments << "\n" << outcome.err;
    EXPECT_NE(outcome.out.find("wrong elements: 0"), std::string::npos) << outcome.out;
    const std::string asked = std::string(arguments).substr(std::string(arguments).rfind(' ') + 1);
    EXPECT_NE(outcome.out.find(" " + asked + "\n"), std::string::npos) << "the head says what was asked for";
  }
}

TEST(CliCollectives, ThePageHasPlotsAndTheTable) {
  const std::string page = scratch("speed.html");
  const Outcome outcome = run("bench all_reduce -n 2 -b 1K -e 64K -f 8 --iters 2 --json --html " + page);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const json rows = json::parse(outcome.out, nullptr, false);
  ASSERT_EQ(rows.size(), 3U) << "the page does not disturb what is printed\n" << outcome.out;
  const std::string html = read_file(page);
  EXPECT_TRUE(html.starts_with("<!DOCTYPE html>"));
  const auto count = [&](const std::string& word) {
    std::size_t found = 0;
    for (std::size_t at = html.find(word); at != std::string::npos; at = html.find(word, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("<svg"), 2U);
  EXPECT_EQ(count("<circle"), 3U * 2 * 2) << "sizes, in and out of place, time and bandwidth";
  EXPECT_EQ(count("<tr><td>"), 3U);
  EXPECT_EQ(count("nan"), 0U);
  EXPECT_EQ(count("src="), 0U) << "it needs no other file";
  for (const json& row : rows) EXPECT_NE(html.find("<td>" + row["bytes"].dump() + "</td>"), std::string::npos);

  // A prediction is on the page, too.
  ASSERT_EQ(run("bench all_reduce -n 2 -b 1K -e 64K -f 8 --iters 2 --predict --html " + page).status, 0);
  const std::string predicted = read_file(page);
  EXPECT_NE(predicted.find(">predicted</text>"), std::string::npos) << "the line in the plot";
  EXPECT_NE(predicted.find("<th class=\"group\">predicted</th>"), std::string::npos) << "the column of the table";

  const Outcome one = run("bench sendrecv -n 1 -b 1K -e 1K --iters 2 --html " + page);
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_NE(one.out.find("page: " + page), std::string::npos) << one.out;
  EXPECT_NE(run("bench sendrecv -n 1 -b 8 -e 8 --html /nonexistent/page.html").status, 0);
}

TEST(CliCollectives, WhatCannotBeIsRefused) {
  const struct {
    const char *arguments, *word;
  } kCases[] = {{"-b 64K -e 8", "64K"}, {"-d BOOL", "BOOL"},          {"-o premulsum", "premulsum"}, {"-b x", "x"},
                {"-n 0", "0"},          {"--algorithm star", "star"}, {"--transport shm", "shm"}};
  for (const auto& one : kCases) {
    const Outcome outcome = run(std::string("bench all_reduce ") + one.arguments);
    EXPECT_EQ(outcome.status, 2) << one.arguments << outcome.err;
    EXPECT_NE(outcome.err.find(one.word), std::string::npos) << outcome.err;
  }
  const Outcome outcome = run("bench broadcast -n 2 -r 7 --iters 1");
  EXPECT_NE(outcome.status, 0);
  EXPECT_NE(outcome.err.find("there are 2 ranks"), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace slip::cli_test::test_collectives
