// `slip launch --hosts` over real ssh: an sshd in each of several network namespaces.
#include <cstdio>

#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "transport/ssh_hosts.hpp"

namespace slip::test::test_clusters {
namespace {

using std::chrono::seconds;

// One rank: it meets the others over the network, and prints its numbers.
SLIP_CHILD(Clusters, Rank) {
  const std::optional<transport::LaunchInfo> info = transport::launch_info();
  ASSERT_TRUE(info);
  transport::Bootstrap bootstrap(info->id, info->nranks, info->rank, within(seconds(60)));
  const std::vector<int> ranks = bootstrap.all_gather(info->rank);
  for (std::size_t i = 0; i < ranks.size(); ++i) EXPECT_EQ(ranks[i], static_cast<int>(i));
  std::set<std::uint64_t> hosts;
  for (const transport::Placement& placement : bootstrap.placements()) hosts.insert(placement.net_space);
  std::printf("<%d of %d, local %d, %zu hosts>\n", info->rank, info->nranks, info->local_rank, hosts.size());
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<std::string> rank_program(std::vector<std::string> options) {
  for (const std::string& word : {std::string("--"), own_path(), child_argument("Clusters.Rank")})
    options.push_back(word);
  return options;
}

// From a host without ranks, and from one of the hosts itself.
TEST(Clusters, RanksOfThreeHostsMeet) {
  SshHosts hosts(4);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  const std::string list = hosts.address(0) + "," + hosts.address(1) + ":2," + hosts.address(2);
  for (const int from : {3, 0, 2}) {
    SCOPED_TRACE(from);
    const auto job = hosts.launch(from, list, rank_program({"-n", "6", "--timeout", "80"}));
    EXPECT_EQ(job->status(), 0) << job->err.all();
    for (int rank = 0; rank < 6; ++rank) {
      const std::string line = "[rank " + std::to_string(rank) + " host " + hosts.address(rank / 2) + "] <" +
                               std::to_string(rank) + " of 6, local " + std::to_string(rank % 2) + ", 3 hosts>\n";
      EXPECT_TRUE(contains(job->out.all(), line)) << line << job->out.all();
    }
  }
}

TEST(Clusters, AllReduceOverThreeHosts) {
  SshHosts hosts(3);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  const std::string list = hosts.address(0) + "," + hosts.address(1) + "," + hosts.address(2);
  const auto job = hosts.launch(0, list,
                                {"-n", "6", "--no-tag-output", "--timeout", "80", "--", "slip", "bench", "all_reduce",
                                 "-b", "8", "-e", "64K", "-f", "64", "--iters", "2"});
  EXPECT_EQ(job->status(), 0) << job->err.all();
  EXPECT_TRUE(contains(job->out.all(), "# all_reduce of 6 ranks")) << job->out.all();
  EXPECT_TRUE(contains(job->out.all(), "# wrong elements: 0")) << job->out.all();
}

TEST(Clusters, Ipv6) {
  SshHosts hosts(2, {.family = Family::kIpv6});
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  const auto job =
      hosts.launch(0, hosts.address(1) + ",[" + hosts.address(0) + "]:2", rank_program({"-n", "4", "--timeout", "80"}));
  EXPECT_EQ(job->status(), 0) << job->err.all();
  EXPECT_TRUE(contains(job->out.all(), "[rank 3 host fd77::1] <3 of 4, local 1, 2 hosts>")) << job->out.all();
}

TEST(Clusters, TheInterfaceRuleChoosesTheAddress) {
  SshHosts hosts(2);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  // A second address on the first host, which the rule names.
  hosts.hosts().within(0, [] {
    ASSERT_EQ(std::system("ip link add extra0 type veth peer name extra1 && ip addr add 10.88.0.1/32 dev extra0 && "
                          "ip link set extra1 up && ip link set extra0 up"),
              0);
  });
  const std::string list = hosts.address(0) + "," + hosts.address(1);
  const std::vector<std::string> print{"-n", "2", "--", "sh", "-c", "echo $SLIP_ID"};
  const auto plain = hosts.launch(1, list, print);
  EXPECT_EQ(plain->status(), 0) << plain->err.all();
  EXPECT_TRUE(contains(plain->out.all(), "] " + hosts.address(0) + ":")) << plain->out.all();
  const auto extra = hosts.launch(1, list, print, {{"SLIP_SOCKET_IFNAME", "=extra0"}});
  EXPECT_EQ(extra->status(), 0) << extra->err.all();
  EXPECT_TRUE(contains(extra->out.all(), "] 10.88.0.1:")) << extra->out.all();
  const auto none = hosts.launch(1, list, print, {{"SLIP_SOCKET_IFNAME", "=none"}});
  EXPECT_EQ(none->status(), 1);
  EXPECT_TRUE(contains(none->err.all(), "host " + hosts.address(0) + ": ")) << none->err.all();
}

// The address of rank 0 is the name of its host, as with srun and torchrun. On that host, /etc/hosts gives the name a
// loopback address, as Debian does.
TEST(Clusters, AHostMayKnowItsOwnNameAsLoopback) {
  SshHosts hosts(2);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  const std::string file = hosts.folder().path("names") + "$SLIP_RANK";
  const std::string program = "address=127.0.1.1; [ $SLIP_RANK = 2 ] && address=" + hosts.address(0) +
                              "; echo $address node-a >" + file + "; mount --bind " + file +
                              " /etc/hosts && exec \"$@\"";
  const auto job =
      hosts.launch(1, hosts.address(0) + ":2," + hosts.address(1),
                   rank_program({"-n", "3", "--timeout", "80", "-x", "SLIP_ID=node-a:29500", "-x",
                                 "SLIP_SECRET=0123456789abcdef", "--", "unshare", "-m", "sh", "-c", program}));
  EXPECT_EQ(job->status(), 0) << job->err.all();
  EXPECT_TRUE(contains(job->out.all(), "<2 of 3, local 0, 2 hosts>")) << job->out.all();
}

// In Kubernetes, the name of the pod of rank 0 is known when that pod has started.
TEST(Clusters, TheNameOfRank0MayBecomeKnownLater) {
  SshHosts hosts(2);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  const std::string file = hosts.folder().path("names") + "$SLIP_RANK";
  const std::string program = ": >" + file + "; ( [ $SLIP_RANK = 1 ] && sleep 1; echo " + hosts.address(0) +
                              " node-a >" + file + " ) & mount --bind " + file + " /etc/hosts && exec \"$@\"";
  const auto job =
      hosts.launch(1, hosts.address(0) + "," + hosts.address(1),
                   rank_program({"-n", "2", "--timeout", "80", "-x", "SLIP_ID=node-a:29500", "-x",
                                 "SLIP_SECRET=0123456789abcdef", "--", "unshare", "-m", "sh", "-c", program}));
  EXPECT_EQ(job->status(), 0) << job->err.all();
  EXPECT_TRUE(contains(job->out.all(), "<1 of 2, local 0, 2 hosts>")) << job->out.all();
}

std::vector<std::string> small_bench(std::vector<std::string> options) {
  for (const char* word : {"--", "slip", "bench", "all_reduce", "-b", "64K", "-e", "64K", "--iters", "2"})
    options.push_back(word);
  return options;
}

TEST(Clusters, AFirewallNeedsToOpenNoMoreThanThePorts) {
  SshHosts hosts(2);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  hosts.hosts().allow_ports(41000, 41031);
  const std::string list = hosts.address(0) + "," + hosts.address(1);
  const auto job = hosts.launch(1, list, small_bench({"-n", "4", "--timeout", "80"}), {{"SLIP_PORTS", "41000-41031"}});
  EXPECT_EQ(job->status(), 0) << job->err.all();
  EXPECT_TRUE(contains(job->out.all(), "# wrong elements: 0")) << job->out.all();
  EXPECT_EQ(hosts.hosts().refused_connections(), 0);
  // Other ports: the firewall does refuse.
  const auto others = hosts.launch(1, list, small_bench({"-n", "4", "--timeout", "4", "--grace", "0.1"}),
                                   {{"SLIP_PORTS", "42000-42031"}});
  EXPECT_NE(others->status(), 0);
  EXPECT_GT(hosts.hosts().refused_connections(), 0);
}

TEST(Clusters, PortsThatAreAllInUseAreAnErrorThatNamesThem) {
  SshHosts hosts(2);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  const std::string list = hosts.address(0) + "," + hosts.address(1);
  const auto job = hosts.launch(0, list, small_bench({"-n", "4", "--timeout", "80"}), {{"SLIP_PORTS", "41000-41001"}});
  EXPECT_NE(job->status(), 0);
  EXPECT_TRUE(contains(job->err.all(), "all ports of SLIP_PORTS=41000-41001 are in use: give a larger range"))
      << job->err.all();
  const auto wrong = hosts.launch(0, list, small_bench({"-n", "2"}), {{"SLIP_PORTS", "41000-40000"}});
  EXPECT_EQ(wrong->status(), 1);
  EXPECT_TRUE(contains(wrong->err.all(), "SLIP_PORTS=41000-40000: must be LOW-HIGH")) << wrong->err.all();
}

TEST(Clusters, TheFirstFailureEndsAll) {
  SshHosts hosts(3);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  HeldFifo held(hosts.folder());
  const std::string list = hosts.address(0) + "," + hosts.address(1) + "," + hosts.address(2);
  const auto job = hosts.launch(
      0, list, {"-n", "6", "--", "sh", "-c", held.hold() + "if [ $SLIP_RANK = 5 ]; then exit 7; fi; exec sleep 600"});
  EXPECT_EQ(job->status(), 7) << job->err.all();
  EXPECT_TRUE(contains(job->err.all(), "rank 5 on host " + hosts.address(2) + " failed with status 7"))
      << job->err.all();
  EXPECT_TRUE(held.is_free());
}

TEST(Clusters, CtrlCReachesAllAndNothingIsLeft) {
  SshHosts hosts(3);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  HeldFifo held(hosts.folder());
  const std::string list = hosts.address(0) + "," + hosts.address(1) + "," + hosts.address(2);
  const auto job = hosts.launch(
      0, list,
      {"-n", "6", "--", "sh", "-c", "trap 'echo interrupted; exit 9' INT; " + held.hold() + "sleep 600 & wait"});
  ASSERT_TRUE(held.held_by(6)) << job->err.all();
  job->signal(SIGINT);
  EXPECT_EQ(job->status(), 9) << job->err.all();
  for (int host = 0; host < 3; ++host)
    EXPECT_TRUE(contains(job->out.all(), "host " + hosts.address(host) + "] interrupted")) << job->out.all();
  EXPECT_TRUE(held.is_free());
}

TEST(Clusters, NothingIsLeftWhenTheLauncherIsKilled) {
  SshHosts hosts(3);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  HeldFifo held(hosts.folder());
  const std::string list = hosts.address(0) + "," + hosts.address(1) + "," + hosts.address(2);
  const auto job = hosts.launch(0, list,
                                {"-n", "6", "--grace", "0.2", "--", "sh", "-c",
                                 "trap '' TERM; " + held.hold() + "setsid sleep 600 & while :; do sleep 600; done"});
  ASSERT_TRUE(held.held_by(6)) << job->err.all();
  job->signal(SIGKILL);
  EXPECT_EQ(job->reap(), -SIGKILL);
  EXPECT_TRUE(held.is_free());
}

// No packet goes through any more, and no connection closes: both sides must notice by the silence.
TEST(Clusters, AHostThatIsCutOffIsGivenUpByBothSides) {
  SshHosts hosts(3);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  HeldFifo held(hosts.folder());
  const std::string list = hosts.address(0) + "," + hosts.address(1) + "," + hosts.address(2);
  const auto job =
      hosts.launch(0, list, {"-n", "3", "--host-timeout", "10", "--", "sh", "-c", held.hold() + "exec sleep 600"});
  ASSERT_TRUE(held.held_by(3)) << job->err.all();
  hosts.hosts().cut(2);
  EXPECT_EQ(job->status(), 1);
  EXPECT_TRUE(contains(job->err.all(), "host " + hosts.address(2) + " with rank 2 is lost: it gives no sign of life"))
      << job->err.all();
  EXPECT_TRUE(held.is_free());  // also on the host that nothing reaches
}

// The agent and the ranks of a host are stopped, as if the host hangs. The launcher gives the host up. When the host
// goes on, nothing of the job is left there.
TEST(Clusters, AHostThatHangsIsGivenUp) {
  SshHosts hosts(2);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  HeldFifo held(hosts.folder());
  const auto job = hosts.launch(0, hosts.address(0) + "," + hosts.address(1),
                                {"-n", "2", "--host-timeout", "10", "--", "sh", "-c",
                                 "echo processes $PPID $$ of rank $SLIP_RANK.; " + held.hold() + "exec sleep 600"});
  ASSERT_TRUE(held.held_by(2)) << job->err.all();
  const std::string prefix = "[rank 1 host " + hosts.address(1) + "] processes ";
  const std::string out = job->out.until(" of rank 1.");
  const std::size_t at = out.find(prefix);
  ASSERT_NE(at, std::string::npos) << out;
  int agent = 0, rank = 0;
  ASSERT_EQ(std::sscanf(out.c_str() + at + prefix.size(), "%d %d", &agent, &rank), 2) << out;
  ::kill(rank, SIGSTOP);
  ::kill(agent, SIGSTOP);
  EXPECT_EQ(job->status(), 1);
  EXPECT_TRUE(contains(job->err.all(), "host " + hosts.address(1) + " with rank 1 is lost: it gives no sign of life"))
      << job->err.all();
  ::kill(agent, SIGCONT);
  EXPECT_TRUE(held.is_free());
}

TEST(Clusters, HostsThatCannotBeUsedAreNamed) {
  SshHosts hosts(4, {.unknown = {1}, .without = {2}});
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  hosts.hosts().cut(3);
  const struct {
    int host;
    const char* expected;
  } cases[] = {
      {1, "its host key is not known here"}, {2, "nothing listens at its ssh port"}, {3, "it does not answer"}};
  for (const auto& one : cases) {
    const auto job = hosts.launch(0, hosts.address(0) + "," + hosts.address(one.host),
                                  {"-n", "2", "--start-timeout", "4", "--", "true"});
    EXPECT_EQ(job->status(), 1);
    EXPECT_TRUE(contains(job->err.all(), "host " + hosts.address(one.host) + ": ")) << job->err.all();
    EXPECT_TRUE(contains(job->err.all(), one.expected)) << job->err.all();
  }
}

TEST(Clusters, AHostThatWantsAPasswordIsNamed) {
  SshHosts hosts(2);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  std::filesystem::remove(hosts.folder().path("user_key"));
  const auto job = hosts.launch(0, hosts.address(1), {"-n", "1", "--", "true"});
  EXPECT_EQ(job->status(), 1);
  EXPECT_TRUE(contains(job->err.all(), "host " + hosts.address(1) + ": it accepts no login without a password"))
      << job->err.all();
}

TEST(Clusters, AHostWithoutSlipIsNamed) {
  SshHosts hosts(2);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  const auto job = hosts.launch(0, hosts.address(1), {"-n", "1", "--slip", "/no/such/slip", "--", "true"});
  EXPECT_EQ(job->status(), 1);
  EXPECT_TRUE(contains(job->err.all(), "host " + hosts.address(1) + ": there is no program '/no/such/slip'"))
      << job->err.all();
}

TEST(Clusters, SixtyFourRanksOnEightHosts) {
  SshHosts hosts(8);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  std::string list = hosts.address(0);
  for (int host = 1; host < 8; ++host) list += "," + hosts.address(host);
  const auto job = hosts.launch(0, list, rank_program({"-n", "64", "--timeout", "80", "--start-timeout", "60"}));
  EXPECT_EQ(job->status(), 0) << job->err.all();
  for (int rank = 0; rank < 64; ++rank) {
    const std::string line =
        "] <" + std::to_string(rank) + " of 64, local " + std::to_string(rank % 8) + ", 8 hosts>\n";
    EXPECT_TRUE(contains(job->out.all(), line)) << line;
  }
}

}  // namespace
}  // namespace slip::test::test_clusters
