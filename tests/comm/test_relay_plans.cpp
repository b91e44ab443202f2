// Programs with relays, and with the rings and trees of a topology, as one plan of all ranks, which the checker proves
// as in test_message_plan.cpp.
#include <gtest/gtest.h>

#include <numeric>

#include "comm/link/link.hpp"
#include "comm/placement/comm_graph.hpp"
#include "proof.hpp"
#include "support/share.hpp"

namespace slip::test_relay_plans {
namespace {

using test::proof_of;

void expect_proven(std::span<const comm::RankPrograms> sequence) {
  EXPECT_EQ(proof_of(sequence, comm::WireKind::kRendezvous), "proven") << "rendezvous";
  EXPECT_EQ(proof_of(sequence, comm::WireKind::kBuffered), "proven") << "buffered";
}

comm::CallSpec spec_of(const comm::Schedule& schedule, std::uint64_t bytes, bool in_place) {
  const bool barrier = schedule.kind == comm::Collective::kBarrier;
  const comm::Call call{.kind = schedule.kind,
                        .type = DataType::kU8,
                        .root = comm::has_root(schedule.kind) ? 1 : 0,
                        .elements = barrier ? 0 : bytes};
  return {&schedule, call, in_place && !barrier, 1024};
}

// More destinations for each relay than a link holds messages, hosts of different sizes, and ranks that do not hand
// over.
TEST(RelayPlans, RelaysOfManyHostsAreProven) {
  const int hosts = test::kShare > 1 ? 5 : static_cast<int>(comm::LinkEnd::kDepth) + 3;
  std::vector<int> host_of;
  for (int host = 0; host < hosts; ++host) host_of.insert(host_of.end(), host % 3 == 1 ? 1 : 2, host);
  const auto nranks = static_cast<int>(host_of.size());
  std::vector<int> order(host_of.size());
  std::iota(order.begin(), order.end(), 0);
  comm::CommGraph graph = comm::CommGraph::of(order);
  graph.relays = comm::Relays(host_of);
  const comm::Schedule& schedule = *comm::find_schedule(Algorithm::kRelay, comm::Collective::kAllToAll);
  expect_proven(std::vector<comm::RankPrograms>{comm::rank_programs(spec_of(schedule, 100, false), graph)});
  graph.relays.set_alone(0, nranks - 1);
  expect_proven(std::vector<comm::RankPrograms>{comm::rank_programs(spec_of(schedule, 100, true), graph)});
}

// Receivers that another rank of their host takes for: behind one of them more than a link holds messages.
TEST(RelayPlans, RelaysThatHandOnAreProven) {
  const comm::Schedule& schedule = *comm::find_schedule(Algorithm::kRelay, comm::Collective::kAllToAll);
  const int each = test::kShare > 1 ? 3 : static_cast<int>(comm::LinkEnd::kDepth) + 3;
  for (const auto& [hosts, ranks] : {std::pair{2, 4}, {3, 3}, {2, each}}) {
    std::vector<int> host_of;
    for (int host = 0; host < hosts; ++host) host_of.insert(host_of.end(), static_cast<std::size_t>(ranks), host);
    std::vector<int> order(host_of.size());
    std::iota(order.begin(), order.end(), 0);
    comm::CommGraph graph = comm::CommGraph::of(order);
    graph.relays = comm::Relays(host_of);
    for (int to = 0; to < hosts * ranks; ++to) {
      const int first = to / ranks * ranks;  // of its host; the last two but one take for all but the first
      if (to % ranks > 0) graph.relays.set_arrival(to, first + ranks - 1 - to % 2);
    }
    graph.relays.set_alone(0, ranks + 1);
    for (const bool in_place : {false, true}) {
      SCOPED_TRACE(testing::Message() << hosts << " hosts of " << ranks << (in_place ? ", in place" : ""));
      for (const std::uint64_t bytes : {100U, 3 * 1024U + 7})
        expect_proven(
            std::vector<comm::RankPrograms>(2, comm::rank_programs(spec_of(schedule, bytes, in_place), graph)));
    }
  }
}

// Trees and rings as the search lays them: chains, and trees whose inner ranks are others than those of a ring's.
TEST(FormationPlans, OfATopologyAreProven) {
  for (const auto& [file, nodes] : {std::pair{"crossed4.xml", 1}, {"crossed4.xml", 2}, {"host_memory.xml", 2}}) {
    if (test::kShare > 1 && nodes > 1) continue;  // proofs are of one thread and take long
    const Cluster cluster = cluster_of(read_topology(std::string(SLIP_SOURCE_DIR "/tests/topo/data/") + file), nodes);
    const std::vector<comm::CommGraph> graphs =
        comm::comm_graphs(cluster, plan_channels(cluster, {.max_channels = 2}), 2);
    for (const comm::Schedule& schedule : comm::schedules()) {
      SCOPED_TRACE(testing::Message() << algorithm_name(schedule.algorithm) << " "
                                      << comm::collective_name(schedule.kind) << " of " << file);
      const comm::CallSpec spec = spec_of(schedule, 5 * 1024U + 300, true);
      expect_proven(std::vector<comm::RankPrograms>(
          2, comm::rank_programs(spec, std::span(graphs).first(schedule.by_channels ? 2 : 1))));
    }
  }
}

}  // namespace
}  // namespace slip::test_relay_plans
