// Real launchers start this very program as ranks, which find each other by what the launcher gave them.
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "transport/job/child_process.hpp"
#include "transport/job/launch_info.hpp"
#include "transport/launched.hpp"
#include "transport/socket/socket.hpp"

namespace slip::test::test_launchers {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// One rank, run by a launcher that a test below starts.
SLIP_CHILD(Launched, Rank) {
  const std::optional<transport::LaunchInfo> info = transport::launch_info();
  ASSERT_TRUE(info);
  const std::int64_t start = base::now_ns();
  transport::Bootstrap bootstrap(info->id, info->nranks, info->rank, within(seconds(30)));
  const double ready_ms = static_cast<double>(base::now_ns() - start) * 1e-6;
  const std::vector<int> ranks = bootstrap.all_gather(info->rank);
  for (std::size_t i = 0; i < ranks.size(); ++i) EXPECT_EQ(ranks[i], static_cast<int>(i));
  const std::vector<transport::Placement>& placements = bootstrap.placements();
  for (std::size_t i = 0; i < placements.size(); ++i) {
    EXPECT_TRUE(transport::same_host(placements[i], transport::Placement::own()));
    EXPECT_EQ(transport::same_process(placements[i], transport::Placement::own()), static_cast<int>(i) == info->rank);
  }
  std::printf("<rank %d of %d, local %d, by %s>\nready after %.2f ms\n", info->rank, info->nranks, info->local_rank,
              info->launcher.c_str(), ready_ms);
}

struct Outcome {
  int status = -1;
  std::string out;
};

Outcome shell(const std::string& command) {
  const std::string words = "( " + command + " ) 2>&1";
  std::FILE* const pipe = ::popen(words.c_str(), "r");
  Outcome result;
  std::array<char, 4096> bytes;
  for (std::size_t got = 0; (got = std::fread(bytes.data(), 1, bytes.size(), pipe)) > 0;)
    result.out.append(bytes.data(), got);
  const int status = ::pclose(pipe);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

bool has_program(const char* name) { return shell("command -v " + std::string(name)).status == 0; }

// The command line of one rank, and what the ranks must have said.
std::string rank_program() { return own_path() + " " + child_argument("Launched.Rank"); }

void expect_ranks(const Outcome& outcome, int nranks, const std::string& launcher) {
  EXPECT_EQ(outcome.status, 0) << outcome.out;
  for (int rank = 0; rank < nranks; ++rank) {
    const std::string words = "<rank " + std::to_string(rank) + " of " + std::to_string(nranks) + ", local " +
                              std::to_string(rank) + ", by " + launcher + ">";
    EXPECT_NE(outcome.out.find(words), std::string::npos) << words << "\n" << outcome.out;
  }
}

const std::string kLaunch = std::string(SLIP_PROGRAM) + " launch ";

TEST(Launchers, SlipLaunch) {
  expect_ranks(shell(kLaunch + "-n 8 --timeout 60 -- " + rank_program()), 8, "slip launch");
}

TEST(Launchers, OpenMpi) {
  if (shell("mpirun --version").out.find("Open MPI") == std::string::npos)
    GTEST_SKIP() << "Open MPI's mpirun is not installed (Debian: openmpi-bin)";
  expect_ranks(
      shell("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 60 mpirun --oversubscribe -n 3 " +
            rank_program()),
      3, "mpirun");
}

// MPICH's launcher names no job: its ranks meet by the process that started them, also from a shell.
TEST(Launchers, Mpich) {
  if (!has_program("mpiexec.mpich")) GTEST_SKIP() << "MPICH's mpiexec is not installed (Debian: mpich)";
  expect_ranks(shell("timeout 60 mpiexec.mpich -n 3 " + rank_program()), 3, "mpiexec");
  expect_ranks(shell("timeout 60 mpiexec.mpich -n 3 sh -c '" + rank_program() + "; exit $?'"), 3, "mpiexec");
}

TEST(Launchers, Slurm) {
  if (!has_program("srun") || shell("timeout 10 sinfo -h").status != 0)
    GTEST_SKIP() << "no Slurm runs here (Debian: slurm-wlm)";
  expect_ranks(shell("timeout 60 srun --overcommit -n 3 " + rank_program()), 3, "srun");
}

// Listens at a port whose next one is free and stays free: the kernel gives out no ephemeral ports below 32768.
transport::Socket listen_below_a_free_port() {
  for (int port = 10'000 + ::getpid() % 10'000; port < 32'000; port += 2) {
    try {
      transport::Socket held =
          transport::Socket::listen(transport::SocketAddress::loopback(AF_INET, static_cast<std::uint16_t>(port)));
      static_cast<void>(
          transport::Socket::listen(transport::SocketAddress::loopback(AF_INET, static_cast<std::uint16_t>(port + 1))));
      return held;
    } catch (const Error&) {
      continue;  // in use
    }
  }
  throw Error(ErrorCode::kIo, "no two free ports", {});
}

// The variables of torchrun, given by another launcher: rank 0 listens beside the port that torchrun itself holds.
TEST(Launchers, VariablesOfTorchrun) {
  const transport::Socket held = listen_below_a_free_port();
  const std::string port = std::to_string(held.local().port());
  const std::string set =
      "RANK=$SLIP_RANK WORLD_SIZE=$SLIP_NRANKS LOCAL_RANK=$SLIP_RANK MASTER_ADDR=localhost MASTER_PORT=" + port +
      " exec env -u SLIP_RANK -u SLIP_NRANKS -u SLIP_ID -u SLIP_LOCAL_RANK " + rank_program();
  expect_ranks(shell(kLaunch + "-n 3 --timeout 60 -- sh -c '" + set + "'"), 3, "torchrun");
}

// The variables of a pod of an indexed Job.
TEST(Launchers, VariablesOfKubernetes) {
  const transport::Socket held = listen_below_a_free_port();
  const std::string set =
      "JOB_COMPLETION_INDEX=$SLIP_RANK SLIP_ID=localhost:" + std::to_string(held.local().port() + 1) +
      " exec env -u SLIP_RANK -u SLIP_LOCAL_RANK SLIP_LOCAL_RANK=$SLIP_RANK " + rank_program();
  expect_ranks(shell(kLaunch + "-n 3 --timeout 60 -- sh -c '" + set + "'"), 3, "Kubernetes");
}

TEST(SlipLaunch, EndsTheOthersWithTheFirstThatFails) {
  const Outcome outcome =
      shell(kLaunch + "-n 4 --timeout 60 -- sh -c 'if [ $SLIP_RANK = 2 ]; then exit 7; fi; exec sleep 600'");
  EXPECT_EQ(outcome.status, 7) << outcome.out;
  EXPECT_NE(outcome.out.find("rank 2 failed with status 7; ending the other 3"), std::string::npos) << outcome.out;
}

TEST(SlipLaunch, KillsWhatDoesNotEndWhenAsked) {
  const Outcome outcome = shell(kLaunch +
                                "-n 2 --timeout 60 --grace 0.1 -- sh -c 'trap \"\" TERM; "
                                "if [ $SLIP_RANK = 1 ]; then kill -ABRT $$; fi; while :; do sleep 600; done'");
  EXPECT_EQ(outcome.status, 128 + SIGABRT) << outcome.out;
  EXPECT_NE(outcome.out.find("rank 1 died of signal 6"), std::string::npos) << outcome.out;
}

TEST(SlipLaunch, GivesUpAfterItsTimeout) {
  const Outcome outcome = shell(kLaunch + "-n 2 --timeout 0.2 -- sleep 600");
  EXPECT_EQ(outcome.status, 124) << outcome.out;
  EXPECT_NE(outcome.out.find("ranks 0 and 1 still running after 0.2 s"), std::string::npos) << outcome.out;
}

TEST(SlipLaunch, SaysWhatItCannotRun) {
  EXPECT_EQ(shell(kLaunch + "-n 2 -- /no/such/program").status, 127);
  EXPECT_EQ(shell(kLaunch + "-n 2 -- /").status, 126);
  const Outcome outcome = shell(kLaunch + "-n 0 -- true");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.out.find("4096"), std::string::npos) << outcome.out;
}

// The entries of PATH are relative to the directory of the ranks. A directory with the name of the program is passed
// over.
TEST(SlipLaunch, FindsTheProgramInThePathOfTheRanks) {
  const Folder folder;
  std::filesystem::create_directories(folder.path("first/greet"));
  std::filesystem::create_directory(folder.path("second"));
  const std::string program = folder.write("second/greet", "#!/bin/sh\necho hello\n");
  ::chmod(program.c_str(), 0700);
  const Outcome outcome =
      shell(kLaunch + "-n 1 --timeout 60 --workdir " + folder.path() + " --env PATH=first:second -- greet");
  EXPECT_EQ(outcome.status, 0) << outcome.out;
  EXPECT_NE(outcome.out.find("hello\n"), std::string::npos) << outcome.out;
}

// exec keeps an ignored signal. The kernel would then reap the ranks, and nothing would remain of their status.
SLIP_CHILD(SlipLaunch, IgnoresSigchld) {
  ::signal(SIGCHLD, SIG_IGN);
  ::execl(SLIP_PROGRAM, SLIP_PROGRAM, "launch", "-n", "2", "--timeout", "60", "--", "sh", "-c", "exit 7", nullptr);
}

TEST(SlipLaunch, GetsTheStatusIfItsParentIgnoredSigchld) {
  const Outcome outcome = shell("timeout -s KILL 60 " + own_path() + " " + child_argument("SlipLaunch.IgnoresSigchld"));
  EXPECT_EQ(outcome.status, 7) << outcome.out;
}

// The next descriptor that is opened becomes the standard input of this process, and that of its child.
SLIP_CHILD(SlipLaunch, StartsAChildWithoutInput) {
  ::close(STDIN_FILENO);
  transport::ChildProgram program{.command = {"sh", "-c", "test -e /proc/self/fd/0"},
                                  .environment = base::env_with({})};
  sigemptyset(&program.mask);
  const transport::StartedChild child = transport::start_child(program, "the shell");
  ASSERT_EQ(child.error, 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child.pid, &status, 0), child.pid);
  EXPECT_EQ(status, 0);
}

TEST(SlipLaunch, AChildHasAnInputIfItsParentHasNone) {
  const Outcome outcome = shell(own_path() + " " + child_argument("SlipLaunch.StartsAChildWithoutInput"));
  EXPECT_EQ(outcome.status, 0) << outcome.out;
}

TEST(SlipLaunch, TagsLinesAndPassesVariables) {
  const Outcome outcome = shell(kLaunch +
                                "-n 3 --tag-output --env WORD=hello --env 'TWO=a b' -- "
                                "sh -c 'echo $WORD; echo \"$TWO\" >&2; printf end'");
  EXPECT_EQ(outcome.status, 0) << outcome.out;
  for (int rank = 0; rank < 3; ++rank) {
    const std::string tag = "[" + std::to_string(rank) + "] ";
    for (const char* line : {"hello\n", "a b\n", "end\n"})
      EXPECT_NE(outcome.out.find(tag + line), std::string::npos) << tag << line << outcome.out;
  }
}

// A launcher whose ranks hold the write end of a pipe: the pipe ends when the last rank has ended.
class HeldPipe {
 public:
  // `option`: one more of slip launch. Returns when each of the three ranks has written its x.
  explicit HeldPipe(const char* command = "echo x; exec sleep 600", const char* option = "--timeout=600") {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    read_ = ends[0];
    ::fcntl(read_, F_SETFD, FD_CLOEXEC);
    launcher_ = ::fork();
    if (launcher_ == 0) {
      ::dup2(ends[1], STDOUT_FILENO);
      ::close(ends[1]);
      // A shell that runs the tests in the background ignores the signal, and all of these would inherit that.
      ::signal(SIGINT, SIG_DFL);
      ::signal(SIGTSTP, SIG_DFL);
      ::execl(SLIP_PROGRAM, SLIP_PROGRAM, "launch", "-n", "3", option, "--", "sh", "-c", command, nullptr);
      ::_exit(99);
    }
    ::close(ends[1]);
    while (std::ranges::count(said_, 'x') < 3 || !said_.ends_with('\n')) {
      const std::string more = next();
      if (more.empty() || more == kNothing) break;
      said_ += more;
    }
    EXPECT_EQ(std::ranges::count(said_, 'x'), 3) << said_;
  }
  ~HeldPipe() {
    if (launcher_ > 0) ::kill(launcher_, SIGKILL);
    if (launcher_ > 0) ::waitpid(launcher_, nullptr, 0);
    ::close(read_);
  }
  HeldPipe(const HeldPipe&) = delete;
  HeldPipe& operator=(const HeldPipe&) = delete;

  const std::string& said() const { return said_; }  // at the start
  void signal(int number) const { ::kill(launcher_, number); }
  bool stops() const {  // waits until the launcher stops or ends
    int status = 0;
    return ::waitpid(launcher_, &status, WUNTRACED) == launcher_ && WIFSTOPPED(status);
  }
  // The next output; "" when all processes that held the pipe have ended.
  std::string next() const {
    if (transport::wait_for(read_, POLLIN, {base::deadline_after(20'000'000'000), nullptr}) !=
        transport::Waited::kReady)
      return kNothing;
    std::array<char, 64> bytes;
    const ssize_t got = ::read(read_, bytes.data(), bytes.size());
    return {bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
  }
  // Waits until this much output waits to be read.
  void wait_for_bytes(int count) const {
    const std::int64_t deadline = base::deadline_after(20'000'000'000);
    for (int bytes = 0; bytes < count && base::now_ns() < deadline; std::this_thread::yield())
      ASSERT_EQ(::ioctl(read_, FIONREAD, &bytes), 0);
  }
  int status() {
    int status = 0;
    ::waitpid(std::exchange(launcher_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  static constexpr const char* kNothing = "nothing in time";

  std::string said_;
  int read_ = -1;
  pid_t launcher_ = -1;
};

// As in proc(5): 'T': stopped.
char state_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(") ");
  return name_end == std::string::npos ? '?' : line[name_end + 2];
}

// The kernel stops a process that runs on another core a moment after the signal.
bool becomes_stopped(pid_t process) {
  const std::int64_t deadline = base::deadline_after(20'000'000'000);
  while (state_of(process) != 'T' && base::now_ns() < deadline) std::this_thread::yield();
  return state_of(process) == 'T';
}

// Ctrl-Z. Another job with the same limit, which begins later, shows that the stop was longer than the limit.
TEST(SlipLaunch, StopsAndContinuesWithItsRanks) {
  HeldPipe held("echo x $$; exec sleep 600", "--timeout=4");
  std::istringstream words(held.said());
  std::vector<pid_t> ranks;
  for (std::string x, pid; words >> x >> pid;) ranks.push_back(static_cast<pid_t>(std::stol(pid)));
  ASSERT_EQ(ranks.size(), 3U) << held.said();
  held.signal(SIGTSTP);
  ASSERT_TRUE(held.stops());
  for (const pid_t rank : ranks) EXPECT_TRUE(becomes_stopped(rank));
  HeldPipe other("echo x; exec sleep 600", "--timeout=4");
  EXPECT_EQ(other.next(), "");
  EXPECT_EQ(other.status(), 124);
  for (const pid_t rank : ranks) EXPECT_EQ(state_of(rank), 'T');
  held.signal(SIGCONT);
  held.signal(SIGTERM);
  EXPECT_EQ(held.next(), "");
  EXPECT_EQ(held.status(), 128 + SIGTERM);  // not 124
}

// The reader of the output has stopped: the launcher still handles signals, and ends with its ranks.
TEST(SlipLaunch, AnInterruptEndsAJobWhoseOutputNobodyReads) {
  HeldPipe held("echo x; exec yes", "--tag-output");
  held.wait_for_bytes(30'000);
  held.signal(SIGINT);
  EXPECT_EQ(held.status(), 128 + SIGINT);
}

TEST(SlipLaunch, LeavesNobodyBehindWhenItIsKilled) {
  HeldPipe held;
  held.signal(SIGKILL);
  EXPECT_EQ(held.next(), "");
  EXPECT_EQ(held.status(), -SIGKILL);
}

// Grandchildren: in the rank's process group, in a group of their own, and without the job's environment.
TEST(SlipLaunch, LeavesNobodyBehindThatAShellStarted) {
  for (const char* command : {"sh -c 'echo x; sleep 600; true'; true", "timeout 700 sh -c 'echo x; sleep 600; true'",
                              "env -i sh -c 'echo x; sleep 600; true'; true"}) {
    SCOPED_TRACE(command);
    HeldPipe held(command);
    held.signal(SIGKILL);
    EXPECT_EQ(held.next(), "");
    EXPECT_EQ(held.status(), -SIGKILL);
  }
}

TEST(SlipLaunch, KillsNobodyElse) {
  HeldPipe other, held;
  held.signal(SIGKILL);
  EXPECT_EQ(held.next(), "");
  EXPECT_EQ(held.status(), -SIGKILL);
  other.signal(SIGTERM);  // it still runs, and ends when asked to
  EXPECT_EQ(other.next(), "");
  EXPECT_EQ(other.status(), 128 + SIGTERM);
}

// A process that a rank left running on purpose survives a job that ends well.
TEST(SlipLaunch, WhatOutlivesAGoodJobIsLeftAlone) {
  const Outcome outcome = shell(kLaunch + "-n 1 -- sh -c 'sleep 600 >/dev/null 2>&1 & echo $!'");
  ASSERT_EQ(outcome.status, 0) << outcome.out;
  const pid_t left = static_cast<pid_t>(std::strtol(outcome.out.c_str(), nullptr, 10));
  ASSERT_GT(left, 1) << outcome.out;
  EXPECT_EQ(::kill(left, SIGKILL), 0);
}

TEST(SlipLaunch, PassesSignalsOn) {
  for (const int number : {SIGTERM, SIGINT}) {
    HeldPipe held;
    held.signal(number);
    EXPECT_EQ(held.next(), "");
    EXPECT_EQ(held.status(), 128 + number);
  }
}

}  // namespace
}  // namespace slip::test::test_launchers
