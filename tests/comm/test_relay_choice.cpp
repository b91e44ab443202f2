// The tuning model against simulated times: it chooses relays for all_to_all where they are faster, and only there.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>

#include "comm/placement/comm_graph.hpp"
#include "comm/plan/tuning.hpp"
#include "comm/sim/predict.hpp"
#include "support/share.hpp"
#include "world_ranks.hpp"

namespace slip::test_relay_choice {
namespace {

Cluster cluster_from(const std::string& file, int nodes) {
  return cluster_of(read_topology(SLIP_SOURCE_DIR "/tests/topo/data/" + file), nodes);
}

comm::Call all_to_all_of(std::uint64_t rank_bytes, const Cluster& cluster) {
  return {.kind = comm::Collective::kAllToAll, .type = DataType::kU8, .elements = rank_bytes / cluster.ranks.size()};
}

Algorithm chosen(const comm::Call& call, const comm::TuningInputs& tuning) {
  return comm::choose(call, tuning, Algorithm::kAuto, false, false).schedule->algorithm;
}

struct Machines {
  const char* file;
  int nodes;
  comm::NetReach reach = comm::NetReach::kAll;
};

struct Times {
  double direct = 0, relay = 0;
};

Times times_of(const Machines& machines, const Cluster& cluster, const comm::Call& call) {
  comm::PredictionRequest asked;
  asked.call = call;
  asked.rails = machines.reach == comm::NetReach::kSameNumber;
  const ChannelPlan plan = plan_channels(cluster, {.max_channels = 1});
  asked.algorithm = Algorithm::kDirect;
  const double direct = comm::predict(cluster, plan, asked).us;
  asked.algorithm = Algorithm::kRelay;
  return {direct, comm::predict(cluster, plan, asked).us};
}

// The chosen algorithm takes at most `slack` times as long as the faster one.
void expect_fast(const Machines& machines, double slack) {
  const Cluster cluster = cluster_from(machines.file, machines.nodes);
  const comm::TuningInputs tuning = comm::predicted_tuning(cluster, {}, machines.reach);
  for (std::uint64_t bytes = 1 << 10; bytes <= (test::kShare > 1 ? 1U << 20 : 64U << 20); bytes *= 4) {
    const comm::Call call = all_to_all_of(bytes, cluster);
    const Times times = times_of(machines, cluster, call);
    const Algorithm found = chosen(call, tuning);
    const double us = found == Algorithm::kRelay ? times.relay : times.direct;
    std::printf("%s x %d, %8lu bytes: direct %8.1f us, relay %8.1f us: %s\n", machines.file, machines.nodes, bytes,
                times.direct, times.relay, algorithm_name(found));
    EXPECT_LE(us, slack * std::min(times.direct, times.relay))
        << machines.file << " x " << machines.nodes << ", " << bytes << " bytes";
  }
}

// A NIC that cannot access GPU memory: relays spare its switch.
TEST(RelayChoice, IsTheFasterOneBesideABusySwitch) {
  for (const int nodes : {2, 3, 4}) expect_fast({"host_memory.xml", nodes}, 1.05);
}
TEST(RelayChoice, IsTheFasterOneWhereEveryNicReachesTheOthers) {
  for (const char* const file : {"nvswitch8.xml", "crossed4.xml", "azure_ncv4-topo.xml", "host_nic.xml"})
    expect_fast({file, 2}, 1.05);
}
TEST(RelayChoice, IsTheFasterOneOnRails) {
  for (const int nodes : {2, 4}) expect_fast({"nvswitch8.xml", nodes, comm::NetReach::kSameNumber}, 1.05);
}

// The sizes and machines of docs/benchmarks.md.
TEST(RelayChoice, RelaysLargeBlocksAndSendsSmallOnesDirectly) {
  for (const int nodes : {2, 4}) {
    const Cluster cluster = cluster_from("host_memory.xml", nodes);
    const comm::TuningInputs tuning = comm::predicted_tuning(cluster, {});
    EXPECT_EQ(chosen(all_to_all_of(32 << 20, cluster), tuning), Algorithm::kRelay);
    EXPECT_EQ(chosen(all_to_all_of(1 << 10, cluster), tuning), Algorithm::kDirect);
  }
}

// Two machines as in host_memory.xml, as links of simulated devices. GPUs 0 and 1 of a machine are below the switch of
// its NIC; all data of other machines goes through the CPU's memory.
std::string two_machines() {
  std::string links, paths;
  for (int machine = 0; machine < 2; ++machine) {
    for (const char* const link : {"nic up", "nic down", "other up", "other down"})
      links += fmt::format(R"("{} {}": "12 GB/s", )", link, machine);
  }
  for (int from = 0; from < 8; ++from) {
    for (int to = 0; to < 8; ++to) {
      if (from == to) continue;
      const int a = from / 4, b = to / 4;
      std::string names;
      if (a == b) {
        links += fmt::format(R"("nvlink {}-{}": "40 GB/s", )", from, to);
        names = fmt::format(R"("nvlink {}-{}")", from, to);
      } else {
        names = fmt::format(R"("{} up {}", "nic down {}", "nic up {}", "{} down {}")", from % 4 < 2 ? "nic" : "other",
                            a, a, b, to % 4 < 2 ? "nic" : "other", b);
      }
      paths += fmt::format(R"({}{{"from": {}, "to": {}, "latency": "{} us", "links": [{}]}})",
                           paths.empty() ? "" : ", ", from, to, a == b ? 1.5 : 6, names);
    }
  }
  links.resize(links.size() - 2);
  return fmt::format(R"(sim:{{"name": "rank", "memory": "80 GB", "queues": 64, )"
                     R"("compute": {{"flops": "100 TFLOP/s", "bandwidth": "2000 GB/s"}}, )"
                     R"("copies": {{"in": "25 GB/s", "out": "25 GB/s", "latency": "1 us"}}, )"
                     R"("peers": {{"form": "links", "links": {{{}}}, "paths": [{}]}}}})",
                     links, paths);
}

// The virtual time of an all_to_all on these machines, by the options of a communicator alone.
double all_to_all_us(Algorithm algorithm, std::size_t rank_bytes) {
  const std::vector<Device> devices = Device::open_all(two_machines(), 8);
  const UniqueId id = test::local_id();
  std::vector<std::optional<Communicator>> comms(8);
  test::expect_no_errors(test::as_ranks(8, [&](int rank) {
    CommunicatorOptions options = test::with(algorithm);
    options.topology = SLIP_SOURCE_DIR "/tests/topo/data/host_memory.xml";
    options.host = rank < 4 ? "first" : "second";
    const auto index = static_cast<std::size_t>(rank);
    comms[index].emplace(Communicator::init(id, 8, rank, devices[index], options));
  }));
  std::vector<Buffer> from, to;
  std::vector<Stream> streams;
  for (const Device& device : devices) {
    streams.push_back(device.stream(StreamFlags::kNonBlocking));
    from.push_back(device.alloc(rank_bytes));
    to.push_back(device.alloc(rank_bytes));
  }
  const Picos begun = devices[0].now();
  for (std::size_t rank = 0; rank < 8; ++rank) comms[rank]->all_to_all(to[rank], from[rank], streams[rank]);
  for (const Stream& stream : streams) stream.sync();
  return static_cast<double>(devices[0].now() - begun) / 1e6;
}

// No option and no variable asks for relays.
TEST(RelayChoice, CommunicatorsMakeIt) {
  const double direct = all_to_all_us(Algorithm::kDirect, 8 << 20), relayed = all_to_all_us(Algorithm::kRelay, 8 << 20);
  EXPECT_LT(relayed, 0.85 * direct);
  EXPECT_EQ(all_to_all_us(Algorithm::kAuto, 8 << 20), relayed);
  EXPECT_EQ(all_to_all_us(Algorithm::kAuto, 1 << 10), all_to_all_us(Algorithm::kDirect, 1 << 10));
  EXPECT_NE(all_to_all_us(Algorithm::kAuto, 1 << 10), all_to_all_us(Algorithm::kRelay, 1 << 10));
}

// Four ranks send a block to each of four others through the NIC. Half of them, below its switch, cross it once more.
TEST(RelayChoice, TheLoadsAreThoseOfTheLinks) {
  const Cluster cluster = cluster_from("host_memory.xml", 2);
  const comm::AllToAllLoads loads = comm::AllToAllLoads::of(cluster, comm::relays_of(cluster));
  EXPECT_NEAR(loads.direct, 16 * 1.5 / 12, 1e-9);
  EXPECT_NEAR(loads.between, 16 / 12.0, 1e-9);
  EXPECT_GT(loads.handed_over, 0);
  EXPECT_GT(loads.handed_on, 0);
  const Cluster alone = cluster_from("host_memory.xml", 1);
  const comm::AllToAllLoads none = comm::AllToAllLoads::of(alone, comm::Relays());
  EXPECT_EQ(none.handed_over, 0);
  EXPECT_EQ(none.direct, none.between);
}

}  // namespace
}  // namespace slip::test_relay_choice
