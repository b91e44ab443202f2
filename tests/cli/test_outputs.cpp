// Where a command writes: one rule for --json, --html and --trace of all of them, terminals of any width, and no
// control bytes on them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "cli/program.hpp"
#include "slip/slip.hpp"

namespace slip::cli_test::test_outputs {
namespace {

const Kernel kNothing{"nothing", [](const Args&) {}};

std::string small_trace(const std::string& op_name) {
  const std::string file = scratch("outputs-trace.json");
  const Device device = Device::open("sim:h200");
  const Stream stream = device.stream();
  Trace trace;
  stream.launch(kNothing, {.name = op_name});
  device.sync();
  trace.stop();
  trace.write(file);
  return file;
}

std::string small_model() {
  static const std::string kFolder = [] {
    const std::string folder = scratch("outputs-model");
    const Outcome made = run("model stack --blocks 1 --hidden 64 --intermediate 64 --tokens 4 -o " + folder);
    EXPECT_EQ(made.status, 0) << made.err;
    EXPECT_EQ(run("plan " + folder + " --device sim:h200 --save-costs " + folder + "/costs").status, 0);
    return folder;
  }();
  return kFolder;
}

// Every command that has --json.
std::vector<std::string> json_commands() {
  const std::string trace = small_trace("op"), model = small_model(), costs = " --costs " + model + "/costs";
  return {"devices --quick",
          "lab hook --device sim:h200",
          "check " + trace,
          "stats " + trace,
          "plan " + model + " --device sim:h200",
          "run " + model + " --steps 2" + costs,
          "bench weights " + model + " --steps 2" + costs,
          "bench all_reduce -n 2 -b 8 -e 8 --iters 1 -w 0",
          "topo",
          "topo --nodes 2 --predict all_reduce --begin 1K --end 1K --file " SLIP_SOURCE_DIR
          "/tests/topo/data/nvswitch8.xml",
          "ranks"};
}

// `slip ranks` says by status 3 that a rank of some job on this host waits, which may be another test's.
bool worked(const std::string& command, int status) { return status == 0 || (command == "ranks" && status == 3); }

TEST(CliOutputs, JsonHasOneRuleInEveryCommand) {
  for (const std::string& command : json_commands()) {
    const std::string file = scratch("outputs.json");
    std::filesystem::remove(file);
    for (const char* here : {" --json", " --json -", " --json=-"}) {
      const Outcome outcome = run(command + here);
      EXPECT_TRUE(worked(command, outcome.status)) << command << here << outcome.err;
      EXPECT_FALSE(nlohmann::json::parse(outcome.out, nullptr, false).is_discarded()) << command << here << outcome.out;
    }
    EXPECT_FALSE(std::filesystem::exists("-")) << command;
    const Outcome both = run(command + " --json " + file);
    EXPECT_TRUE(worked(command, both.status)) << command << both.err;
    EXPECT_FALSE(nlohmann::json::parse(read_file(file), nullptr, false).is_discarded()) << command;
    EXPECT_NE(both.out, "") << command << ": the tables";
    EXPECT_TRUE(nlohmann::json::parse(both.out, nullptr, false).is_discarded()) << command;
  }
}

// An output that cannot be written is refused before the work: nothing has been printed or run.
TEST(CliOutputs, PathsAreTriedBeforeTheWork) {
  for (const std::string& command : json_commands()) {
    for (const char* path : {"/nowhere/at/all.json", "/proc"}) {
      const Outcome outcome = run(command + " --json " + path);
      EXPECT_EQ(outcome.status, 1) << command;
      EXPECT_EQ(outcome.out, "") << command;
      EXPECT_EQ(lines(outcome.err), 1U) << outcome.err;
      EXPECT_NE(outcome.err.find(path), std::string::npos) << outcome.err;
    }
  }
  const std::string model = small_model();
  for (const std::string& line :
       std::vector<std::string>{"run " + model + " --html /nowhere/x", "run " + model + " --trace /nowhere/x",
                                "plan " + model + " -o /nowhere/x", "plan " + model + " --save-costs /nowhere/x",
                                "lab --device sim:h200 --html /nowhere/x", "view nosuch.json -o /nowhere/x"}) {
    const Outcome outcome = run(line);
    EXPECT_EQ(outcome.status, 1) << line;
    EXPECT_EQ(outcome.out, "") << line;
    EXPECT_NE(outcome.err.find("/nowhere/x"), std::string::npos) << line << outcome.err;
  }
}

TEST(CliOutputs, PagesAndTracesGoToTheStandardOutputToo) {
  const Outcome page = run("lab hook --device sim:h200 --html"), trace = run("lab hook --device sim:h200 --trace -");
  EXPECT_EQ(page.out.substr(0, 9), "<!DOCTYPE") << page.out.substr(0, 80);
  EXPECT_FALSE(nlohmann::json::parse(trace.out, nullptr, false).is_discarded()) << trace.out.substr(0, 200);
  const Outcome view = run("view " + small_trace("op") + " -o -");
  EXPECT_EQ(view.out.substr(0, 9), "<!DOCTYPE") << view.out.substr(0, 80);
}

// A positional argument that is still needed is not taken for the FILE; if the command cannot know, the error says so.
TEST(CliOutputs, AnOptionalFileTakesNoArgumentThatIsNeeded) {
  const std::string trace = small_trace("op");
  const Outcome outcome = run("check --json " + trace);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_FALSE(nlohmann::json::parse(outcome.out, nullptr, false).is_discarded()) << outcome.out;
}

TEST(CliOutputs, TablesFitTheTerminal) {
  const std::string trace = scratch("outputs-wide.json");
  ASSERT_EQ(run("lab hook --device sim:h200 --trace " + trace).status, 0);
  for (const std::string& command : std::vector<std::string>{
           "lab hook --device sim:h200", "lab default-stream --device sim:h200", "stats " + trace}) {
    const std::string wide = on_terminal(command, 200), narrow = on_terminal(command, 60);
    EXPECT_LE(max_line(narrow), 60U) << narrow;
    EXPECT_EQ(wide.find("\n\n\n"), std::string::npos);
    EXPECT_GT(lines(narrow), lines(wide)) << narrow;
  }
  const std::string narrow = on_terminal("lab hook --device sim:h200", 60);
  for (const char* title : {"backward", "reduce hidden", "exposed", "result"})
    EXPECT_NE(narrow.find(title), std::string::npos) << title << narrow;
}

// What files, arguments and the environment hold is shown, never obeyed.
TEST(CliOutputs, NoControlBytesReachTheTerminal) {
  const std::string evil = "\x1b[2Jop\x07\xc2\x9b\xff";
  const std::string trace = small_trace(evil);
  for (const std::string& command : {"stats " + trace, "stats --json " + trace, "check '" + evil + "'",
                                     "lab '" + evil + "'", "lab weights --size '" + evil + "'", "'" + evil + "'",
                                     "topo --file '" + evil + "'", "launch -n 1 --env '" + evil + "' -- true"}) {
    const Outcome outcome = run(command);
    for (const std::string* text : {&outcome.out, &outcome.err}) {
      for (const char* byte : {"\x1b", "\x07"}) EXPECT_EQ(text->find(byte), std::string::npos) << command << *text;
      EXPECT_TRUE(command.find("json") != std::string::npos || text->find('\xff') == std::string::npos) << command;
    }
    // As text it is written out; the table of names has put something else in place of the first one.
    const bool table = command.starts_with("stats"), json = command.find("json") != std::string::npos;
    EXPECT_TRUE(json || (outcome.out + outcome.err).find(table ? "\\xc2\\x9b" : "\\x1b") != std::string::npos)
        << command << outcome.out << outcome.err;
  }
  ::setenv("SLIP_TRACE", ("/nowhere/" + evil).c_str(), 1);
  const Outcome environment = run("lab hook --device sim:h200");
  ::unsetenv("SLIP_TRACE");
  EXPECT_EQ(environment.err.find('\x1b'), std::string::npos) << environment.err;
}

// Bytes that a process has written so far.
std::uint64_t written_by(pid_t child) {
  std::ifstream io("/proc/" + std::to_string(child) + "/io");
  std::string key;
  for (std::uint64_t value = 0; io >> key >> value;) {
    if (key == "wchar:") return value;
  }
  return 0;
}

// A model that is interrupted while it is written leaves no file behind, however it is ended.
TEST(CliOutputs, AnInterruptedModelLeavesNoTemporaryFile) {
  for (const int signal : {SIGINT, SIGTERM, SIGKILL}) {
    const std::string folder = scratch("outputs-interrupted-" + std::to_string(signal));
    const pid_t child = ::fork();
    if (child == 0) {
      ::signal(SIGINT, SIG_DFL);  // a shell ignores it for what runs in the background
      ::execl(SLIP_PROGRAM, "slip", "model", "stack", "--blocks", "40", "-o", folder.c_str(), nullptr);
      ::_exit(127);
    }
    int status = 0;
    while (written_by(child) < (8 << 20)) {
      ASSERT_EQ(::waitpid(child, &status, WNOHANG), 0) << "it ended before it had written much";
      ::usleep(1000);
    }
    ::kill(child, signal);
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_TRUE(std::filesystem::is_directory(folder));
    for (const auto& left : std::filesystem::directory_iterator(folder)) ADD_FAILURE() << left.path();
  }
}

TEST(CliOutputs, TheManPageAndCompletionsKnowEveryCommandAndOption) {
  const std::string man = run("generate man").out, zsh = run("generate zsh").out, bash = run("generate bash").out;
  for (const char* command : {"devices", "lab", "check", "stats", "view", "model", "plan", "run", "bench", "launch",
                              "topo", "ranks", "help", "all_reduce", "sendrecv"}) {
    EXPECT_NE(man.find(command), std::string::npos) << command;
    EXPECT_NE(zsh.find(std::string("'") + command + ":"), std::string::npos) << command;
  }
  EXPECT_EQ(man.find("generate bash\n"), std::string::npos) << "hidden";
  EXPECT_NE(man.find("\\-\\-json"), std::string::npos);
  const auto complete = [&](const std::string& words) {
    std::ofstream(scratch("complete.bash"))
        << bash << "COMP_WORDS=(" << words << ")\n"
        << "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_slip\necho \"${COMPREPLY[*]}\"\n";
    EXPECT_EQ(std::system(("bash " + scratch("complete.bash") + " >" + scratch("completed")).c_str()), 0);
    return read_file(scratch("completed"));
  };
  EXPECT_EQ(complete("slip be"), "bench\n");
  EXPECT_EQ(complete("slip bench all_"), "all_reduce all_gather all_to_all\n");
  EXPECT_EQ(complete("slip lab --device sim:h200 wei"), "weights\n");
  EXPECT_EQ(complete("slip bench all_reduce --tr"), "--transport\n");
  EXPECT_EQ(complete("slip help ran"), "ranks\n");
  EXPECT_EQ(complete("slip lab --device c"), "cpu cuda:0\n");
}

}  // namespace
}  // namespace slip::cli_test::test_outputs
