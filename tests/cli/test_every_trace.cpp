// Every command that writes a trace or a page: `slip check`, `slip stats` and `slip view` read what it wrote.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <sstream>

#include "cli/program.hpp"

namespace slip::cli_test::test_every_trace {
namespace {

using nlohmann::json;

// What a page holds beside its columns.
json page_data(const std::string& path) {
  const std::string html = read_file(path);
  const std::size_t begin = html.find('>', html.find("id=\"slip-data\"")) + 1;
  return json::parse(html.substr(begin, html.find("</script>", begin) - begin), nullptr, false);
}

// No number of the columns may lie beyond its table of words.
void expect_page(const std::string& path) {
  const json page = page_data(path);
  ASSERT_TRUE(page.is_object()) << path;
  EXPECT_EQ(page.at("engines").size(), 6U);
  EXPECT_EQ(page.at("kinds").back(), "exchange");
  EXPECT_GT(page.at("spans"), 0) << path;
}

// Reads the traces with all three commands, and gives what `stats` found of the first.
json read_back(const std::string& traces) {
  const Outcome check = run("check " + traces);
  EXPECT_TRUE(check.status == 0 || check.status == 1) << check.err;  // 1: a lab shows a race or a deadlock
  EXPECT_EQ(check.err, "") << traces;
  EXPECT_NE(check.out, "");
  const std::string data = scratch("every-stats.json"), page = scratch("every-view.html");
  const Outcome stats = run("stats " + traces + " --json " + data);
  EXPECT_EQ(stats.status, 0) << stats.err;
  EXPECT_EQ(stats.err, "");
  const Outcome view = run("view " + traces + " -o " + page);
  EXPECT_EQ(view.status, 0) << view.err;
  expect_page(page);
  const json found = json::parse(read_file(data), nullptr, false);
  if (!found.is_object() || found.at("traces").empty()) {
    ADD_FAILURE() << traces << ": stats found nothing";
    return {};
  }
  return found.at("traces").at(0);
}

bool has_engine(const json& stats, const std::string& engine) {
  return std::ranges::any_of(stats.at("engines"), [&](const json& row) { return row.at("engine") == engine; });
}

// An all_reduce ends on no rank before it has begun on all of them: on one clock it shows.
void expect_one_clock(const std::string& traces) {
  const std::string data = scratch("every-ops.json");
  ASSERT_EQ(run("stats " + traces + " --ops --json " + data).status, 0);
  std::map<int, std::vector<std::pair<std::int64_t, std::int64_t>>> calls;  // by device: started, ended
  const json found = json::parse(read_file(data));
  for (const json& op : found.at("traces").at(0).at("all_ops")) {
    if (op.at("name") == "all_reduce") calls[op.at("device")].emplace_back(op.at("started"), op.at("ended"));
  }
  ASSERT_EQ(calls.size(), 3U);
  for (auto& [device, list] : calls) std::ranges::sort(list);
  const std::size_t count = calls.begin()->second.size();
  EXPECT_GT(count, 0U);
  for (const auto& [device, list] : calls) ASSERT_EQ(list.size(), count);
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t last_start = 0, first_end = std::numeric_limits<std::int64_t>::max();
    for (const auto& [device, list] : calls) {
      last_start = std::max(last_start, list[i].first);
      first_end = std::min(first_end, list[i].second);
    }
    EXPECT_LE(last_start, first_end) << "call " << i;
  }
}

// SLIP_TRACE for the programs started while it lives.
class Traced {
 public:
  explicit Traced(const std::string& pattern) { ::setenv("SLIP_TRACE", pattern.c_str(), 1); }
  ~Traced() { ::unsetenv("SLIP_TRACE"); }
  Traced(const Traced&) = delete;
  Traced& operator=(const Traced&) = delete;
};

std::vector<std::string> lab_names() {
  std::vector<std::string> names;
  std::istringstream list(run("lab --list").out);
  for (std::string line; std::getline(list, line);) {
    std::istringstream words(line);
    std::string name;
    if (words >> name) names.push_back(name);
  }
  return names;
}

// The lab of thousands of ops, in a suite of its own because it takes longest.
constexpr const char* kLargest = "questions";

void expect_lab_is_read(const std::string& name) {
  SCOPED_TRACE(name);
  const std::string trace = scratch("lab.json"), page = scratch("lab.html");
  const Outcome lab = run("lab " + name + " --quick --device sim:h200 --trace " + trace + " --html " + page);
  ASSERT_EQ(lab.status, 0) << lab.err;
  expect_page(page);
  const json stats = read_back(trace);
  if (name == "deadlock") {
    EXPECT_TRUE(has_engine(stats, "communication"));
  }
}

TEST(CliEveryLab, WritesATraceAndAPageThatAreRead) {
  std::vector<std::string> names = lab_names();
  ASSERT_NE(std::ranges::find(names, "deadlock"), names.end());
  ASSERT_EQ(std::erase(names, kLargest), 1U);
  for (const std::string& name : names) expect_lab_is_read(name);
}

TEST(CliLargestLab, WritesATraceAndAPageThatAreRead) { expect_lab_is_read(kLargest); }

TEST(CliEveryLab, WithCollectivesOnTheCpu) {
  const std::string trace = scratch("cpu-lab.json");
  ASSERT_EQ(run("lab deadlock --quick --device cpu --trace " + trace).status, 0);
  EXPECT_TRUE(has_engine(read_back(trace), "communication"));
}

TEST(CliEveryTrace, OfAPredictedCollective) {
  const std::string trace = scratch("topo.json"), page = scratch("topo.html");
  const Outcome topo = run("topo --nodes 2 --file " + std::string(SLIP_SOURCE_DIR) +
                           "/tests/topo/data/nvswitch8.xml --predict all_reduce --begin 1M --end 1M --trace " + trace +
                           " --html " + page);
  ASSERT_EQ(topo.status, 0) << topo.err;
  expect_page(page);
  read_back(trace);
}

TEST(CliEveryTrace, OfAModel) {
  const std::string model = scratch("every-model"), costs = scratch("every-costs.json");
  ASSERT_EQ(run("model stack --blocks 2 --hidden 512 --intermediate 512 --tokens 2 -o " + model).status, 0);
  ASSERT_EQ(run("plan " + model + " --device sim:h200 --save-costs " + costs).status, 0);
  const std::string plan_page = scratch("plan.html"), page = scratch("run.html"), trace = scratch("run.json");
  const std::string planned = model + " --costs " + costs + " --budget 6MiB";
  ASSERT_EQ(run("plan " + planned + " --html " + plan_page).status, 0);
  expect_page(plan_page);
  const Outcome outcome = run("run " + planned + " --steps 4 --json --trace " + trace + " --html " + page);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  expect_page(page);

  // The prediction lies under the run: every kernel and every load of four steps has one.
  const json shown = page_data(page);
  EXPECT_EQ(shown.at("prediction"), true);
  const json stats = read_back(trace);
  const auto ran = [&](const std::string& engine) {
    std::int64_t ops = 0;
    for (const json& row : stats.at("engines")) ops += row.at("engine") == engine ? row.at("ops").get<int>() : 0;
    return ops;
  };
  EXPECT_GE(shown.at("matched"), ran("compute"));
  EXPECT_GT(shown.at("matched"), ran("compute")) << "loads, too";
  EXPECT_GT(ran("copy in"), 0) << "loads are copies into the device";

  // The terminal, the page and `slip stats` say the same of the overlap.
  const double reported = json::parse(outcome.out).at(0).at("overlap_percent");
  const json& figures = shown.at("figures").at(0);
  EXPECT_GT(figures.at("copy"), 0);
  EXPECT_NEAR(100.0 * figures.at("overlapped").get<double>() / figures.at("copy").get<double>(), reported, 0.01);
  EXPECT_NEAR(stats.at("figures").at("overlap_percent").get<double>(), reported, 0.01);
  std::filesystem::remove_all(model);
}

// What is proven and simulated for a plan is no part of the program's trace; nor is what is measured, which is left out
// here because it takes long (tests/watch).
TEST(CliEveryTrace, OfAProgramThatPlans) {
  const std::string model = scratch("planned-model"), file = scratch("planned.json"),
                    trace = scratch("planned-run.json");
  const std::string costs = scratch("planned-costs.json");
  ASSERT_EQ(run("model stack --blocks 1 --hidden 256 --intermediate 256 --tokens 2 -o " + model).status, 0);
  ASSERT_EQ(run("plan " + model + " --device sim:h200 --save-costs " + costs).status, 0);
  {
    const Traced traced(file);
    const Outcome outcome = run("run " + model + " --costs " + costs + " --stream-all --steps 2 --trace " + trace);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }
  const json whole = read_back(file), steps = read_back(trace);
  // Beside the steps there is what fills the model's memory, and no more.
  EXPECT_LE(whole.at("ops").get<std::int64_t>(), steps.at("ops").get<std::int64_t>() + 40);
  std::filesystem::remove_all(model);
}

TEST(CliEveryTrace, OfRanksEachHasAFileAndTogetherTheyAreOneTrace) {
  for (const char* pattern : {"ranks.json", "ranks.%r.json"}) {
    SCOPED_TRACE(pattern);
    for (int rank = 0; rank < 3; ++rank) std::filesystem::remove(scratch("ranks." + std::to_string(rank) + ".json"));
    {
      const Traced traced(scratch(pattern));
      const Outcome launched = run("launch -n 3 --timeout 100 -- " + std::string(SLIP_PROGRAM) +
                                   " bench all_reduce -b 1KiB -e 1KiB -w 1 --iters 3");
      ASSERT_EQ(launched.status, 0) << launched.err;
    }
    std::string files;
    for (int rank = 0; rank < 3; ++rank) {
      const std::string file = scratch("ranks." + std::to_string(rank) + ".json");
      ASSERT_TRUE(std::filesystem::exists(file)) << file;
      files += file + " ";
    }
    EXPECT_FALSE(std::filesystem::exists(scratch("ranks.json")));
    const json one = read_back(scratch("ranks.1.json")), all = read_back(files);
    EXPECT_TRUE(has_engine(one, "communication"));
    EXPECT_GT(one.at("figures").at("communication"), 0);
    ASSERT_EQ(all.at("ranks").size(), 3U);
    EXPECT_GT(all.at("ops").get<std::int64_t>(), 2 * one.at("ops").get<std::int64_t>());
    expect_one_clock(files);
    const json page = page_data(scratch("every-view.html"));
    EXPECT_EQ(page.at("devices").size(), 3U);
    EXPECT_EQ(page.at("devices").at(2).at("rank"), 2);
  }
}

TEST(CliEveryTrace, OfRanksThatABenchmarkStarts) {
  {
    const Traced traced(scratch("bench.json"));
    const Outcome bench = run("bench all_gather -n 2 -b 1KiB -e 1KiB -w 1 --iters 2");
    ASSERT_EQ(bench.status, 0) << bench.err;
  }
  const json stats = read_back(scratch("bench.0.json") + " " + scratch("bench.1.json"));
  EXPECT_EQ(stats.at("ranks").size(), 2U);
  EXPECT_TRUE(has_engine(stats, "communication"));
}

TEST(CliEveryTrace, OfSeveralFilesThatBelongToNoJobEachIsReadByItself) {
  const std::string first = scratch("first.json"), second = scratch("second.json");
  ASSERT_EQ(run("lab events --quick --device sim:h200 --trace " + first).status, 0);
  ASSERT_EQ(run("lab overlap --quick --device sim:h200 --trace " + second).status, 0);
  const std::string data = scratch("apart.json");
  ASSERT_EQ(run("stats " + first + " " + second + " --json " + data).status, 0);
  EXPECT_EQ(json::parse(read_file(data)).at("traces").size(), 2U);
  const Outcome view = run("view " + first + " " + second);
  EXPECT_EQ(view.status, 2);
  EXPECT_NE(view.err.find("ranks of one job"), std::string::npos) << view.err;
}

}  // namespace
}  // namespace slip::cli_test::test_every_trace
