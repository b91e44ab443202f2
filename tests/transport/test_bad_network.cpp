// Ranks of several hosts that start and end while a third of all packets is lost.
#include "base/clock.hpp"
#include "support/hosts.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"

namespace slip::test {
namespace {

using std::chrono::seconds;

SLIP_CHILD(BadNetwork, Rank) {
  play([](const LaunchInfo& info) -> std::string {
    BootstrapOptions options = within(seconds(120));
    options.setup_follows = true;
    Bootstrap bootstrap(info.id, info.nranks, info.rank, options);
    bootstrap.set_call(bootstrap.begin(SetupKind::kInit));
    const std::vector<int> ranks = bootstrap.all_gather(info.rank);
    bootstrap.barrier();
    bootstrap.set_call({});
    return ranks.back() == info.nranks - 1 ? "met" : "met others";
  });
}

// With the default silence limit, and each rank leaves as soon as it has met the others.
TEST(BadNetwork, RanksMeetAllTheSame) {
  constexpr int kHosts = 3;
  Hosts hosts(kHosts);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  hosts.shape({.loss = 0.3});
  for (int round = 0; round < 2; ++round) {
    UniqueId id;
    hosts.within(0, [&] { id = local_id(hosts.address(0)); });
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < kHosts; ++rank)
      hosts.within(rank, [&] { ranks.emplace_back("BadNetwork.Rank", id, kHosts, rank); });
    for (const RankProcess& rank : ranks) EXPECT_EQ(rank.report(), "met");
  }
}

SLIP_CHILD(BadNetwork, StoppedInInit) {
  play([](const LaunchInfo& info) -> std::string {
    BootstrapOptions options = within(seconds(env_text("SLIP_TEST_INIT_S").empty() ? 60 : 8));
    options.heartbeat = {std::chrono::milliseconds(100), std::chrono::milliseconds(1000)};
    options.setup_follows = true;
    Bootstrap bootstrap(info.id, info.nranks, info.rank, options);
    bootstrap.set_call(bootstrap.begin(SetupKind::kInit));
    char byte = 'x';
    static_cast<void>(!::write(kLine, &byte, 1));
    static_cast<void>(!::read(kLine, &byte, 1));
    bootstrap.barrier();
    bootstrap.set_call({});
    bootstrap.barrier();
    return "met";
  });
}

// Starts three ranks, and stops rank 1 inside init for `pause`, or for good if it is 0.
std::vector<std::string> stop_in_init(std::chrono::milliseconds pause) {
  const UniqueId id = local_id();
  std::map<std::string, std::string> variables;
  if (pause.count() == 0) variables["SLIP_TEST_INIT_S"] = "8";
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.emplace_back("BadNetwork.StoppedInInit", id, 3, rank, variables);
  for (const RankProcess& rank : ranks) EXPECT_EQ(rank.hear(1), "x");
  ranks[1].signal(SIGSTOP);
  for (const RankProcess& rank : ranks) rank.tell('x');
  if (pause.count() > 0) {
    std::this_thread::sleep_for(pause);
    ranks[1].signal(SIGCONT);
  }
  std::vector<std::string> reports;
  for (const std::size_t rank : {0U, 2U, 1U}) {
    if (rank == 1 && pause.count() == 0) ranks[1].signal(SIGCONT);
    reports.push_back(ranks[rank].report());
  }
  return reports;
}

TEST(SilenceInInit, IsNoLossBeforeTheDeadline) {
  for (const std::string& report : stop_in_init(seconds(3))) EXPECT_EQ(report, "met");
}

TEST(SilenceInInit, NamesTheRankAtTheDeadline) {
  const std::vector<std::string> reports = stop_in_init(seconds(0));
  for (const std::size_t at : {0U, 1U})
    EXPECT_NE(reports[at].find("rank 1 gives no sign of life"), std::string::npos) << reports[at];
}

}  // namespace
}  // namespace slip::test
