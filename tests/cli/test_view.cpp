// `slip view` and --html, as a user meets them. What the page does in a browser is tested in tests/page.
#include <gtest/gtest.h>

#include <filesystem>

#include "cli/program.hpp"

namespace slip::cli_test::test_view {
namespace {

std::string lab_trace() {
  const std::string file = scratch("view.json");
  EXPECT_EQ(run("lab events --device sim:h200 --quick --trace " + file).status, 0);
  return file;
}

TEST(CliView, WritesThePageBesideTheTraceAndSaysWhere) {
  const std::string trace = lab_trace(), page = scratch("view.html");
  const Outcome outcome = run("view " + trace);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find(page), std::string::npos) << outcome.out;
  const std::string html = read_file(page);
  EXPECT_TRUE(html.starts_with("<!DOCTYPE html>"));
  EXPECT_NE(html.find("\"title\":\"view.json\""), std::string::npos);
}

TEST(CliView, TheSamePageFromTheLabAndFromItsTrace) {
  const std::string trace = scratch("both.json"), direct = scratch("direct.html"), later = scratch("later.html");
  ASSERT_EQ(run("lab weights --device sim:h200 --quick --trace " + trace + " --html " + direct).status, 0);
  ASSERT_EQ(run("view " + trace + " -o " + later).status, 0);
  const auto columns = [](const std::string& path) {
    const std::string html = read_file(path);
    return html.substr(html.find("id=\"slip-columns\""));
  };
  EXPECT_EQ(columns(direct), columns(later));
}

TEST(CliView, ShowsAPredictionBeside) {
  const std::string trace = lab_trace(), page = scratch("predicted.html");
  ASSERT_EQ(run("view " + trace + " --prediction " + trace + " -o " + page).status, 0);
  EXPECT_NE(read_file(page).find("\"prediction\":true"), std::string::npos);
}

TEST(CliView, WhatCannotBeIsSaid) {
  EXPECT_EQ(run("view").status, 2) << "it wants a file";
  const Outcome missing = run("view " + scratch("absent.json"));
  EXPECT_EQ(missing.status, 1);
  EXPECT_NE(missing.err.find("absent.json"), std::string::npos) << missing.err;
  EXPECT_FALSE(std::filesystem::exists(scratch("absent.html")));
  const std::string trace = lab_trace(), before = read_file(trace);
  EXPECT_EQ(run("view " + trace + " -o " + trace).status, 2) << "it would be written over";
  EXPECT_EQ(read_file(trace), before);
  const Outcome folder = run("view " + trace + " -o " + scratch("no_folder/page.html"));
  EXPECT_EQ(folder.status, 1);
  EXPECT_NE(folder.err.find("no_folder/page.html"), std::string::npos) << folder.err;
}

}  // namespace
}  // namespace slip::cli_test::test_view
