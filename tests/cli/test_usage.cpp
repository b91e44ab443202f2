// What the program says to a right and to a wrong command line.
#include <gtest/gtest.h>

#include <regex>

#include "cli/program.hpp"

namespace slip::cli_test::test_usage {
namespace {

TEST(CliUsage, VersionIsOneLine) {
  const Outcome outcome = run("--version");
  EXPECT_EQ(outcome.status, 0);
  const std::regex line("slip " SLIP_VERSION ", commit (unknown|[0-9a-f]{12}( with changes)?), CUDA: (yes|no)\n");
  EXPECT_TRUE(std::regex_match(outcome.out, line)) << outcome.out;
}

TEST(CliUsage, HelpTeachesAndNamesTheCommands) {
  for (const char* arguments : {"--help", ""}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_EQ(outcome.err, "");
    for (const char* word : {"slip lab overlap", "slip devices", "sim:h200", "streams"})
      EXPECT_NE(outcome.out.find(word), std::string::npos) << word;
    EXPECT_LE(max_line(outcome.out), 100U);
  }
  EXPECT_LE(max_line(run("lab --help").out), 100U);
}

TEST(CliUsage, ListNamesAllLabs) {
  const Outcome outcome = run("lab --list");
  EXPECT_EQ(outcome.status, 0);
  for (const char* name :
       {"overlap", "host", "default-stream", "weights", "compress", "hook", "events", "deadlock", "questions"})
    EXPECT_NE(outcome.out.find(name), std::string::npos) << name;
  EXPECT_LE(max_line(outcome.out), 100U);
}

struct Wrong {
  const char* arguments;
  const char* value;    // named in the message
  const char* allowed;  // and what would be right
};

TEST(CliUsage, WrongValuesAreNamedInOneLineWithWhatIsAllowed) {
  const Wrong wrong[] = {
      {"lab nosuch", "'nosuch'",
       "overlap, host, default-stream, weights, compress, hook, gradients, events, deadlock, questions"},
      {"lab weights --device gpu", "'gpu'", "sim:h200"},
      {"lab weights --device sim:nosuch", "'sim:nosuch'", "sim:laptop"},
      {"lab weights --device tpu:0", "'tpu:0'", "cpu"},
      {"lab weights --device /nowhere/x.json", "/nowhere/x.json", "cannot read"},
      {"lab weights --size 12q", "'12q'", "4KiB"},
      {"lab weights --size 3GiB", "'3GiB'", "1GiB"},
      {"lab weights --size 5000", "'5000'", "multiple"},
      {"lab weights --layers 1", "1", "2 to 64"},
      {"lab overlap --chunks 1000", "1000", "2 to 64"},
      {"lab overlap --chunks 0", "--chunks 0", "2 to 64"},
      {"lab weights --layers 0", "--layers 0", "2 to 64"},
      {"lab gradients --nodes 0", "--nodes 0", "1 to 131072"},
      {"lab overlap --chunks many", "many", "whole number"},
      {"lab gradients --ranks 5", "5", "2 to 4"},
      {"lab gradients --device sim:h200 --ranks 2", "--ranks", "--nodes"},
      {"lab --colour", "'--colour'", "--device"},
      {"lab overlap twice", "'twice'", "--help"},
      {"dance", "'dance'", "devices, lab"},
      {"--colour", "'--colour'", "--version"},
      {"lab --device", "--device", "missing"},
      {"launch -n 2 --timeout nan -- true", "'nan'", "0.001 to"},
      {"launch -n 2 --grace nan -- true", "'nan'", "0 to"},
      {"bench all_reduce -f nan", "'nan'", "1.0001 to"},
      {"topo --predict all_reduce --factor nan", "'nan'", "1.0001 to"},
      {"topo --predict all_reduce --latency -nan", "'-nan'", "0 to"},
      {"topo --html", "--html", "--predict"},
      {"topo --predict all_reduce --svg x.svg", "--svg", "--predict"},
      {"lab --json weights", "'weights'", "put it behind the lab"},
      {"lab hook --device sim:h200 --json --html -", "--html and --json", "name a FILE"},
      {"lab hook --device sim:h200 --json same --trace same", "'same'", "--trace and --json"},
      {"bench", "slip bench", "all_reduce"},
      {"model", "slip model", "stack"},
  };
  for (const Wrong& each : wrong) {
    const Outcome outcome = run(each.arguments);
    EXPECT_EQ(outcome.status, 2) << each.arguments;
    EXPECT_EQ(outcome.out, "") << each.arguments;
    EXPECT_EQ(lines(outcome.err), 1U) << outcome.err;
    EXPECT_NE(outcome.err.find(each.value), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find(each.allowed), std::string::npos) << outcome.err;
  }
}

// Mistyped words are answered with the nearest one.
TEST(CliUsage, DidYouMean) {
  const std::pair<const char*, const char*> lines_and_words[] = {
      {"benhc", "did you mean bench?"},
      {"bench allreduce", "did you mean all_reduce?"},
      {"bench all-reduce -n 2", "did you mean all_reduce?"},
      {"bench reduce_scater", "did you mean reduce_scatter?"},
      {"model stak", "did you mean stack?"},
      {"lab weigths", "did you mean weights?"},
      {"lab --jsno", "did you mean --json?"},
      {"devices --quik", "did you mean --quick?"},
      {"run model --buget=1MiB", "did you mean --budget?"},
      {"help benhc", "did you mean bench?"},
      {"help bench allreduce", "did you mean all_reduce?"}};
  for (const auto& [arguments, words] : lines_and_words) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_EQ(lines(outcome.err), 1U) << outcome.err;
    EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
  }
  for (const char* far : {"xyzzy", "lab xyzzy", "bench 8"}) {
    const Outcome outcome = run(far);
    EXPECT_EQ(outcome.status, 2) << far;
    EXPECT_EQ(outcome.err.find("did you mean"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("here are"), std::string::npos) << outcome.err;
  }
}

TEST(CliUsage, HelpExplainsACommand) {
  for (const char* command : {"lab", "bench", "bench all_reduce", "model stack", "topo"}) {
    const Outcome outcome = run(std::string("help ") + command);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.out, run(std::string(command) + " --help").out);
  }
  EXPECT_EQ(run("help").out, run("--help").out);
}

// Without a GPU the reason is named, and not a list of devices in which cuda stands.
TEST(CliUsage, CudaThatIsNotHereIsExplained) {
  for (const char* device : {"cuda", "cuda:0"}) {
    for (const std::string command : {"lab hook --quick --device ", "plan nowhere --device "}) {
      const Outcome outcome = run(command + device);
      if (outcome.err.find("nowhere") != std::string::npos || outcome.status == 0) GTEST_SKIP() << "there is a GPU";
      EXPECT_EQ(outcome.status, 2);
      EXPECT_EQ(lines(outcome.err), 1U) << outcome.err;
      EXPECT_TRUE(std::regex_search(outcome.err, std::regex("no NVIDIA driver was found|no GPU|built without CUDA")))
          << outcome.err;
      EXPECT_EQ(outcome.err.find("insufficient"), std::string::npos) << outcome.err;
      EXPECT_EQ(outcome.err.find("sim:h200"), std::string::npos) << outcome.err;
    }
  }
}

TEST(CliUsage, SizesHaveUnits) {
  for (const auto& [text, bytes] :
       {std::pair("8192", 8192), std::pair("64KiB", 64 << 10), std::pair("'1 MiB'", 1 << 20)}) {
    const auto rows = lab_tables("weights", "sim:h200", std::string("--size ") + text).at(0).at("rows");
    EXPECT_EQ(rows.at(0).at("peak_bytes"), 6 * bytes) << text;
  }
}

TEST(CliUsage, DevicesShowsWhatThereIs) {
  const std::string file = scratch("devices.json");
  const Outcome outcome = run("devices --quick --json " + file);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_LE(max_line(outcome.out), 100U) << outcome.out;
  for (const char* word : {"cpu:", "pinned up", "FLOP/s", "launch", "sim:h200", "sim:laptop", "cuda:"})
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word;
  const auto data = nlohmann::json::parse(read_file(file));
  EXPECT_GT(data.at("cpu").at("copies").at(0).at("pinned_up").get<double>(), 0);
  EXPECT_GT(data.at("cpu").at("calls").at(0).at("host_ns").get<double>(), 0);
}

TEST(CliUsage, AFullDiskIsAFailureThatNamesTheFile) {
  for (const char* option : {"--trace", "--json"}) {
    const Outcome outcome = run(std::string("lab hook --device sim:h200 ") + option + " /dev/full");
    EXPECT_EQ(outcome.status, 1);
    EXPECT_EQ(lines(outcome.err), 1U) << outcome.err;
    EXPECT_NE(outcome.err.find("/dev/full"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("No space left"), std::string::npos) << outcome.err;
  }
  const Outcome nowhere = run("lab hook --device sim:h200 --json /nowhere/at/all.json");
  EXPECT_EQ(nowhere.status, 1);
  EXPECT_NE(nowhere.err.find("/nowhere/at/all.json"), std::string::npos) << nowhere.err;
}

}  // namespace
}  // namespace slip::cli_test::test_usage
