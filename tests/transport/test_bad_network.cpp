// Ranks of several hosts that start and end while every seventh packet is lost.
#include "base/clock.hpp"
#include "support/hosts.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"

namespace slip::test::test_bad_network {
namespace {

using std::chrono::seconds;

SLIP_CHILD(BadNetwork, Rank) {
  play([](const transport::LaunchInfo& info) -> std::string {
    transport::BootstrapOptions options = within(seconds(120));
    options.setup_follows = true;
    transport::Bootstrap bootstrap(info.id, info.nranks, info.rank, options);
    bootstrap.set_call(bootstrap.begin(transport::SetupKind::kInit));
    const std::vector<int> ranks = bootstrap.all_gather(info.rank);
    bootstrap.barrier();
    bootstrap.set_call({});
    return ranks.back() == info.nranks - 1 ? "met" : "met others";
  });
}

// With the default silence limit, and each rank leaves as soon as it has met the others. With 30 % of the packets lost,
// TCP's own retransmission timers delay one run in fifty by more than a minute.
TEST(BadNetwork, RanksMeetAllTheSame) {
  constexpr int kHosts = 3;
  Hosts hosts(kHosts);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  hosts.shape({.loss = 0.15});
  for (int round = 0; round < 2; ++round) {
    UniqueId id;
    hosts.within(0, [&] { id = local_id(hosts.address(0)); });
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < kHosts; ++rank)
      hosts.within(rank, [&] { ranks.emplace_back("BadNetwork.Rank", id, kHosts, rank); });
    for (const RankProcess& rank : ranks) EXPECT_EQ(rank.report(), "met");
  }
}

// Meets the test inside init or, with SLIP_TEST_AFTER_INIT, behind it. There the test stops a rank.
SLIP_CHILD(SilenceInInit, Rank) {
  play([](const transport::LaunchInfo& info) -> std::string {
    transport::BootstrapOptions options = within(seconds(base::env_text("SLIP_TEST_INIT_S").empty() ? 60 : 8));
    options.heartbeat = {std::chrono::milliseconds(100), std::chrono::milliseconds(1000)};
    options.setup_follows = true;
    transport::Bootstrap bootstrap(info.id, info.nranks, info.rank, options);
    bootstrap.set_call(bootstrap.begin(transport::SetupKind::kInit));
    const auto end_init = [&] {
      bootstrap.barrier();
      bootstrap.set_call({});
      bootstrap.barrier();
    };
    const bool after_init = !base::env_text("SLIP_TEST_AFTER_INIT").empty();
    if (after_init) end_init();
    char byte = 'x';
    static_cast<void>(!::write(kLine, &byte, 1));
    static_cast<void>(!::read(kLine, &byte, 1));
    if (after_init) bootstrap.barrier();
    else end_init();
    return "met";
  });
}

using Variables = std::map<std::string, std::string>;

// Three ranks, of which rank 1 is stopped.
std::vector<RankProcess> start_and_stop(const UniqueId& id, const Variables& variables) {
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.emplace_back("SilenceInInit.Rank", id, 3, rank, variables);
  for (const RankProcess& rank : ranks) EXPECT_EQ(rank.hear(1), "x");
  ranks[1].signal(SIGSTOP);
  for (const RankProcess& rank : ranks) rank.send('x');
  return ranks;
}

constexpr const char* kSilent = "rank 1 gives no sign of life";

// A rank of a second job is stopped later and behind its init. Once that one counts as lost, the silence of the first
// was long enough, too.
TEST(SilenceInInit, IsNoLossBeforeTheDeadline) {
  const UniqueId id = local_id(), other_id = local_id();
  const std::vector<RankProcess> job = start_and_stop(id, {});
  const std::vector<RankProcess> other = start_and_stop(other_id, {{"SLIP_TEST_AFTER_INIT", "1"}});
  const std::string lost = other[0].report();
  EXPECT_NE(lost.find(kSilent), std::string::npos) << lost;
  job[1].signal(SIGCONT);
  for (const RankProcess& rank : job) EXPECT_EQ(rank.report(), "met");
}

TEST(SilenceInInit, NamesTheRankAtTheDeadline) {
  const UniqueId id = local_id();
  const std::vector<RankProcess> job = start_and_stop(id, {{"SLIP_TEST_INIT_S", "8"}});
  for (const std::size_t rank : {0U, 2U}) {
    const std::string report = job[rank].report();
    EXPECT_NE(report.find(kSilent), std::string::npos) << report;
  }
}

}  // namespace
}  // namespace slip::test::test_bad_network
