// Ranks of hosts with several network interfaces (rails): which interfaces carry the traffic, what happens if one is
// missing, cut or goes down, and that two are faster than one. The hosts are network namespaces.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <regex>

#include "base/clock.hpp"
#include "comm/link/link_rails.hpp"
#include "job.hpp"
#include "slip/communicator.hpp"
#include "sums.hpp"
#include "support/rail_hosts.hpp"

namespace slip::test_rails {
namespace {

using std::chrono::milliseconds;
using test::Adder;
using test::Job;
using test::kLine;
using test::RailHosts;
using Variables = std::map<std::string, std::string>;

constexpr std::size_t kWords = 1 << 20;  // 4 MiB
constexpr int kCalls = 4;

CommunicatorOptions long_silence() {
  CommunicatorOptions options;
  options.silence = std::chrono::seconds(30);
  return options;
}

// A part of a test in which each rank makes `calls` equal calls.
void play_calls(const std::function<void(Communicator&, const Adder&)>& call, int calls = kCalls) {
  test::play([&](const transport::LaunchInfo& info) -> std::string {
    const Adder adder;
    Communicator comm = Communicator::init(info.id, info.nranks, info.rank, adder.device(), long_silence());
    for (int i = 0; i < calls; ++i) call(comm, adder);
    adder.stream().sync();
    comm.finalize();
    return "fine";
  });
}

SLIP_CHILD(Rails, AllReduce) {
  play_calls([](Communicator& comm, const Adder& adder) {
    const std::string wrong = adder.wrong_sum(comm, kWords);
    if (!wrong.empty()) throw std::runtime_error(wrong);
  });
}
SLIP_CHILD(Rails, AllToAll) {
  play_calls([](Communicator& comm, const Adder& adder) {
    const Buffer from = adder.device().alloc(kWords * 4, MemoryKind::kPinned);
    const Buffer to = adder.device().alloc(kWords * 4, MemoryKind::kPinned);
    comm.all_to_all(to, from, adder.stream());
    adder.stream().sync();
  });
}
SLIP_CHILD(Rails, Messages) {
  play_calls([](Communicator& comm, const Adder& adder) {
    const Buffer from = adder.device().alloc(kWords * 4, MemoryKind::kPinned);
    const Buffer to = adder.device().alloc(kWords * 4, MemoryKind::kPinned);
    const int n = comm.nranks();
    Group group;
    comm.send(from, (comm.rank() + 1) % n, adder.stream());
    comm.recv(to, (comm.rank() + n - 1) % n, adder.stream());
    group.end();
    adder.stream().sync();
  });
}
SLIP_CHILD(Rails, SmallAllReduce) {
  play_calls(
      [](Communicator& comm, const Adder& adder) {
        const std::string wrong = adder.wrong_sum(comm, 1000);
        if (!wrong.empty()) throw std::runtime_error(wrong);
      },
      200);
}

struct Traffic {
  std::vector<double> mebibytes;  // of host 0, by rail
};

Traffic traffic_of(const RailHosts& hosts, int count, int each, const std::string& part, const Variables& variables) {
  Job job(hosts, count, each, part, variables);
  for (int rank = 0; rank < job.size(); ++rank) EXPECT_EQ(job[rank].report(), "fine") << "rank " << rank;
  Traffic result;
  for (int rail = 0; rail < 2; ++rail)
    result.mebibytes.push_back(static_cast<double>(hosts.sent_bytes(0, rail)) / (1 << 20));
  return result;
}

constexpr double kSent = kCalls * 4.0;  // MiB that a rank sends in an all_reduce of two ranks, or in messages

// Calls of one channel are striped, calls of two channels have a rail for each.
TEST(Rails, ShareTheTraffic) {
  struct Case {
    const char* part;
    double mebibytes;
    Variables variables;
  };
  const Case cases[] = {
      {"Rails.AllReduce", kSent, {}},
      {"Rails.AllReduce", kSent, {{"SLIP_ALGORITHM", "ring"}, {"SLIP_MIN_CHANNELS", "2"}}},
      {"Rails.AllReduce", kSent, {{"SLIP_ALGORITHM", "tree"}, {"SLIP_MIN_CHANNELS", "3"}}},
      {"Rails.AllToAll", kSent / 2, {}},
      {"Rails.Messages", kSent, {}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.part + std::string(one.variables.empty() ? "" : ", several channels"));
    const RailHosts hosts(2, {});
    if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
    Variables variables = one.variables;
    variables["SLIP_SOCKET_IFNAME"] = "rail";
    const Traffic traffic = traffic_of(hosts, 2, 1, one.part, variables);
    const double sum = traffic.mebibytes[0] + traffic.mebibytes[1];
    EXPECT_GT(sum, one.mebibytes);
    EXPECT_GT(traffic.mebibytes[0], 0.4 * sum);
    EXPECT_GT(traffic.mebibytes[1], 0.4 * sum);
  }
}

TEST(Rails, WorkBetweenThreeHostsOfTwoRanks) {
  const RailHosts hosts(3, {});
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  for (const Variables& variables :
       {Variables{}, Variables{{"SLIP_ALGORITHM", "ring"}, {"SLIP_MIN_CHANNELS", "4"}, {"SLIP_SOCKETS", "2"}}}) {
    Variables all = variables;
    all["SLIP_SOCKET_IFNAME"] = "=rail0,rail1";
    Job job(hosts, 3, 2, "Hosts.EveryCall", all);
    for (int rank = 0; rank < job.size(); ++rank) EXPECT_EQ(job[rank].report(), "fine") << "rank " << rank;
  }
  EXPECT_GT(hosts.sent_bytes(1, 1), 1U << 20);
}

// The kernel would send everything through the first interface if sockets, also accepted ones, were not bound to
// theirs.
TEST(Rails, OfOneSubnetShareTheTraffic) {
  const RailHosts hosts(2, {.one_subnet = true});
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  const Traffic traffic = traffic_of(hosts, 2, 1, "Rails.AllReduce", {{"SLIP_SOCKET_IFNAME", "rail"}});
  EXPECT_GT(traffic.mebibytes[0], 0.4 * kSent);
  EXPECT_GT(traffic.mebibytes[1], 0.4 * kSent);
}

TEST(Rails, OnlyThoseThatTheRuleAccepts) {
  for (const char* const rule : {"=rail0", ""}) {  // without a rule: veth interfaces are not on a bus
    const RailHosts hosts(2, {});
    if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
    const Traffic traffic = traffic_of(hosts, 2, 1, "Rails.AllReduce", {{"SLIP_SOCKET_IFNAME", rule}});
    EXPECT_GT(traffic.mebibytes[0], kSent);
    EXPECT_LT(traffic.mebibytes[1], 0.1);
  }
}

// Both ranks send small messages to each other over the same rail, the second one.
TEST(Rails, SmallMessagesUseOne) {
  const RailHosts hosts(2, {});
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  const Traffic traffic = traffic_of(hosts, 2, 1, "Rails.SmallAllReduce", {{"SLIP_SOCKET_IFNAME", "rail"}});
  EXPECT_GT(traffic.mebibytes[1], 200 * 4000.0 / (1 << 20));
  EXPECT_LT(traffic.mebibytes[0], 0.5 * traffic.mebibytes[1] + 2);  // bootstrap, and the measurement of the rate
}

TEST(Rails, OneThatAHostDoesNotHaveIsLeftOut) {
  const RailHosts hosts(2, {});
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  hosts.take_down(1, 1);
  const Traffic traffic = traffic_of(hosts, 2, 1, "Rails.AllReduce", {{"SLIP_SOCKET_IFNAME", "rail"}});
  EXPECT_GT(traffic.mebibytes[0], kSent);
  EXPECT_LT(traffic.mebibytes[1], 0.1);
}

// Standard error of this process, until the object ends.
class CapturedLog {
 public:
  CapturedLog() : file_(::memfd_create("log", MFD_CLOEXEC)), before_(::dup(STDERR_FILENO)) {
    ::dup2(file_, STDERR_FILENO);
  }
  ~CapturedLog() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
    ::close(file_);
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;
  std::string text() const {
    std::string result(static_cast<std::size_t>(::lseek(file_, 0, SEEK_END)), ' ');
    static_cast<void>(!::pread(file_, result.data(), result.size(), 0));
    return result;
  }

 private:
  const int file_, before_;
};

// What the rank logs.
SLIP_CHILD(Rails, Log) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    const CapturedLog log;
    const Adder adder;
    Communicator comm = Communicator::init(info.id, info.nranks, info.rank, adder.device(), long_silence());
    std::string wrong = adder.wrong_sum(comm, kWords);
    comm.finalize();
    return wrong.empty() ? log.text() : wrong;
  });
}

std::vector<std::string> logs_of(const RailHosts& hosts, const Variables& variables) {
  Job job(hosts, 2, 1, "Rails.Log", variables);
  return {job[0].report(), job[1].report()};
}

bool has(const std::string& text, const char* pattern) { return std::regex_search(text, std::regex(pattern)); }

TEST(Rails, ARailThatIsCutBeforeInitIsLeftOut) {
  const RailHosts hosts(2, {});
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  hosts.cut(1, 1);
  const std::vector<std::string> logs = logs_of(hosts, {{"SLIP_SOCKET_IFNAME", "rail"}, {"SLIP_DEBUG", "net"}});
  EXPECT_TRUE(has(
      logs[0], R"(rank 0 does not use rail1 \(10\.88\.1\.1\) to 10\.88\.1\.2 to rank 1: (cannot connect|connecting))"))
      << logs[0];
  EXPECT_TRUE(has(
      logs[1], R"(rank 1 does not use rail1 \(10\.88\.1\.2\) to 10\.88\.1\.1 to rank 0: (cannot connect|connecting))"))
      << logs[1];
}

TEST(Rails, TheLogNamesThem) {
  const RailHosts hosts(2, {});
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  const std::vector<std::string> logs =
      logs_of(hosts, {{"SLIP_SOCKET_IFNAME", "rail"}, {"SLIP_DEBUG", "net"}, {"SLIP_MIN_CHANNELS", "2"}});
  EXPECT_TRUE(has(logs[0], R"(2 rails; rank 0 has rail0 \(10\.88\.0\.1\), rail1 \(10\.88\.1\.1\))")) << logs[0];
  EXPECT_TRUE(has(logs[0], R"(channel 0: rail0\n +channel 1: rail1\n)")) << logs[0];
  EXPECT_TRUE(has(logs[0], R"(to rank 1, channel 0: rail1 \(10\.88\.1\.1\) to 10\.88\.1\.2, rail0)")) << logs[0];
}

std::string topology_with(const std::string& first, const std::string& second) {
  return fmt::format(R"(<system version="1"><cpu numaid="0">)"
                     R"(<pci busid="0000:10:00.0" class="0x020000"><nic>)"
                     R"(<net name="{}" dev="0" speed="10000" gdr="0"/></nic></pci>)"
                     R"(<pci busid="0000:20:00.0" class="0x020000"><nic>)"
                     R"(<net name="{}" dev="1" speed="10000" gdr="0"/></nic></pci></cpu></system>)",
                     first, second);
}

// The topology names the interfaces, and gives one to each channel. No rule is needed.
TEST(Rails, ComeFromTheTopology) {
  const RailHosts hosts(2, {.rails = 3});
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  const std::string file = testing::TempDir() + fmt::format("slip-rails-{}.xml", ::getpid());
  std::ofstream(file) << topology_with("rail2", "rail1");
  const Variables variables{{"SLIP_TOPO_FILE", file},
                            {"SLIP_TOPO_DEVICE", "0"},
                            {"SLIP_DEBUG", "net,topo"},
                            {"SLIP_ALGORITHM", "ring"},
                            {"SLIP_MIN_CHANNELS", "2"}};
  const std::vector<std::string> logs = logs_of(hosts, variables);
  EXPECT_TRUE(has(logs[0], R"(rank 0 has rail1 \(10\.88\.1\.1\), rail2)")) << logs[0];
  EXPECT_TRUE(has(logs[0], R"(channel 0: rail2, the NIC of the topology\n +channel 1: rail1, the NIC)")) << logs[0];
  EXPECT_TRUE(has(logs[0], R"(rank 0 to rank 1, channel 0: rail2 \(10\.88\.2\.1\) to 10\.88\.2\.2\n)")) << logs[0];
  EXPECT_TRUE(has(logs[0], R"(rank 0 to rank 1, channel 1: rail1 \(10\.88\.1\.1\) to 10\.88\.1\.2\n)")) << logs[0];
  EXPECT_GT(hosts.sent_bytes(0, 1), 1U << 20);
  EXPECT_GT(hosts.sent_bytes(0, 2), 1U << 20);
  EXPECT_LT(hosts.sent_bytes(0, 0), 1U << 20);  // only the bootstrap
  ::unlink(file.c_str());
}

// Adds until an error comes, and continues on the rails that are left.
SLIP_CHILD(Rails, AddUntilTrouble) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    const Adder adder;
    CommunicatorOptions options;
    options.heartbeat = milliseconds(200);
    options.silence = milliseconds(2000);
    Communicator comm = Communicator::init(info.id, info.nranks, info.rank, adder.device(), options);
    std::string met;
    while (met.empty()) {
      try {
        const std::string wrong = adder.wrong_sum(comm, kWords);
        if (!wrong.empty()) return wrong;
        static_cast<void>(!::write(kLine, "x", 1));
      } catch (const Error& error) {
        met = error.what();
      }
    }
    static_cast<void>(!::write(kLine, "!", 1));
    Communicator again = comm.shrink();
    const Adder work(adder.device());
    const std::string wrong = work.wrong_sum(again, kWords);
    return wrong.empty() ? fmt::format("{} ranks go on after: {}", again.nranks(), met) : wrong;
  });
}

void expect_trouble_on_rail1(const Variables& variables, const std::function<void(const RailHosts&)>& strike) {
  const RailHosts hosts(2, {});
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  Variables all = variables;
  all["SLIP_SOCKET_IFNAME"] = "rail";
  Job job(hosts, 2, 1, "Rails.AddUntilTrouble", all);
  for (int rank = 0; rank < 2; ++rank) ASSERT_EQ(job[rank].hear(3), std::string(3, 'x')) << "rank " << rank;
  strike(hosts);
  const std::int64_t begun = base::now_ns();
  for (int rank = 0; rank < 2; ++rank) {
    std::string word = "x";
    while (word == "x") word = job[rank].hear(1);
    ASSERT_EQ(word, "!") << "rank " << rank << job[rank].report();
  }
  std::printf("known to all after %.2f s\n", static_cast<double>(base::now_ns() - begun) / 1e9);
  for (int rank = 0; rank < 2; ++rank) {
    const std::string report = job[rank].report();
    EXPECT_TRUE(has(report, R"(^2 ranks go on after: .*rank [01] cannot be reached over rail1 \(10\.88\.1\.[12]\))"))
        << "rank " << rank << ": " << report;
  }
}

// The failure detector watches the first rail only.
TEST(Rails, ACutIsAnErrorThatNamesTheInterface) {
  expect_trouble_on_rail1({}, [](const RailHosts& hosts) { hosts.cut(1, 1); });
}
TEST(Rails, ACutOfOneChannelIsAnErrorThatNamesTheInterface) {
  expect_trouble_on_rail1({{"SLIP_ALGORITHM", "ring"}, {"SLIP_MIN_CHANNELS", "2"}},
                          [](const RailHosts& hosts) { hosts.cut(0, 1); });
}
TEST(Rails, AnInterfaceThatGoesDownIsAnErrorThatNamesIt) {
  expect_trouble_on_rail1({}, [](const RailHosts& hosts) { hosts.take_down(0, 1); });
}

}  // namespace
}  // namespace slip::test_rails
