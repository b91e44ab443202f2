// Where ranks are, and what follows: rings, trees and relays as the search says, on one host and on several, as threads
// and as processes.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "comm/placement/rank_placement.hpp"
#include "job.hpp"
#include "store/topology_file.hpp"
#include "topo/document.hpp"
#include "topology_files.hpp"

namespace slip::test_places {
namespace {

using test::as_ranks;
using test::data_file;
using test::expect_no_errors;
using test::Folder;
using test::Hosts;
using test::Job;
using test::Met;
using test::options_of;
using test::RankProcess;

// What a rank finds, of a communicator with these options; the way of Communicator::State, as far as it goes here.
struct Result {
  comm::RankPlacement places;
  std::vector<comm::CommGraph> graphs;
};

Result find(transport::Bootstrap& bootstrap, const CommunicatorOptions& options, int channels) {
  const std::vector<comm::RequestedOptions> requested = bootstrap.all_gather(comm::RequestedOptions::of(options, {}));
  Result result;
  result.places = comm::find_rank_placement(bootstrap, comm::hosts_of(bootstrap.placements(), requested),
                                            comm::RankLocation::own(options, -1), comm::topology_file(options), {});
  result.graphs = comm::agree_on_comm_graphs(bootstrap, result.places, channels, {});
  return result;
}

// By rank, as threads; they must all be the same.
std::vector<Result> find_all(const std::vector<CommunicatorOptions>& options, int channels = 1) {
  const auto nranks = static_cast<int>(options.size());
  const UniqueId id = test::local_id();
  std::vector<Result> results(options.size());
  expect_no_errors(as_ranks(nranks, [&](int rank) {
    transport::Bootstrap bootstrap(id, nranks, rank);
    results[static_cast<std::size_t>(rank)] = find(bootstrap, options[static_cast<std::size_t>(rank)], channels);
    bootstrap.barrier();
  }));
  for (const Result& one : results) EXPECT_EQ(comm::digest(one.graphs), comm::digest(results[0].graphs));
  return results;
}

void expect_same_as_search(const Result& found, const Cluster& cluster, int channels) {
  const ChannelPlan plan = plan_channels(cluster, {.max_channels = channels});
  const std::vector<comm::CommGraph> expected = comm::comm_graphs(cluster, plan, channels);
  ASSERT_EQ(found.graphs.size(), static_cast<std::size_t>(channels));
  EXPECT_EQ(comm::digest(found.graphs), comm::digest(expected));
  for (std::size_t c = 0; c < plan.channels.size(); ++c) EXPECT_EQ(found.graphs[c].order, plan.channels[c].ring);
}

TEST(RankPlacement, WithoutATopologyTheOrderIsThatOfTheRanks) {
  const std::vector<Result> one = find_all(options_of(1, 4, ""), 2);
  EXPECT_FALSE(one[0].places.cluster);
  EXPECT_EQ(one[0].graphs[0].order, (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(one[0].graphs[1].order, (std::vector{0, 3, 2, 1}));
  const std::vector<Result> two = find_all(options_of(2, 2, ""), 2);
  EXPECT_FALSE(two[0].places.cluster);
  EXPECT_EQ(two[3].graphs[0].order, (std::vector{0, 1, 2, 3}));
  EXPECT_EQ(two[3].graphs[1].order, (std::vector{1, 0, 3, 2}));
  EXPECT_EQ(two[3].graphs[0].relays.via(0, 3), 1);
}

TEST(RankPlacement, OneHostFollowsItsNvLinks) {
  const std::vector<Result> found = find_all(options_of(1, 4, data_file("crossed4.xml")));
  EXPECT_EQ(found[0].graphs[0].order, (std::vector{0, 2, 1, 3}));
  expect_same_as_search(found[2], cluster_of(read_topology(data_file("crossed4.xml")), 1), 1);
  EXPECT_EQ(found[2].places.device_of(2), 2);
}

TEST(RankPlacement, DevicesAreThoseThatAreAskedFor) {
  std::vector<CommunicatorOptions> options = options_of(1, 4, data_file("crossed4.xml"));
  const std::vector<int> devices{0, 2, 1, 3};  // along the NVLinks
  for (std::size_t rank = 0; rank < 4; ++rank) options[rank].topo_device = devices[rank];
  EXPECT_EQ(find_all(options)[0].graphs[0].order, (std::vector{0, 1, 2, 3}));
  for (CommunicatorOptions& one : options) one.topo_device = 3;  // all share one
  EXPECT_EQ(find_all(options)[0].graphs[0].order, (std::vector{0, 1, 2, 3}));
}

TEST(RankPlacement, SeveralHostsFollowTheirRails) {
  for (const char* const name : {"crossed4.xml", "nvswitch8.xml", "host_memory.xml"}) {
    SCOPED_TRACE(name);
    const Cluster cluster = cluster_of(read_topology(data_file(name)), 2);
    const auto each = static_cast<int>(cluster.nodes[0].devices.size());
    const std::vector<Result> found = find_all(options_of(2, each, data_file(name)), 2);
    for (const Result& one : found) expect_same_as_search(one, cluster, 2);
    for (const RailRoute& route : rail_routes(cluster, 0)) {
      for (const int sender : route.senders) EXPECT_EQ(found[0].graphs[0].relays.via(sender, route.to), route.relay);
      EXPECT_EQ(found[0].graphs[0].relays.arrival(route.to), route.arrival);
    }
    EXPECT_NE(comm::relays_text(found[0].places, found[0].graphs[0].relays).find("mlx5_0"), std::string::npos);
    const std::vector<transport::Placement> placements(cluster.ranks.size());
    EXPECT_NE(comm::placement_text(found[0].places, placements).find("(GPU 1)"), std::string::npos);
  }
}

// Beside a host with a file one about which nothing is known; and hosts of two kinds.
TEST(RankPlacement, HostsMayDiffer) {
  std::vector<CommunicatorOptions> options = options_of(2, 4, data_file("crossed4.xml"));
  for (std::size_t rank = 4; rank < 8; ++rank) options[rank].topology.clear();
  const Result plain = find_all(options)[0];
  EXPECT_EQ(plain.places.cluster->nodes[1].xml, comm::plain_machine().xml);
  for (std::size_t rank = 4; rank < 8; ++rank) options[rank].topology = data_file("host_memory.xml");
  const std::vector<Result> two = find_all(options, 2);
  Cluster cluster = cluster_of(read_topology(data_file("crossed4.xml")), 1);
  cluster.nodes.push_back(read_topology(data_file("host_memory.xml")));
  for (int device = 0; device < 4; ++device) cluster.ranks.push_back({1, device});
  expect_same_as_search(two[5], cluster, 2);
}

// A NIC that reaches the CPU's memory only, and shares its switch with GPUs 0 and 1: 2 and 3 send and take for them.
TEST(RankPlacement, ANicsSwitchIsSpared) {
  const comm::Relays relays = comm::relays_of(cluster_of(read_topology(data_file("host_memory.xml")), 2));
  for (int from = 0; from < 4; ++from) {
    for (int to = 4; to < 8; ++to) EXPECT_GE(relays.via(from, to), 2) << from << " to " << to;
  }
  EXPECT_NE(relays.via(0, 4), relays.via(0, 5)) << "both take their turn";
  for (const int to : {4, 5}) EXPECT_GE(relays.arrival(to), 6);
  EXPECT_NE(relays.arrival(4), relays.arrival(5));
  for (const int to : {6, 7}) EXPECT_EQ(relays.arrival(to), to);
  const comm::Relays beside = comm::relays_of(cluster_of(read_topology(data_file("host_nic.xml")), 2));
  EXPECT_FALSE(beside.forwards()) << "this NIC reaches GPUs, so those beside it send";
  EXPECT_LT(beside.via(3, 4), 2);
}

TEST(RankPlacement, OfNumaNodesByTheKernelsFiles) {
  const Folder folder;
  folder.write("online", "0-1\n");
  folder.write("node0/cpulist", "0-3,8-11\n");
  folder.write("node1/cpulist", "4-7,12-15\n");
  EXPECT_EQ(store::numa_node_of(store::read_core_list("2,9-10"), folder.path()), 0);
  EXPECT_EQ(store::numa_node_of(store::read_core_list("4"), folder.path()), 1);
  EXPECT_EQ(store::numa_node_of(store::read_core_list("3-4"), folder.path()), -1) << "of both";
  EXPECT_EQ(store::numa_node_of({}, folder.path()), -1);
  folder.write("online", "0\n");
  EXPECT_EQ(store::numa_node_of(store::read_core_list("2"), folder.path()), -1) << "there is one only";
  EXPECT_EQ(store::numa_node_of(store::read_core_list("2"), folder.path() + "/nothing"), -1);
  EXPECT_EQ(store::read_core_list("0-2,5").count(), 4U);
  for (const char* const wrong : {"x", "1-", "1;2", "-3"}) EXPECT_TRUE(store::read_core_list(wrong).none()) << wrong;
}

// Every second rank is bound to the other NUMA node of a machine that hwloc gets from its environment.
SLIP_CHILD(RankPlacement, BoundInTurns) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    transport::Bootstrap bootstrap(info.id, info.nranks, info.rank);
    comm::RankLocation own = comm::RankLocation::own({}, -1);
    own.numa = info.rank % 2;
    const std::vector<int> hosts(static_cast<std::size_t>(info.nranks), 0);
    const comm::RankPlacement places = comm::find_rank_placement(bootstrap, hosts, own, "", {});
    const std::vector<comm::CommGraph> graphs = comm::agree_on_comm_graphs(bootstrap, places, 1, {});
    bootstrap.barrier();
    return fmt::format("{} nodes, ring {}", places.cluster->nodes[0].devices.size(), fmt::join(graphs[0].order, " "));
  });
}

std::vector<std::string> reports_of(const std::string& part, int nranks,
                                    const std::map<std::string, std::string>& variables) {
  const UniqueId id = test::local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < nranks; ++rank) ranks.emplace_back(part, id, nranks, rank, variables);
  std::vector<std::string> reports;
  for (const RankProcess& rank : ranks) reports.push_back(rank.report());
  return reports;
}

TEST(RankPlacement, RanksOfANumaNodeAreNeighbours) {
  if (topo::probe_xml({"pack:2 numa:1 core:2 pu:1", {}}, {}).find("numaid=\"1\"") == std::string::npos)
    GTEST_SKIP() << "built without hwloc";
  const std::vector<std::string> reports =
      reports_of("RankPlacement.BoundInTurns", 6, {{"HWLOC_SYNTHETIC", "pack:2 numa:1 core:4 pu:1"}});
  for (const std::string& report : reports) EXPECT_EQ(report, "2 nodes, ring 0 2 4 5 1 3");
}

// A node that hwloc does not see: on all ranks, and nobody waits.
TEST(RankPlacement, ANumaNodeThatNobodyKnows) {
  const std::vector<std::string> reports =
      reports_of("RankPlacement.BoundInTurns", 3, {{"HWLOC_SYNTHETIC", "pack:1 numa:1 core:4 pu:1"}});
  for (const std::string& report : reports)
    EXPECT_NE(report.find("rank 1 is bound to NUMA node 1"), std::string::npos) << report;
}

TEST(RankPlacement, ARankThatFindsSomethingElseIsNamed) {
  const UniqueId id = test::local_id();
  const std::vector<Met> met = as_ranks(3, [&](int rank) {
    transport::Bootstrap bootstrap(id, 3, rank);
    comm::require_agreement(bootstrap, comm::comm_graphs({0, 0, 0}, 2), {});
    std::vector<comm::CommGraph> own = comm::comm_graphs({0, 0, 0}, 1);
    if (rank == 1) own = {comm::CommGraph::of({0, 2, 1})};
    comm::require_agreement(bootstrap, own, {});
  });
  for (const Met& one : met) {
    EXPECT_EQ(one.code, ErrorCode::kMismatch);
    for (const char* const words : {"than rank 1", "ring 0 1 2", "ring 0 2 1"})
      EXPECT_NE(one.text.find(words), std::string::npos) << one.text;
  }
}

TEST(RankPlacement, DigestsDistinguishRelaysAndTrees) {
  const std::vector<comm::CommGraph> first = comm::comm_graphs({0, 0, 1, 1}, 1);
  std::vector<comm::CommGraph> other = first;
  EXPECT_EQ(comm::digest(other), comm::digest(first));
  other[0].relays.set(0, 2, 1);
  EXPECT_NE(comm::digest(other), comm::digest(first));
  other = first;
  other[0].relays.set_arrival(2, 3);
  EXPECT_NE(comm::digest(other), comm::digest(first));
  other = first;
  std::swap(other[0].trees[0], other[0].trees[1]);
  EXPECT_NE(comm::digest(other), comm::digest(first));
}

TEST(PlacesOfHosts, EveryCallThroughFilesAndRelays) {
  for (const auto& [count, each, file] : {std::tuple{2, 4, "host_memory.xml"}, {3, 2, "crossed4.xml"}}) {
    for (const char* const algorithm : {"relay", "ring"}) {
      Hosts hosts(count);
      if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
      SCOPED_TRACE(fmt::format("{} hosts, {}, {}", count, file, algorithm));
      Job job(hosts, count, each, "Hosts.EveryCall",
              {{"SLIP_TOPO_FILE", data_file(file)}, {"SLIP_ALGORITHM", algorithm}});
      for (int rank = 0; rank < job.size(); ++rank) EXPECT_EQ(job[rank].report(), "fine") << "rank " << rank;
    }
  }
}

SLIP_CHILD(PlacesOfHosts, Rings) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    transport::Bootstrap bootstrap(info.id, info.nranks, info.rank);
    const Result found = find(bootstrap, {}, 2);
    bootstrap.barrier();
    const comm::Relays& relays = found.graphs[0].relays;
    return fmt::format("ring {}, ring {}, to 4 through {} and {}", fmt::join(found.graphs[0].order, " "),
                       fmt::join(found.graphs[1].order, " "), relays.via(0, 4), relays.arrival(4));
  });
}

TEST(PlacesOfHosts, ProcessesFindWhatTheSearchSays) {
  Hosts hosts(2);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  const Cluster cluster = cluster_of(read_topology(data_file("host_memory.xml")), 2);
  const ChannelPlan plan = plan_channels(cluster, {.max_channels = 2});
  const comm::Relays relays = comm::relays_of(cluster);
  const std::string expected =
      fmt::format("ring {}, ring {}, to 4 through {} and {}", fmt::join(plan.channels[0].ring, " "),
                  fmt::join(plan.channels[1 % plan.channels.size()].ring, " "), relays.via(0, 4), relays.arrival(4));
  Job job(hosts, 2, 4, "PlacesOfHosts.Rings", {{"SLIP_TOPO_FILE", data_file("host_memory.xml")}});
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(job[rank].report(), expected) << "rank " << rank;
}

TEST(PlacesOfHosts, AMissingFileFailsOnAllHosts) {
  Hosts hosts(2);
  if (!hosts.reason().empty()) GTEST_SKIP() << hosts.reason();
  Job job(hosts, 2, 2, "Hosts.EveryCall", {{"SLIP_TOPO_FILE", "/nowhere/machine.xml"}});
  for (int rank = 0; rank < 4; ++rank) {
    const std::string report = job[rank].report();
    EXPECT_NE(report.find("cannot open '/nowhere/machine.xml'"), std::string::npos) << report;
  }
}

// The output of SLIP_DEBUG=topo, of ranks that a launcher started.
TEST(PlacesOfHosts, AreInTheDebugOutput) {
  const std::string command = fmt::format("SLIP_DEBUG=topo SLIP_TOPO_FILE={} {} bench all_reduce -n 4 -b 8 -e 8 2>&1",
                                          data_file("crossed4.xml"), SLIP_PROGRAM);
  FILE* const pipe = ::popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string said;
  for (int letter = 0; (letter = std::fgetc(pipe)) != EOF;) said += static_cast<char>(letter);
  EXPECT_EQ(::pclose(pipe), 0) << said;
  for (const char* const words : {"ring 0 2 1 3", "2 (GPU 2)", "crossed4.xml"})
    EXPECT_NE(said.find(words), std::string::npos) << said;
}

}  // namespace
}  // namespace slip::test_places
