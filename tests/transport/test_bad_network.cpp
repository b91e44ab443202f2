// Ranks of several hosts that meet while a third of all packets is lost.
#include "support/hosts.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"

namespace slip::test {
namespace {

SLIP_CHILD(BadNetwork, Rank) {
  play([](const LaunchInfo& info) -> std::string {
    BootstrapOptions options = within(std::chrono::seconds(120));
    // Only the start counts here: that a rank which is there is not heard for seconds can happen on such a network.
    const std::string silence = env_text("SLIP_TEST_SILENCE_MS");
    options.heartbeat.silence = std::chrono::milliseconds(silence.empty() ? 100'000 : std::stoi(silence));
    Bootstrap bootstrap(info.id, info.nranks, info.rank, options);
    const std::vector<int> ranks = bootstrap.all_gather(info.rank);
    char byte = 'x';  // stays until all have met: what a rank says last may be lost, too
    static_cast<void>(!::write(kLine, &byte, 1));
    static_cast<void>(!::read(kLine, &byte, 1));
    return ranks.back() == info.nranks - 1 ? "met" : "met others";
  });
}

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
    for (const RankProcess& rank : ranks) EXPECT_EQ(rank.hear(1), "x");
    for (const RankProcess& rank : ranks) rank.tell('x');
    for (const RankProcess& rank : ranks) EXPECT_EQ(rank.report(), "met");
  }
}

}  // namespace
}  // namespace slip::test
