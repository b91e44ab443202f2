// all_to_all through relays: which rank relays for which, processes on several hosts, and a relay that is killed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "comm/placement/comm_graph.hpp"
#include "comm/plan/tuning.hpp"
#include "job.hpp"
#include "slip/communicator.hpp"
#include "slip/stream.hpp"

namespace slip::test_relays {
namespace {

using test::Hosts;
using test::Job;
using test::kLine;
using test::RankProcess;

TEST(Relays, StandOnTheRailOfTheReceiver) {
  const comm::Relays relays({7, 3, 7, 3, 7, 9});  // hosts of three ranks, two and one
  EXPECT_EQ(relays.via(0, 1), 0);                 // the first of its host through the first of ours
  EXPECT_EQ(relays.via(4, 1), 0);
  EXPECT_EQ(relays.via(0, 3), 2);
  EXPECT_EQ(relays.via(2, 3), 2);
  EXPECT_EQ(relays.via(3, 4), 1);  // there is no third one here: counted round
  EXPECT_EQ(relays.via(5, 4), 5);  // alone on its host
  EXPECT_EQ(relays.via(0, 4), 0);  // of the same host
}

// Small blocks are relayed, large ones are not, because a relay copies each byte twice more. If no two ranks share a
// host, or all do, no rank can relay.
TEST(Relays, AreChosenForSmallBlocksBetweenHosts) {
  const auto chosen = [](std::uint64_t bytes, int hosts) {
    const comm::Call call{.kind = comm::Collective::kAllToAll, .type = DataType::kU8, .elements = bytes};
    const comm::TuningInputs tuning{
        .nranks = 8, .hosts = hosts, .rates = {.latency_us = 20, .gbps = 1, .message_us = 5}};
    return comm::choose(call, tuning, Algorithm::kAuto, false, false).schedule->algorithm;
  };
  EXPECT_EQ(chosen(64, 2), Algorithm::kRelay);
  EXPECT_EQ(chosen(1 << 20, 2), Algorithm::kDirect);
  EXPECT_EQ(chosen(64, 8), Algorithm::kDirect);
  EXPECT_EQ(chosen(64, 1), Algorithm::kDirect);
}

std::uint32_t word(int from, int to, std::size_t i) {
  return static_cast<std::uint32_t>(from) * 1'000'003U + static_cast<std::uint32_t>(to) * 10'007U +
         static_cast<std::uint32_t>(i);
}

// One all_to_all with `n` words for each rank; what is wrong with it.
std::string exchange(Communicator& comm, const Device& device, const Stream& stream, std::size_t n) {
  const std::size_t words = n * static_cast<std::size_t>(comm.nranks());
  const Buffer to = device.alloc(words * 4, MemoryKind::kPinned);
  Buffer from = device.alloc(words * 4, MemoryKind::kPinned);
  std::uint32_t* const given = from.host_write<std::uint32_t>().begin();
  for (std::size_t i = 0; i < words; ++i) given[i] = word(comm.rank(), static_cast<int>(i / n), i % n);
  comm.all_to_all(to, from, stream);
  stream.sync();
  const HostView<const std::uint32_t> got = to.host_read<std::uint32_t>();
  for (std::size_t i = 0; i < words; ++i) {
    if (got[i] != word(static_cast<int>(i / n), comm.rank(), i % n))
      return fmt::format("word {} of rank {} is {} with {} for each", i, comm.rank(), got[i], n);
  }
  return "";
}

CommunicatorOptions by_relays() {
  CommunicatorOptions options;
  options.algorithm = Algorithm::kRelay;
  options.timeout = std::chrono::seconds(30);
  options.silence = std::chrono::seconds(30);  // only results count here
  return options;
}

SLIP_CHILD(Relays, Exchange) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    const Device device = Device::open("cpu", {.compute_workers = 2});
    Communicator comm = Communicator::init(info.id, info.nranks, info.rank, device, by_relays());
    const Stream stream = device.stream();
    std::string wrong;
    for (const std::size_t words : {1U, 3U, 100'003U}) {
      if (wrong.empty()) wrong = exchange(comm, device, stream, words);
    }
    comm.finalize();
    return wrong.empty() ? "fine" : wrong;
  });
}

TEST(Relays, ServeProcessesOfSeveralHosts) {
  for (const auto& [count, each] : {std::pair{2, 3}, {3, 2}}) {
    Hosts hosts(count);
    if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
    Job job(hosts, count, each, "Relays.Exchange");
    for (int rank = 0; rank < job.size(); ++rank) EXPECT_EQ(job[rank].report(), "fine") << "rank " << rank;
  }
}

// Runs until a rank is lost; then the others report it. Hosts are only names, so the test needs no privileges.
SLIP_CHILD(Relays, ExchangeUntilTrouble) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    const Device device = Device::open("cpu", {.compute_workers = 2});
    CommunicatorOptions options = by_relays();
    options.host = info.rank < info.nranks / 2 ? "first" : "second";
    Communicator comm = Communicator::init(info.id, info.nranks, info.rank, device, options);
    const Stream stream = device.stream();
    for (;;) {
      const std::string wrong = exchange(comm, device, stream, 5000);
      if (!wrong.empty()) return wrong;
      static_cast<void>(!::write(kLine, "x", 1));
    }
  });
}

// Rank 3 relays the blocks of its host for rank 1, which is connected only to rank 3 there.
TEST(Relays, ARelayThatIsKilledIsAnErrorOfEverybody) {
  const UniqueId id = test::local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 4; ++rank) ranks.emplace_back("Relays.ExchangeUntilTrouble", id, 4, rank);
  for (const RankProcess& rank : ranks) ASSERT_EQ(rank.hear(3), std::string(3, 'x'));
  ranks[3].signal(SIGKILL);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string report = ranks[static_cast<std::size_t>(rank)].report();
    EXPECT_NE(report.find("rank 3"), std::string::npos) << "rank " << rank << ": " << report;
  }
}

}  // namespace
}  // namespace slip::test_relays
