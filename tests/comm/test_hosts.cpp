// Ranks of several hosts, as far as one machine can have them: processes in network namespaces, with wires between them
// that lose, delay, slow down and swallow packets. The tests HostsOver run over each kind of network.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <regex>

#include "base/clock.hpp"
#include "every_call.hpp"
#include "job.hpp"
#include "sums.hpp"
#include "transport/net_ends.hpp"
#include "transport/socket/address.hpp"

namespace slip::test_hosts {
namespace {

using std::chrono::milliseconds;
using test::Adder;
using test::EveryCall;
using test::Family;
using test::Hosts;
using test::Job;
using test::kLine;
using test::WireQuality;

CommunicatorOptions short_beats() {
  CommunicatorOptions options;
  options.heartbeat = milliseconds(200);
  options.silence = milliseconds(2500);
  return options;
}

void play_every_call(CommunicatorOptions options) {
  options.silence = std::chrono::seconds(30);  // only results count here
  test::play([&](const transport::LaunchInfo& info) -> std::string {
    const Device device = Device::open("cpu", {.compute_workers = 2});
    Communicator comm = Communicator::init(info.id, info.nranks, info.rank, device, options);
    std::string wrong;
    for (const std::size_t words : {std::size_t{3}, std::size_t{70'001}}) {
      if (wrong.empty()) wrong = EveryCall(comm, device, words).wrong();
    }
    std::optional<Communicator> part = comm.split(info.rank % 2, -info.rank);
    if (wrong.empty()) wrong = EveryCall(*part, device, 501).wrong();
    comm.finalize();
    return wrong.empty() ? "fine" : wrong;
  });
}

SLIP_CHILD(Hosts, EveryCall) { play_every_call({}); }
// The larger calls have more than two stripes.
SLIP_CHILD(Hosts, EveryCallBySeveralSockets) {
  CommunicatorOptions options;
  options.sockets = 3;
  options.zero_copy_from = 16 << 10;
  play_every_call(options);
}

using Variables = std::map<std::string, std::string>;

struct Play {
  WireQuality quality = {};
  Family family = Family::kIpv4;
  const char* part = "Hosts.EveryCall";
  Variables variables = {};
};

void expect_every_call(int count, int each, const Play& play) {
  Hosts hosts(count, play.family);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  hosts.shape(play.quality);
  const std::int64_t begun = base::now_ns();
  Job job(hosts, count, each, play.part, play.variables);
  for (int rank = 0; rank < job.size(); ++rank) EXPECT_EQ(job[rank].report(), "fine") << "rank " << rank;
  std::printf("%d hosts, %d ranks: %.2f s\n", count, job.size(), static_cast<double>(base::now_ns() - begun) / 1e9);
}

void expect_every_call_over(const WireQuality& quality, int count, int each) {
  Play play;
  play.quality = quality;
  expect_every_call(count, each, play);
}

// The variables for a network, and others.
Variables over(const std::string& network, Variables more = {}) {
  more.merge(test::net_variables(network));
  return more;
}

class HostsOver : public test::NetTest {};
INSTANTIATE_TEST_SUITE_P(Net, HostsOver, test::quick_nets(), test::net_test_name);

TEST_P(HostsOver, EveryCall) {
  Play play;
  play.variables = over(GetParam());
  for (const auto& [count, each] : {std::pair{2, 2}, {3, 1}}) expect_every_call(count, each, play);
}
TEST_P(HostsOver, EveryCallWithPacketsLost) {
  Play play;
  play.quality = {.loss = 0.02};
  play.variables = over(GetParam());
  expect_every_call(2, 2, play);
}

TEST(Hosts, EveryCallOverPlainWires) {
  for (const auto& [count, each] : {std::pair{2, 1}, {3, 2}}) expect_every_call_over({}, count, each);
}
// Two rings and two trees: each rank of a host connects to the next host, or one rank carries both channels.
TEST(Hosts, EveryCallBySeveralChannels) {
  Play play;
  for (const char* const algorithm : {"ring", "tree"}) {
    play.variables = {{"SLIP_ALGORITHM", algorithm}, {"SLIP_MIN_CHANNELS", "2"}};
    expect_every_call(2, 2, play);
  }
  play.variables = {{"SLIP_ALGORITHM", "ring"}, {"SLIP_MIN_CHANNELS", "2"}, {"SLIP_MAX_CHANNELS", "2"}};
  expect_every_call(3, 1, play);
}
TEST(Hosts, EveryCallOverIpv6Only) {
  Play play;
  play.family = Family::kIpv6;
  expect_every_call(3, 2, play);
}
TEST(Hosts, EveryCallBySeveralSockets) {
  Play play;
  play.part = "Hosts.EveryCallBySeveralSockets";
  expect_every_call(2, 2, play);
}
TEST(Hosts, EveryCallOverSlowWires) { expect_every_call_over({.bytes_per_second = 20e6}, 3, 1); }
TEST(Hosts, EveryCallOverLongWires) { expect_every_call_over({.delay_ns = 3'000'000}, 2, 2); }

// Ranks that bootstrap over a Unix socket send over loopback, which need not have an IPv4 address.
TEST(Hosts, AHostWithoutIpv4) {
  const Hosts hosts(1, Family::kIpv6);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  std::string over_unix, outside;
  hosts.within(0, [&] {
    over_unix =
        transport::own_address_towards(transport::SocketAddress::unix_name("name"), transport::InterfaceFilter(""))
            .host();
    outside = transport::own_address(transport::InterfaceFilter("")).host();
  });
  EXPECT_EQ(over_unix, "::1");
  EXPECT_EQ(outside, hosts.address(0));
}

// The first call that needs new links, before any rank knows of the cut.
SLIP_CHILD(Hosts, FirstCallAfterACut) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    const Adder adder;
    // If the cut comes before this rank knows that init is over on all ranks, silence counts from the deadline of init.
    CommunicatorOptions options = short_beats();
    options.init_timeout = std::chrono::seconds(20);
    Communicator comm = Communicator::init(info.id, info.nranks, info.rank, adder.device(), options);
    char byte = 'x';
    static_cast<void>(!::write(kLine, &byte, 1));
    static_cast<void>(!::read(kLine, &byte, 1));
    const Buffer data = adder.device().alloc(12, MemoryKind::kPinned),
                 to = adder.device().alloc(12, MemoryKind::kPinned);
    comm.all_to_all(to, data, adder.stream());
    adder.stream().sync();
    return "went on";
  });
}

TEST_P(HostsOver, ACutBeforeTheFirstCall) {
  Hosts hosts(3);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  Job job(hosts, 3, 1, "Hosts.FirstCallAfterACut", over(GetParam()));
  for (int rank = 0; rank < 3; ++rank) ASSERT_EQ(job[rank].hear(1), "x");
  hosts.cut(2);
  const std::int64_t begun = base::now_ns();
  for (int rank = 0; rank < 3; ++rank) job[rank].send('x');
  for (int rank = 0; rank < 3; ++rank) {
    const std::string report = job[rank].report();
    EXPECT_NE(report.find("gives no sign of life"), std::string::npos) << "rank " << rank << ": " << report;
  }
  std::printf("known to all after %.2f s\n", static_cast<double>(base::now_ns() - begun) / 1e9);
}

// Adds large arrays until a rank is lost, then continues with the remaining ranks.
SLIP_CHILD(Hosts, AddUntilTrouble) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    const Adder adder;
    Communicator comm = Communicator::init(info.id, info.nranks, info.rank, adder.device(), short_beats());
    std::string met;
    for (unsigned call = 0; met.empty(); ++call) {
      try {
        const std::string wrong = adder.wrong_sum(comm, call % 3 == 2 ? 10 : 2'000'000);
        if (!wrong.empty()) return wrong;
        static_cast<void>(!::write(kLine, "x", 1));
      } catch (const Error& error) {
        met = fmt::format("{}: {}", code_name(error.code()), error.what());
      }
    }
    static_cast<void>(!::write(kLine, "!", 1));
    Communicator less = comm.shrink();
    const Adder work(adder.device());
    std::string wrong = work.wrong_sum(less);
    if (wrong.empty()) wrong = work.wrong_sum(less, 1'000'000);
    if (wrong.empty()) wrong = fmt::format("rank {} of {}", less.rank(), less.nranks());
    return wrong + " after " + met;
  });
}

// The expected result of a rank: its position among the ranks that it still reaches.
struct Expected {
  int rank = 0, nranks = 0;
};

void expect_trouble(Job& job, const std::vector<Expected>& expected, const std::function<void()>& strike) {
  const auto skipped = [&](int rank) { return expected[static_cast<std::size_t>(rank)].nranks == 0; };
  for (int rank = 0; rank < job.size(); ++rank) ASSERT_EQ(job[rank].hear(3), std::string(3, 'x')) << "rank " << rank;
  strike();
  const std::int64_t begun = base::now_ns();
  for (int rank = 0; rank < job.size(); ++rank) {
    std::string word = skipped(rank) ? "!" : "x";
    while (word == "x") word = job[rank].hear(1);
    EXPECT_EQ(word, "!") << "rank " << rank << job[rank].report();
  }
  std::printf("known to all after %.2f s, ", static_cast<double>(base::now_ns() - begun) / 1e9);
  for (int rank = 0; rank < job.size(); ++rank) {
    if (skipped(rank)) continue;
    const Expected& want = expected[static_cast<std::size_t>(rank)];
    const std::string report = job[rank].report();
    EXPECT_EQ(report.substr(0, report.find(" after")), fmt::format("rank {} of {}", want.rank, want.nranks))
        << "rank " << rank << ": " << report;
    const std::string met = report.substr(std::min(report.size(), report.find(" after")));
    EXPECT_TRUE(std::regex_search(met, std::regex("rank [0-9]"))) << report;
  }
  std::printf("all go on after %.2f s\n", static_cast<double>(base::now_ns() - begun) / 1e9);
}

void expect_groups_after(int count, int each, const std::vector<Expected>& expected,
                         const std::function<void(Hosts&, Job&)>& strike, const Variables& variables = {}) {
  Hosts hosts(count);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  Job job(hosts, count, each, "Hosts.AddUntilTrouble", variables);
  expect_trouble(job, expected, [&] { strike(hosts, job); });
}

TEST_P(HostsOver, ACutWireMakesTwoGroups) {
  const auto cut = [](int host) { return [host](Hosts& hosts, Job&) { hosts.cut(host); }; };
  expect_groups_after(2, 2, {{0, 2}, {1, 2}, {0, 2}, {1, 2}}, cut(1), over(GetParam()));
  expect_groups_after(3, 2, {{0, 2}, {1, 2}, {0, 4}, {1, 4}, {2, 4}, {3, 4}}, cut(0), over(GetParam()));
}

TEST_P(HostsOver, AnInterfaceThatGoesDownMakesTwoGroups) {
  expect_groups_after(
      3, 1, {{0, 2}, {1, 2}, {0, 1}}, [](Hosts& hosts, Job&) { hosts.take_down(2); }, over(GetParam()));
}

// Sends a signal to a rank.
auto signalled(int rank, int number) {
  return [=](Hosts&, Job& job) { job[rank].signal(number); };
}

TEST_P(HostsOver, AKilledRankOfAnotherHost) {
  expect_groups_after(2, 2, {{0, 3}, {1, 3}, {2, 3}, {}}, signalled(3, SIGKILL), over(GetParam()));
  expect_groups_after(3, 1, {{}, {0, 2}, {1, 2}}, signalled(0, SIGKILL), over(GetParam()));
}

TEST_P(HostsOver, AKilledRankWhileSeveralChannelsWaitForOthers) {
  expect_groups_after(2, 2, {{0, 3}, {1, 3}, {2, 3}, {}}, signalled(3, SIGKILL),
                      over(GetParam(), {{"SLIP_ALGORITHM", "ring"}, {"SLIP_MIN_CHANNELS", "2"}}));
}

TEST_P(HostsOver, AStoppedRankOfAnotherHost) {
  expect_groups_after(2, 2, {{0, 3}, {1, 3}, {}, {2, 3}}, signalled(2, SIGSTOP), over(GetParam()));
  expect_groups_after(3, 1, {{}, {0, 2}, {1, 2}}, signalled(0, SIGSTOP), over(GetParam()));
}

// Rank 0 aborts in a call that rank 2 never joins. The other ranks of the call know within a second.
TEST_P(HostsOver, AnAbortEndsTheCall) {
  Hosts hosts(3);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  Job job(hosts, 3, 1, "Hangs.GiveUp", over(GetParam()));
  for (int rank = 0; rank < 3; ++rank) ASSERT_EQ(job[rank].hear(1), "x");
  const std::int64_t begun = base::now_ns();
  job[0].send('x');
  for (const int rank : {0, 1}) {
    const std::string report = job[rank].report();
    for (const char* words : {"aborted", "rank 0"}) EXPECT_NE(report.find(words), std::string::npos) << report;
  }
  std::printf("aborted after %.2f s\n", static_cast<double>(base::now_ns() - begun) / 1e9);  // 1 s on idle cores
  job[2].send('x');
  const std::string late = job[2].report();
  EXPECT_NE(late.find("aborted"), std::string::npos) << late;
}

// The abort comes while a large message to a rank that is stopped is under way.
SLIP_CHILD(Hosts, AbortWhileThePeerIsStopped) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    CommunicatorOptions options;
    options.silence = std::chrono::seconds(80);
    const Adder adder;
    Communicator comm = Communicator::init(info.id, info.nranks, info.rank, adder.device(), options);
    if (const std::string wrong = adder.wrong_sum(comm, 1'000'000); !wrong.empty()) return wrong;
    char byte = 'x';
    static_cast<void>(!::write(kLine, &byte, 1));
    static_cast<void>(!::read(kLine, &byte, 1));
    const Buffer data = adder.start_sum(comm, 8'000'000);
    if (info.rank == 0) {
      if (adder.stream().sync_for(milliseconds(50))) return "the stopped rank took part";
      static_cast<void>(!::write(kLine, "!", 1));
      comm.abort();
    }
    try {
      adder.stream().sync();
    } catch (const Error& error) {
      if (info.rank == 0) static_cast<void>(!::write(kLine, "!", 1));
      return error.what();
    }
    return "went on";
  });
}

TEST_P(HostsOver, AnAbortEndsACallWhosePeerIsStopped) {
  Hosts hosts(2);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  Job job(hosts, 2, 1, "Hosts.AbortWhileThePeerIsStopped", over(GetParam()));
  for (int rank = 0; rank < 2; ++rank) ASSERT_EQ(job[rank].hear(1), "x");
  job[1].signal(SIGSTOP);
  job[0].send('x');
  ASSERT_EQ(job[0].hear(1), "!");
  const std::int64_t begun = base::now_ns();
  ASSERT_EQ(job[0].hear(1), "!");
  std::printf("aborted after %.2f s\n", static_cast<double>(base::now_ns() - begun) / 1e9);  // 1 s on idle cores
  const std::string report = job[0].report();
  EXPECT_NE(report.find("aborted"), std::string::npos) << report;
  job[1].send('x');
  job[1].signal(SIGCONT);
  EXPECT_NE(job[1].report().find("rank 0"), std::string::npos);
}

}  // namespace
}  // namespace slip::test_hosts
