// `slip launch --hosts` with a remote shell that runs everything on this host: what needs no network.
#include <cstdio>
#include <map>

#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "transport/launched.hpp"

namespace slip::test::test_cluster_launch {
namespace {

using std::chrono::seconds;
using Words = std::vector<std::string>;

// One rank: it meets the others, and prints its numbers.
SLIP_CHILD(ClusterLaunch, Rank) {
  const std::optional<transport::LaunchInfo> info = transport::launch_info();
  ASSERT_TRUE(info);
  transport::Bootstrap bootstrap(info->id, info->nranks, info->rank, within(seconds(60)));
  const std::vector<int> ranks = bootstrap.all_gather(info->rank);
  for (std::size_t i = 0; i < ranks.size(); ++i) EXPECT_EQ(ranks[i], static_cast<int>(i));
  std::printf("<%d of %d, local %d>\n", info->rank, info->nranks, info->local_rank);
}

class ClusterLaunch : public ::testing::Test {
 protected:
  const Folder folder_;
  // The shell: its first argument is the host, the others are the command. Hosts of some names misbehave.
  const std::string shell_ = make_shell(
      "host=$1; shift\n"
      "case $host in\n"
      "  chatty) echo 'Welcome to chatty'; echo 'Have fun' >&2 ;;\n"
      "  refused) echo 'it is not my day' >&2; exit 9 ;;\n"
      "  silent) exec sleep 600 ;;\n"
      "  slow) sleep 4 ;;\n"
      "  lingering) exec >&- <&-; exec sleep 600 ;;\n"
      "  garbage) head -c 100000 /dev/zero; exec sleep 600 ;;\n"
      "  nowhere) exec /no/such/program ;;\n"
      "  elsewhere) case $1 in */*) exec /no/such/program ;; esac; exec " SLIP_PROGRAM
      " agent ;;\n"
      "esac\n"
      "exec \"$@\"\n");

  std::string make_shell(const std::string& text) const {
    const std::string path = folder_.write("shell", "#!/bin/sh\n" + text);
    ::chmod(path.c_str(), 0700);
    return path;
  }
  Words words(const std::string& hosts, Words more) const {
    Words result{"launch", "--hosts", hosts, "--ssh", shell_};
    result.insert(result.end(), more.begin(), more.end());
    return result;
  }
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_F(ClusterLaunch, RanksOfAllHostsMeet) {
  Launched job(words("a:1,b,c:2,chatty", {"-n", "7", "--timeout", "80", "--no-tag-output", "--", own_path(),
                                          child_argument("ClusterLaunch.Rank")}));
  EXPECT_EQ(job.status(), 0) << job.err.all();
  for (const char* line : {"<0 of 7, local 0>\n", "<1 of 7, local 0>\n", "<2 of 7, local 1>\n", "<3 of 7, local 0>\n",
                           "<4 of 7, local 1>\n", "<5 of 7, local 0>\n", "<6 of 7, local 1>\n"})
    EXPECT_TRUE(contains(job.out.all(), line)) << line << job.out.all();
  EXPECT_FALSE(contains(job.out.all(), "Welcome")) << job.out.all();
  EXPECT_EQ(job.err.all(), "");
}

TEST_F(ClusterLaunch, LinesHaveThePrefixAndTheStreamsStayApart) {
  Launched job(words("a,me@b", {"-n", "3", "--", "sh", "-c", "echo out; echo err >&2; printf 'no end'"}));
  EXPECT_EQ(job.status(), 0) << job.err.all();
  const char* prefixes[] = {"[rank 0 host a] ", "[rank 1 host a] ", "[rank 2 host b] "};
  for (const std::string prefix : prefixes) {
    EXPECT_TRUE(contains(job.out.all(), prefix + "out\n" + prefix + "no end\n") ||
                (contains(job.out.all(), prefix + "out\n") && contains(job.out.all(), prefix + "no end\n")))
        << job.out.all();
    EXPECT_TRUE(contains(job.err.all(), prefix + "err\n")) << job.err.all();
  }
  EXPECT_FALSE(contains(job.out.all(), "err"));
  EXPECT_FALSE(contains(job.err.all(), "out"));
}

// Both outputs of the launcher go to one pipe, as in a terminal, and its reader is slower than the ranks.
TEST_F(ClusterLaunch, LinesStayWholeIfBothOutputsAreOne) {
  const std::string rank =
      "o=$(printf %03000d 0); e=$(printf %02000d 0 | tr 0 1); i=0; "
      "while [ $i -lt 150 ]; do echo $o; echo $e >&2; i=$((i+1)); done";
  const std::string command = "exec 2>&1; exec " SLIP_PROGRAM " launch --hosts a,b --ssh " + shell_ +
                              " -n 2 --timeout 80 -- sh -c '" + rank + "'";
  std::FILE* const pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  const std::string zeros(3000, '0'), ones(2000, '1');
  int lines = 0;
  std::array<char, 8192> line;
  while (std::fgets(line.data(), line.size(), pipe)) {
    ++lines;
    const std::string text = line.data();
    const std::size_t tag = std::string("[rank 0 host a] ").size();
    ASSERT_GT(text.size(), tag);
    EXPECT_TRUE(text.starts_with("[rank 0 host a] ") || text.starts_with("[rank 1 host b] ")) << text.substr(0, 40);
    EXPECT_TRUE(text.substr(tag) == zeros + "\n" || text.substr(tag) == ones + "\n") << text.size();
  }
  EXPECT_EQ(::pclose(pipe), 0);
  EXPECT_EQ(lines, 2 * 2 * 150);
}

TEST_F(ClusterLaunch, LongOutputArrivesWhole) {
  Launched job(
      words("a,b", {"-n", "2", "--no-tag-output", "--", "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"}));
  EXPECT_EQ(job.status(), 0) << job.err.all();
  EXPECT_EQ(job.out.all(), std::string(6'000'000, 'x'));
}

TEST_F(ClusterLaunch, TheFirstFailureEndsAllWithItsStatus) {
  HeldFifo held(folder_);
  Launched job(words(
      "a,b,c", {"-n", "6", "--", "sh", "-c", held.hold() + "if [ $SLIP_RANK = 4 ]; then exit 7; fi; exec sleep 600"}));
  EXPECT_EQ(job.status(), 7) << job.err.all();
  EXPECT_TRUE(contains(job.err.all(), "rank 4 on host c failed with status 7; ending the other 5")) << job.err.all();
  EXPECT_TRUE(held.is_free());
}

TEST_F(ClusterLaunch, ARankThatASignalKillsIsNamed) {
  Launched job(words("a,b", {"-n", "2", "--", "sh", "-c", "[ $SLIP_RANK = 1 ] && kill -ABRT $$; exec sleep 600"}));
  EXPECT_EQ(job.status(), 128 + SIGABRT);
  EXPECT_TRUE(contains(job.err.all(), "rank 1 on host b died of signal 6")) << job.err.all();
}

TEST_F(ClusterLaunch, RanksThatIgnoreTheSignalAreKilled) {
  HeldFifo held(folder_);
  Launched job(words(
      "a,b", {"-n", "4", "--grace", "0.1", "--", "sh", "-c",
              "trap '' TERM; " + held.hold() + "if [ $SLIP_RANK = 1 ]; then exit 3; fi; while :; do sleep 600; done"}));
  EXPECT_EQ(job.status(), 3) << job.err.all();
  EXPECT_TRUE(held.is_free());
}

TEST_F(ClusterLaunch, SignalsReachAllRanks) {
  for (const int number : {SIGINT, SIGTERM}) {
    const Folder folder;
    HeldFifo held(folder);
    Launched job(words("a,b,c", {"-n", "6", "--", "sh", "-c", held.hold() + "exec sleep 600"}));
    ASSERT_TRUE(held.held_by(6)) << job.err.all();
    job.signal(number);
    EXPECT_EQ(job.status(), 128 + number) << job.err.all();
    EXPECT_TRUE(held.is_free());
  }
}

TEST_F(ClusterLaunch, ASecondSignalKills) {
  HeldFifo held(folder_);
  Launched job(words("a,b", {"-n", "4", "--grace", "600", "--", "sh", "-c",
                             "trap 'echo caught' INT; " + held.hold() + "while :; do sleep 600; done"}));
  ASSERT_TRUE(held.held_by(4));
  job.signal(SIGINT);
  EXPECT_TRUE(contains(job.out.until("host b] caught"), "caught"));
  job.signal(SIGINT);
  EXPECT_EQ(job.status(), 128 + SIGKILL) << job.err.all();
  EXPECT_TRUE(held.is_free());
}

// Also grandchildren, in a session of their own.
TEST_F(ClusterLaunch, NothingIsLeftWhenTheLauncherIsKilled) {
  HeldFifo held(folder_);
  Launched job(words("a,b", {"-n", "4", "--grace", "0.1", "--", "sh", "-c",
                             held.hold() + "setsid sleep 600 & trap '' TERM; while :; do sleep 600; done"}));
  ASSERT_TRUE(held.held_by(4));
  job.signal(SIGKILL);
  EXPECT_EQ(job.reap(), -SIGKILL);
  EXPECT_TRUE(held.is_free());
}

TEST_F(ClusterLaunch, AKilledAgentEndsTheJob) {
  HeldFifo held(folder_);
  Launched job(words("a,b", {"-n", "4", "--", "sh", "-c", held.hold() + "echo agent $PPID.; exec sleep 600"}));
  ASSERT_TRUE(held.held_by(4));
  const std::string out = job.out.until("[rank 3 host b] agent ");
  const std::size_t at = job.out.until(".\n").find("[rank 3 host b] agent ");
  ASSERT_NE(at, std::string::npos) << out;
  const pid_t agent = std::atoi(job.out.until(".\n").c_str() + at + std::string("[rank 3 host b] agent ").size());
  ASSERT_GT(agent, 1);
  ::kill(agent, SIGKILL);
  EXPECT_EQ(job.status(), 1) << job.err.all();
  EXPECT_TRUE(contains(job.err.all(), "host b with ranks 2 and 3 is lost")) << job.err.all();
  EXPECT_TRUE(held.is_free());
}

TEST_F(ClusterLaunch, TheTimeoutEndsAll) {
  HeldFifo held(folder_);
  Launched job(words("a,b", {"-n", "2", "--timeout", "0.5", "--", "sh", "-c", held.hold() + "exec sleep 600"}));
  EXPECT_EQ(job.status(), 124);
  EXPECT_TRUE(contains(job.err.all(), "ranks 0 and 1 still running after 0.5 s")) << job.err.all();
  EXPECT_TRUE(held.is_free());
}

TEST_F(ClusterLaunch, HostsThatFailAreNamedAndNoRankStarts) {
  const std::string started = folder_.path("started");
  Launched job(words("a,refused,nowhere,b", {"-n", "4", "--", "touch", started}));
  EXPECT_EQ(job.status(), 1);
  EXPECT_TRUE(contains(job.err.all(), "no rank was started, 2 of 4 hosts failed")) << job.err.all();
  EXPECT_TRUE(contains(job.err.all(), "host refused: ")) << job.err.all();
  EXPECT_TRUE(contains(job.err.all(), "it is not my day")) << job.err.all();
  EXPECT_TRUE(contains(job.err.all(), "host nowhere: there is no program 'slip'")) << job.err.all();
  EXPECT_FALSE(std::filesystem::exists(started));
}

TEST_F(ClusterLaunch, HostsThatDoNotAnswerAreGivenUp) {
  for (const char* host : {"silent", "garbage"}) {
    Launched job(words(std::string("a,") + host, {"-n", "2", "--start-timeout", "1", "--", "true"}));
    EXPECT_EQ(job.status(), 1);
    // Host a has answered, so the error does not name it.
    EXPECT_TRUE(
        contains(job.err.all(), std::string("no rank was started: host ") + host + ": it has not answered within 1 s"))
        << job.err.all();
    EXPECT_FALSE(contains(job.err.all(), "host a")) << job.err.all();
  }
}

// A shell that has closed its output is killed after a second, not with the next heartbeat.
TEST_F(ClusterLaunch, AShellThatDoesNotExitIsKilled) {
  Launched job(words("lingering", {"-n", "1", "--start-timeout", "10", "--", "true"}));
  EXPECT_EQ(job.status(), 1);
  EXPECT_TRUE(contains(job.err.all(), "host lingering: " + shell_ + " ended with status 137")) << job.err.all();
}

// Host a waits for the slow one longer than its limit for a silent launcher.
TEST_F(ClusterLaunch, AHostWaitsForASlowOne) {
  Launched job(words("a,slow", {"-n", "2", "--host-timeout", "2", "--no-tag-output", "--", "echo", "hello"}));
  EXPECT_EQ(job.status(), 0) << job.err.all();
  EXPECT_EQ(job.out.all(), "hello\nhello\n");
  EXPECT_EQ(job.err.all(), "");
}

TEST_F(ClusterLaunch, SlipIsAlsoFoundInThePathOfTheHost) {
  Launched job(words("elsewhere", {"-n", "1", "--", "echo", "hello"}));
  EXPECT_EQ(job.status(), 0) << job.err.all();
  EXPECT_EQ(job.out.all(), "[rank 0 host elsewhere] hello\n");
}

TEST_F(ClusterLaunch, ASignalDuringTheStartEndsIt) {
  HeldFifo held(folder_);
  make_shell(held.hold() + "exec sleep 600\n");
  Launched job(words("a", {"-n", "1", "--start-timeout", "600", "--", "true"}));
  ASSERT_TRUE(held.held_by(1)) << job.err.all();
  job.signal(SIGINT);
  EXPECT_EQ(job.status(), 128 + SIGINT);
  EXPECT_TRUE(held.is_free());
}

TEST_F(ClusterLaunch, SaysWhatItCannotRun) {
  Launched missing(words("a,b", {"-n", "2", "--", "/no/such/program"}));
  EXPECT_EQ(missing.status(), 127);
  EXPECT_TRUE(contains(missing.err.all(), "cannot run '/no/such/program'")) << missing.err.all();
  EXPECT_TRUE(contains(missing.err.all(), "on host ")) << missing.err.all();
  Launched folder(words("a,b", {"-n", "2", "--workdir", "/no/such/folder", "--", "true"}));
  EXPECT_EQ(folder.status(), 1);
  EXPECT_TRUE(contains(folder.err.all(), "there is no folder '/no/such/folder'")) << folder.err.all();
  Launched shell({"launch", "--hosts", "a", "--ssh", "/no/such/shell", "-n", "1", "--", "true"});
  EXPECT_EQ(shell.status(), 1);
  EXPECT_TRUE(contains(shell.err.all(), "host a: cannot run '/no/such/shell'")) << shell.err.all();
}

TEST_F(ClusterLaunch, VariablesAndTheDirectoryArePassed) {
  const std::map<std::string, std::string> variables{
      {"SLIP_ALGORITHM", "ring"}, {"NCCL_DEBUG", "WARN"}, {"MINE", "a b"},
      {"SLIP_RANK", "77"},        {"SLIP_SSH", shell_},   {"PLAIN", "x"}};
  // The shell gives its commands no variable of the launcher.
  make_shell("host=$1; shift; exec env -i PATH=/usr/bin:/bin \"$@\"\n");
  const char* print = "echo $SLIP_ALGORITHM $NCCL_DEBUG $MINE $OTHER $SLIP_RANK $SLIP_SSH. $PLAIN.; pwd";
  Launched job({"launch", "--hosts", "a", "-n", "1", "--workdir", folder_.path(), "-x", "MINE", "-x", "OTHER=c d", "--",
                "sh", "-c", print},
               variables);
  EXPECT_EQ(job.status(), 0) << job.err.all();
  EXPECT_EQ(job.out.all(), "[rank 0 host a] ring WARN a b c d 0 . .\n[rank 0 host a] " + folder_.path() + "\n");
}

// The commands of the shell begin in another folder than the launcher, as those of a login do.
TEST_F(ClusterLaunch, ARelativeDirectoryBeginsAtTheLauncher) {
  make_shell("host=$1; shift; cd /; exec \"$@\"\n");
  const std::string relative = std::filesystem::relative(folder_.path()).string();
  Launched job(words("localhost,b", {"-n", "2", "--workdir", relative, "--no-tag-output", "--", "pwd", "-P"}));
  EXPECT_EQ(job.status(), 0) << job.err.all();
  const std::string folder = std::filesystem::canonical(folder_.path()).string();
  EXPECT_EQ(job.out.all(), folder + "\n" + folder + "\n");
}

TEST_F(ClusterLaunch, SlipIsInThePathOfTheRanks) {
  make_shell("host=$1; shift; exec env -i PATH=/usr/bin:/bin \"$@\"\n");
  Launched job(words("a", {"-n", "1", "--", "slip", "--version"}));
  EXPECT_EQ(job.status(), 0) << job.err.all();
  EXPECT_TRUE(contains(job.out.all(), "[rank 0 host a] slip ")) << job.out.all();
}

// An empty entry would be the current directory of the ranks.
TEST_F(ClusterLaunch, AnEmptyPathGetsNoEmptyEntry) {
  make_shell("host=$1; shift; exec env -i \"$@\"\n");
  Launched job(words("a", {"-n", "1", "--no-tag-output", "--", "/bin/sh", "-c", "echo $PATH"}));
  EXPECT_EQ(job.status(), 0) << job.err.all();
  EXPECT_EQ(job.out.all(), std::filesystem::canonical(SLIP_PROGRAM).parent_path().string() + "\n");
}

TEST_F(ClusterLaunch, TheSecretIsOnNoCommandLine) {
  HeldFifo held(folder_);
  const std::string file = folder_.path("id");
  Launched job(words("a,b", {"-n", "2", "--", "sh", "-c",
                             "[ $SLIP_RANK = 0 ] && echo $SLIP_ID >" + file + "; " + held.hold() + "exec sleep 600"}));
  ASSERT_TRUE(held.held_by(2)) << job.err.all();
  std::string id;
  std::getline(std::ifstream(file), id);
  const std::size_t slash = id.find('/');
  ASSERT_NE(slash, std::string::npos) << id;
  const std::string secret = id.substr(slash + 1, 32);
  int read = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream line(entry.path() / "cmdline");
    const std::string text(std::istreambuf_iterator<char>(line), {});
    read += text.empty() ? 0 : 1;
    EXPECT_FALSE(contains(text, secret)) << text;
  }
  EXPECT_GT(read, 1);
  job.signal(SIGTERM);
  EXPECT_EQ(job.status(), 128 + SIGTERM);
}

// The reader of the output has stopped reading. The launcher still handles the signal.
TEST_F(ClusterLaunch, ABlockedOutputDoesNotBlockSignals) {
  HeldFifo held(folder_);
  Launched job(words("a,b", {"-n", "2", "--", "sh", "-c", held.hold() + "exec cat /dev/zero"}));
  ASSERT_TRUE(held.held_by(2));
  job.out.bytes(1);  // the output flows; nobody reads on
  job.signal(SIGINT);
  EXPECT_TRUE(held.is_free());
  job.signal(SIGINT);  // also gives up the output that nobody reads
  job.out.all();
  EXPECT_EQ(job.reap(), 128 + SIGINT);
}

// The launcher was started without a standard input and output.
TEST_F(ClusterLaunch, ClosedStandardDescriptorsAreNotUsed) {
  const std::string command = "timeout 60 " SLIP_PROGRAM " launch --hosts a,b --ssh " + shell_ +
                              " -n 2 -- sh -c 'echo hello >&2; echo out' <&- >&- 2>" + folder_.path("err");
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::ifstream file(folder_.path("err"));
  const std::string err(std::istreambuf_iterator<char>(file), {});
  EXPECT_TRUE(contains(err, "[rank 0 host a] hello\n") && contains(err, "[rank 1 host b] hello\n")) << err;
}

TEST_F(ClusterLaunch, HostfilesWork) {
  const std::string file = folder_.write("hosts", "# two hosts\na slots=2\nb:1\n");
  Launched job({"launch", "--hostfile", file, "--ssh", shell_, "--", "sh", "-c", "echo $SLIP_NRANKS"});
  EXPECT_EQ(job.status(), 0) << job.err.all();
  for (const char* line : {"[rank 0 host a] 3\n", "[rank 1 host a] 3\n", "[rank 2 host b] 3\n"})
    EXPECT_TRUE(contains(job.out.all(), line)) << job.out.all();
}

TEST_F(ClusterLaunch, BadCommandLinesAreRefused) {
  const struct {
    Words words;
    const char* expected;
  } cases[] = {
      {{"launch", "--hosts", "a:2,b:2", "-n", "5", "--", "true"}, "5 ranks do not fit in the 4 slots"},
      {{"launch", "--hosts", "-oProxyCommand=x", "-n", "1", "--", "true"}, "begins with '-'"},
      {{"launch", "--hosts", "", "-n", "1", "--", "true"}, "--hosts: is empty"},
      {{"launch", "--hostfile", "", "-n", "1", "--", "true"}, "--hostfile: is empty"},
      {{"launch", "--hostfile", "/no/such/file", "-n", "1", "--", "true"}, "cannot be read"},
      {{"launch", "--hostfile", "/", "-n", "1", "--", "true"}, "--hostfile /: the file cannot be read"},
      {{"launch", "--", "true"}, "-n"},
      {{"launch", "--hosts", "a", "-x", "NOT_SET_ANYWHERE", "--", "true"}, "NOT_SET_ANYWHERE is not set here"},
      {{"launch", "--hosts", "a", "--ssh", "ssh 'x", "--", "true"}, "is not closed"},
  };
  for (const auto& one : cases) {
    Launched job(one.words);
    EXPECT_NE(job.status(), 0);
    EXPECT_TRUE(contains(job.err.all(), one.expected)) << job.err.all();
  }
}

// The own host needs no shell, and a host that is listed twice has one agent.
TEST_F(ClusterLaunch, TheOwnHostNeedsNoShell) {
  Launched job({"launch", "--hosts", "localhost,localhost", "--ssh", "/no/such/shell", "-n", "2", "--timeout", "80",
                "--no-tag-output", "--", own_path(), child_argument("ClusterLaunch.Rank")});
  EXPECT_EQ(job.status(), 0) << job.err.all();
  EXPECT_TRUE(contains(job.out.all(), "<1 of 2, local 1>")) << job.out.all();
}

// The agent refuses what is not a launcher, and ends.
TEST_F(ClusterLaunch, AnAgentWithoutALauncherEnds) {
  const std::string text = "agent </dev/null";
  const std::string command = std::string(SLIP_PROGRAM) + " " + text + " >/dev/null 2>&1";
  EXPECT_NE(std::system(command.c_str()), 0);
}

}  // namespace
}  // namespace slip::test::test_cluster_launch
