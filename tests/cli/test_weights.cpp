// `slip plan`, `slip run` and `slip bench weights` as a user meets them: a model of 14 MiB in less than that.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "cli/program.hpp"

namespace slip::cli_test::test_weights {
namespace {

using nlohmann::json;

constexpr std::int64_t kMiB = 1 << 20;

class CliWeights : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ASSERT_EQ(run("model stack --blocks 2 --hidden 512 --intermediate 512 --tokens 2 -o " + model()).status, 0);
    // Costs of a simulated device: measuring takes long, and differs from run to run.
    ASSERT_EQ(run("plan " + model() + " --device sim:h200 --save-costs " + costs()).status, 0);
  }
  static void TearDownTestSuite() { std::filesystem::remove_all(model()); }

  static std::string model() { return scratch("weights-model"); }
  static std::string costs() { return scratch("weights-costs.json"); }
  static std::string with_costs() { return model() + " --costs " + costs() + " "; }
  static json output_of(const std::string& arguments) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(without_warnings(outcome.err), "");
    return json::parse(outcome.out, nullptr, false);
  }
  // Costs measured beside other programs may be implausible, which is said.
  static std::string without_warnings(const std::string& said) {
    return std::regex_replace(said, std::regex("slip: measured that [^\n]* times is assumed[^\n]*\n"), "");
  }
};

TEST_F(CliWeights, PlanSaysWhatStaysWhatPassesAndThatItIsProven) {
  const Outcome outcome = run("plan " + with_costs() + "--budget 6MiB");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  for (const char* word : {"graph", "14.0 MiB of weights", "budget         6 MiB", "pass through the ring", "simulated",
                           "proof          proven", " steps; assumes loads from pinned host memory\n"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word << outcome.out;
  const Outcome resident = run("plan " + with_costs());  // nothing is loaded, so nothing is assumed
  EXPECT_NE(resident.out.find("proof          proven"), std::string::npos) << resident.out;
  EXPECT_EQ(resident.out.find("assumes"), std::string::npos) << resident.out;
}

TEST_F(CliWeights, PlanAsJsonStaysWithinTheBudget) {
  const json plan = output_of("plan " + with_costs() + "--budget 6MiB --json");
  EXPECT_LE(plan.at("device_bytes"), 6 * kMiB);
  EXPECT_EQ(plan.at("device_bytes").get<std::int64_t>(), plan.at("resident_bytes").get<std::int64_t>() +
                                                             plan.at("ring_bytes").get<std::int64_t>() +
                                                             plan.at("activation_bytes").get<std::int64_t>());
  EXPECT_GT(plan.at("streamed_bytes"), 8 * kMiB);
  EXPECT_EQ(plan.at("verdict"), "proven");
  EXPECT_GE(plan.at("step_ps"), plan.at("resident_ps"));
}

TEST_F(CliWeights, ASlowdownFindsABudgetAndMoreOfItASmallerOne) {
  const json little = output_of("plan " + with_costs() + "--slowdown 5 --json");
  const json much = output_of("plan " + with_costs() + "--slowdown 300 --json");
  EXPECT_LE(little.at("step_ps").get<double>(), 1.06 * little.at("resident_ps").get<double>());
  EXPECT_LT(much.at("device_bytes"), little.at("device_bytes"));
  EXPECT_GT(output_of("plan " + with_costs() + "--json").at("device_bytes"), 14 * kMiB);  // everything fits
}

TEST_F(CliWeights, AGraphAloneIsPlannedForADeviceThatIsNotHere) {
  const json whole = output_of("plan " + model() + " --device sim:h200 --budget 6MiB --json");
  const json graph = output_of("plan " + model() + "/graph.json --device sim:h200 --budget 6MiB --json");
  EXPECT_EQ(whole, graph);
  EXPECT_EQ(whole, output_of("plan " + with_costs() + "--budget 6MiB --json"));  // the costs that were saved
}

TEST_F(CliWeights, RunComparesWithResidentAndKeepsTheBudget) {
  const std::string page = scratch("weights.html"), trace = scratch("weights-trace.json");
  const std::string line = "run " + with_costs() + "--budget 6MiB --check --steps 3 ";
  const json rows = output_of(line + "--json --html " + page);
  EXPECT_NE(read_file(page).find("<html"), std::string::npos);
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_GT(rows.at(0).at("peak_bytes"), 14 * kMiB);
  EXPECT_LE(rows.at(1).at("peak_bytes"), 6 * kMiB);
  EXPECT_EQ(rows.at(1).at("outputs"), "equal");
  EXPECT_GT(rows.at(1).at("bytes_per_s"), 0);

  const Outcome text = run(line + "--html " + page + " --trace " + trace);
  EXPECT_EQ(text.status, 0) << text.err;
  for (const char* word : {"all resident", "as planned", "equal", "predicted", "proven"})
    EXPECT_NE(text.out.find(word), std::string::npos) << word << text.out;
  EXPECT_NE(read_file(page).find("<html"), std::string::npos);
  const Outcome checked = run("check " + trace);
  EXPECT_EQ(checked.status, 0) << checked.out;
}

TEST_F(CliWeights, RunTakesAPlanFromAFile) {
  const std::string plan = scratch("weights-plan.json");
  ASSERT_EQ(run("plan " + with_costs() + "--budget 6MiB -o " + plan).status, 0);
  const json rows = output_of("run " + with_costs() + "--plan " + plan + " --check --steps 2 --json");
  EXPECT_LE(rows.at(1).at("peak_bytes"), 6 * kMiB);
  EXPECT_EQ(rows.at(1).at("outputs"), "equal");
}

TEST_F(CliWeights, RunReadsFromDiskWhatHostMemoryHasNoRoomFor) {
  const json rows = output_of("run " + model() +
                              " --budget 6MiB --host-memory 4MiB --check --steps 2 --json");  // costs measured here
  EXPECT_EQ(rows.at(1).at("outputs"), "equal");
}

// Small weights travel together: a quarter of them has no room for the first load.
TEST_F(CliWeights, BenchLeavesOutWhatDoesNotFit) {
  const std::string one = scratch("weights-one");
  ASSERT_EQ(run("model stack --blocks 1 --hidden 64 --intermediate 64 --tokens 2 -o " + one).status, 0);
  const json found = output_of("bench weights " + one + " --steps 2 --json");
  ASSERT_FALSE(found.at("left_out").empty());
  EXPECT_NE(found.at("left_out").back().get<std::string>().find("smallest that works"), std::string::npos) << found;
  EXPECT_EQ(found.at("rows").size() + found.at("left_out").size(), 5U);
  EXPECT_EQ(found.at("rows").back().at("case"), "two slots");  // though they are larger than all weights
  std::filesystem::remove_all(one);
}

TEST_F(CliWeights, BenchShowsLessAndLessMemory) {
  const json found = output_of("bench weights " + with_costs() + "--steps 2 --json");
  const json& rows = found.at("rows");
  ASSERT_EQ(rows.size(), 5U);
  EXPECT_EQ(rows.at(0).at("case"), "resident");
  EXPECT_TRUE(found.at("left_out").empty());
  for (std::size_t i = 1; i < rows.size(); ++i) {
    EXPECT_LT(rows.at(i).at("peak_bytes"), rows.at(i - 1).at("peak_bytes"));
    EXPECT_EQ(rows.at(i).at("outputs"), "equal");
    EXPECT_GT(rows.at(i).at("ratio"), 0);
  }
  const Outcome text = run("bench weights " + with_costs() + "--steps 2");
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_LE(max_line(text.out.substr(text.out.find('\n'))), 100U) << text.out;
}

struct Wrong {
  std::string arguments;
  int status;
  std::vector<std::string> named;
};

void expect_one_line(const Wrong& wrong) {
  const Outcome outcome = run(wrong.arguments);
  EXPECT_EQ(outcome.status, wrong.status) << wrong.arguments << outcome.err;
  EXPECT_EQ(lines(outcome.err), 1U) << outcome.err;
  EXPECT_EQ(outcome.err.find("src/"), std::string::npos) << "a place in the program: " << outcome.err;
  for (const std::string& text : wrong.named) EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
}

TEST_F(CliWeights, WrongValuesAreNamedInOneLine) {
  const std::string graph = model() + "/graph.json";
  const Wrong wrong[] = {
      {"plan", 2, {"MODEL"}},
      {"plan /no/such/folder", 1, {"/no/such/folder"}},
      {"run /no/such/folder", 1, {"/no/such/folder"}},
      {"run " + graph, 2, {graph, "without weights"}},
      {"bench weights " + graph, 2, {graph, "without weights"}},
      {"run " + model() + " --device sim:h200", 2, {"sim:h200", "slip plan"}},
      {"plan " + model() + " --device gpu", 2, {"'gpu'", "cpu"}},
      {"plan " + model() + " --device sim:nosuch", 2, {"sim:nosuch", "sim:h200"}},
      {"plan " + model() + " --budget much", 2, {"--budget 'much'", "2GiB"}},
      {"plan " + model() + " --ring -1", 2, {"--ring '-1'", "2GiB"}},
      {"plan " + model() + " --host-memory all", 2, {"--host-memory 'all'"}},
      {"plan " + model() + " --compress --host-memory 4MiB", 2, {"--compress", "--host-memory", "slip compress"}},
      {"plan " + model() + " --budget 6MiB --slowdown 5", 2, {"--budget", "--slowdown"}},
      {"plan " + model() + " --slowdown -5", 2, {"--slowdown -5"}},
      {"plan " + model() + " --slowdown 5x", 2, {"5x", "number"}},
      {"plan " + model() + " --costs /no/costs.json", 1, {"/no/costs.json"}},
      {"plan " + with_costs() + "--budget 6MiB --ring 1KiB", 1, {"1 KiB", "1.0 MiB", "larger ring"}},
      {"plan " + with_costs() + "-o /no/plan.json", 1, {"/no/plan.json"}},
      {"run " + model() + " --steps 1", 2, {"--steps 1", "2 or more"}},
      {"run " + model() + " --steps many", 2, {"many"}},
      {"run " + with_costs() + "--plan /no/plan.json", 1, {"/no/plan.json"}},
      {"run " + with_costs() + "--plan p.json --budget 1MiB", 2, {"--plan", "--budget"}},
      {"bench", 2, {"weights"}},
      {"run " + model() + "/model.safetensors", 2, {"model.safetensors", "weights without a graph"}},
      {"plan " + model() + "/model.safetensors", 2, {"model.safetensors", "weights without a graph"}},
  };
  for (const Wrong& each : wrong) expect_one_line(each);
  for (const char* help : {"plan --help", "run --help", "bench weights --help"})
    EXPECT_LE(max_line(run(help).out), 120U) << help;
  for (const char* help : {"run --help", "bench weights --help"})
    EXPECT_EQ(run(help).out.find("sim:NAME"), std::string::npos) << "what it refuses is not offered";
}

TEST_F(CliWeights, ABudgetThatIsTooSmallNamesTheSmallestThatWorks) {
  const Outcome small = run("plan " + with_costs() + "--budget 100KiB");
  EXPECT_EQ(small.status, 1);
  EXPECT_EQ(lines(small.err), 1U) << small.err;
  std::smatch found;
  ASSERT_TRUE(std::regex_search(small.err, found, std::regex("smallest that works is ([0-9]+) bytes"))) << small.err;
  const std::uint64_t smallest = std::stoull(found[1]);
  EXPECT_EQ(run("plan " + with_costs() + "--budget " + std::to_string(smallest)).status, 0);
  EXPECT_EQ(run("plan " + with_costs() + "--budget " + std::to_string(smallest - 1)).status, 1);
}

// Small weights are loaded with their neighbours: the error names them, and what the op itself needs.
TEST_F(CliWeights, ABudgetThatIsTooSmallNamesTheNeighboursThatAreLoadedTogether) {
  const std::string folder = scratch("weights-small");
  ASSERT_EQ(run("model stack --blocks 1 --hidden 256 --intermediate 256 --tokens 4 -o " + folder).status, 0);
  const Outcome small = run("plan " + folder + " --device sim:h200 --budget 1KiB");
  EXPECT_EQ(small.status, 1);
  EXPECT_EQ(lines(small.err), 1U) << small.err;
  const std::regex text(
      "in memory during op '([^']+)', ([^ ]+ [KM]?i?B) of its own and the others of '.*join_bytes \\(1 MiB\\)");
  std::smatch found;
  ASSERT_TRUE(std::regex_search(small.err, found, text)) << small.err;
  EXPECT_TRUE(found[2] == "256 KiB" || found[2] == "1 KiB") << small.err;
}

TEST_F(CliWeights, BrokenModelsAreNamed) {
  const std::string folder = scratch("weights-broken");
  std::filesystem::copy(model(), folder);
  std::string graph = read_file(model() + "/graph.json");
  const std::size_t name = graph.find("blocks.1.down.weight");
  ASSERT_NE(name, std::string::npos);

  // A weight that no file has: all its places in the graph renamed.
  std::ofstream(folder + "/graph.json") << std::regex_replace(graph, std::regex("blocks\\.1\\.down\\.weight"), "lost");
  expect_one_line({"run " + folder + " --costs " + costs(), 1, {"'lost'"}});
  // Cut in the middle.
  std::ofstream(folder + "/graph.json") << graph.substr(0, graph.size() / 2);
  expect_one_line({"plan " + folder, 1, {folder + "/graph.json"}});
  // No graph, no weights.
  std::filesystem::remove(folder + "/graph.json");
  expect_one_line({"plan " + folder, 1, {folder + "/graph.json"}});
  std::ofstream(folder + "/graph.json") << graph;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() == ".safetensors") std::filesystem::remove(file.path());
  }
  expect_one_line({"run " + folder + " --costs " + costs(), 1, {folder}});
  std::filesystem::remove_all(folder);
}

TEST_F(CliWeights, PlansThatDoNotFitAreRefused) {
  const std::string plan = scratch("weights-edit.json"), other = scratch("weights-other");
  ASSERT_EQ(run("plan " + with_costs() + "--budget 6MiB -o " + plan).status, 0);
  ASSERT_EQ(run("model stack --blocks 3 --hidden 512 --intermediate 512 --tokens 2 -o " + other).status, 0);
  expect_one_line({"run " + other + " --costs " + costs() + " --plan " + plan, 1, {plan, "this graph has"}});
  std::filesystem::remove_all(other);

  const json good = json::parse(read_file(plan));
  const auto run_with = [&](const json& edited) {
    std::ofstream(plan) << edited;
    return run("run " + with_costs() + "--steps 2 --plan " + plan);
  };
  // A load that waits for nobody overwrites what an op still reads.
  json racy = good;
  for (json& load : racy.at("loads")) load.at("after_op") = nullptr, load.at("step_before") = false;
  const Outcome race = run_with(racy);
  EXPECT_EQ(race.status, 1);
  EXPECT_EQ(lines(race.err), 1U) << race.err;
  EXPECT_NE(race.err.find("not run"), std::string::npos) << race.err;
  EXPECT_NE(race.out.find("written by"), std::string::npos) << race.out;  // which ops, and what would mend it
  // Two resident weights in one place.
  json overlapping = good;
  for (json& group : overlapping.at("groups")) {
    if (group.at("resident")) group.at("offset") = 0;
  }
  const Outcome same = run_with(overlapping);
  EXPECT_EQ(same.status, 1);
  EXPECT_NE(same.err.find("same bytes"), std::string::npos) << same.err;
  EXPECT_EQ(run_with(good).status, 0);
}

TEST_F(CliWeights, CtrlCEndsARunAfterTheStepThatRuns) {
  const Interrupted ended =
      interrupt_when("run " + with_costs() + "--budget 6MiB --steps 1000000", "as planned: step 3 of");
  EXPECT_EQ(ended.status, 130) << ended.terminal;
  EXPECT_NE(ended.terminal.find("stopped after "), std::string::npos) << ended.terminal;
  EXPECT_NE(ended.terminal.find(" of 1000000 steps"), std::string::npos) << ended.terminal;
}

}  // namespace
}  // namespace slip::cli_test::test_weights
