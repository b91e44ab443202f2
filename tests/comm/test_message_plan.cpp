// The programs of messages of all ranks as one plan, which the checker proves: no two ops touch the same bytes at the
// same time, whatever the links hold back, and no ranks wait in a cycle, even if links hold nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>

#include "comm/link/link.hpp"
#include "proof.hpp"
#include "support/share.hpp"

namespace slip::test_message_plan {
namespace {

using Kind = comm::Primitive::Kind;
using test::proof_of;

constexpr std::uint64_t kChunk = 1024;  // small, so that plans are

// A ring that is not in the order of the ranks: even ones are of one host, odd ones of another.
comm::CommGraph comm_graph(int nranks) {
  std::vector<int> order, hosts;
  for (int rank = 0; rank < nranks; ++rank) hosts.push_back(rank % 2);
  for (int rank = 0; rank < nranks; rank += 2) order.push_back(rank);
  for (int rank = 1; rank < nranks; rank += 2) order.push_back(rank);
  comm::CommGraph graph = comm::CommGraph::of(order);
  graph.relays = comm::Relays(hosts);
  return graph;
}

void expect_proven(std::span<const comm::RankPrograms> sequence) {
  EXPECT_EQ(proof_of(sequence, comm::WireKind::kRendezvous), "proven") << "rendezvous";
  EXPECT_EQ(proof_of(sequence, comm::WireKind::kBuffered), "proven") << "buffered";
}

std::string schedule_name(const comm::Schedule& schedule) {
  return std::string(algorithm_name(schedule.algorithm)) + "_" + comm::collective_name(schedule.kind);
}

comm::CallSpec spec_of(const comm::Schedule& schedule, std::uint64_t bytes, int root, bool in_place, bool scales,
                       std::uint64_t chunk = kChunk) {
  return {&schedule,
          {.kind = schedule.kind,
           .type = DataType::kU8,
           .op = scales ? ReduceOp::kPreMulSum : ReduceOp::kSum,
           .root = root,
           .elements = schedule.kind == comm::Collective::kBarrier ? 0 : bytes},
          in_place,
          chunk};
}

class MessagePlans : public testing::TestWithParam<comm::Schedule> {};

void each_variant(const comm::Schedule& schedule, int nranks, const std::function<void(int, bool, bool)>& body) {
  for (const int root : {0, nranks - 1}) {
    if (root > 0 && !comm::has_root(schedule.kind)) continue;
    for (const bool in_place : {false, true}) {
      if (in_place && schedule.kind == comm::Collective::kBarrier) continue;
      for (const bool scales : {false, true}) {
        if (scales && !comm::reduces(schedule.kind)) continue;
        SCOPED_TRACE(testing::Message() << nranks << " ranks, root " << root << (in_place ? ", in place" : "")
                                        << (scales ? ", scaled" : ""));
        body(root, in_place, scales);
      }
    }
  }
}

// Proofs are of one thread and take long: the sanitizers see the smallest.
std::vector<int> rank_counts(std::vector<int> all) {
  if (test::kShare > 1) all.resize(1);
  return all;
}

// Twice, so that scratch memory is met by the next call.
TEST_P(MessagePlans, AreProven) {
  for (const int nranks : rank_counts({2, 3, 4, 5, 8})) {
    const comm::CommGraph graph = comm_graph(nranks);
    each_variant(GetParam(), nranks, [&](int root, bool in_place, bool scales) {
      for (const std::uint64_t bytes : {1U, 100U, 1024U, 2 * 1024U + 7, 5 * 1024U + 300}) {  // 0 is a barrier
        SCOPED_TRACE(testing::Message() << bytes << " bytes");
        expect_proven(std::vector<comm::RankPrograms>(
            2, comm::rank_programs(spec_of(GetParam(), bytes, root, in_place, scales), graph)));
      }
    });
  }
}

// Large enough that slices of a ring go in parts.
TEST_P(MessagePlans, OfSeveralPartsAreProven) {
  for (const int nranks : rank_counts({2, 3, 5})) {
    const comm::CommGraph graph = comm_graph(nranks);
    each_variant(GetParam(), nranks, [&](int root, bool in_place, bool scales) {
      const comm::CallSpec spec = spec_of(GetParam(), 700'000, root, in_place, scales, 128 << 10);
      expect_proven(std::vector<comm::RankPrograms>(2, comm::rank_programs(spec, graph)));
    });
  }
}

// Programs begin messages without asking how many a link holds; they wait for room then, and must not do so in a
// cycle.
TEST_P(MessagePlans, OfMoreChunksThanALinkHoldsAreProven) {
  for (const int nranks : rank_counts({2, 3, 5})) {
    const comm::CommGraph graph = comm_graph(nranks);
    const comm::CallSpec spec = spec_of(GetParam(), 3 * comm::LinkEnd::kDepth * 64 * 2, 0, true, false, 64);
    expect_proven(std::vector<comm::RankPrograms>(2, comm::rank_programs(spec, graph)));
  }
}

INSTANTIATE_TEST_SUITE_P(Every, MessagePlans, testing::ValuesIn(comm::schedules()),
                         [](const auto& of) { return schedule_name(of.param); });

// Side by side in the same memory, each with its share; the last one often has none.
TEST_P(MessagePlans, OfSeveralChannelsAreProven) {
  if (!GetParam().by_channels) GTEST_SKIP() << "has one channel";
  for (const int nranks : rank_counts({2, 4, 5})) {
    std::vector<comm::CommGraph> graphs(3, comm_graph(nranks));
    std::vector<int> other = graphs[0].order;
    std::reverse(other.begin(), other.end());
    graphs[1] = comm::CommGraph::of(other);
    std::rotate(other.begin(), other.begin() + 1, other.end());
    graphs[2] = comm::CommGraph::of(other);
    each_variant(GetParam(), nranks, [&](int root, bool in_place, bool scales) {
      for (const std::uint64_t bytes : {1U, 100U, 5 * 1024U + 300}) {
        SCOPED_TRACE(testing::Message() << bytes << " bytes");
        const comm::CallSpec spec = spec_of(GetParam(), bytes, root, in_place, scales);
        // Behind a call of one channel, whose memory all of them may use.
        expect_proven(std::vector<comm::RankPrograms>{comm::rank_programs(spec, graphs[0]),
                                                      comm::rank_programs(spec, graphs),
                                                      comm::rank_programs(spec, graphs)});
      }
    });
  }
}

// Shares of channels that overlap would be a race: the proof is of something.
TEST(MessagePlanOf, ChannelsThatShareBytesAreFound) {
  const comm::Schedule& schedule = *comm::find_schedule(Algorithm::kRing, comm::Collective::kAllGather);
  const comm::CommGraph graph = comm_graph(3);
  const comm::CallSpec spec = spec_of(schedule, 1000, 0, false, false);
  comm::RankPrograms programs = comm::rank_programs(spec, graph);
  programs.channels = 2;  // both move all of it
  const std::vector<comm::Program> again = programs.by_rank;
  programs.by_rank.insert(programs.by_rank.end(), again.begin(), again.end());
  EXPECT_TRUE(proof_of({&programs, 1}, comm::WireKind::kBuffered).starts_with("race"));
}

TEST(MessagePlanOf, SharesOfChannelsAreLinesAndAllOfIt) {
  for (const std::uint64_t bytes : {0U, 1U, 64U, 65U, 1000U, 123'457U}) {
    for (const int channels : {1, 2, 3, 32}) {
      std::uint64_t end = 0;
      for (int channel = 0; channel < channels; ++channel) {
        comm::Task task{.call = {.kind = comm::Collective::kAllReduce, .type = DataType::kU8, .elements = bytes}};
        task.channel = channel;
        task.channels = channels;
        const comm::Task::Span share = task.share();
        EXPECT_EQ(share.begin, end);
        EXPECT_TRUE(share.bytes == 0 || share.begin % 64 == 0) << share.begin;
        end = share.end();
      }
      EXPECT_EQ(end, bytes) << channels << " channels";
    }
  }
}

TEST(MessagePlanOf, CallsOfAllKindsOneAfterTheOther) {
  const comm::CommGraph graph = comm_graph(4);
  std::vector<comm::RankPrograms> sequence;
  for (const std::uint64_t bytes : {40U, 3000U}) {
    for (const comm::Schedule& schedule : comm::schedules())
      sequence.push_back(
          comm::rank_programs(spec_of(schedule, bytes, 1, bytes > 40, comm::reduces(schedule.kind)), graph));
  }
  std::shuffle(sequence.begin(), sequence.end(), std::mt19937(7));
  expect_proven(sequence);
}

// How many messages of its link each wait of a program waits for; of other steps 0.
std::vector<std::uint64_t> awaited(const comm::Program& program) {
  std::vector<std::uint64_t> result;
  std::map<std::pair<bool, std::uint64_t>, std::uint64_t> begun;
  for (const comm::Primitive& step : program.steps) {
    const bool out = step.kind == Kind::kSend || step.kind == Kind::kSent;
    std::uint64_t& count = begun[{out, step.peer}];
    if (step.kind == Kind::kSend || step.kind == Kind::kReceive) ++count;
    const bool waits = step.kind == Kind::kSent || step.kind == Kind::kReceived;
    result.push_back(waits && count > step.value ? count - step.value : 0);
  }
  return result;
}

bool same_link(const comm::Primitive& a, const comm::Primitive& b) { return a.kind == b.kind && a.peer == b.peer; }

// Takes out waits for what was waited for before: they do nothing.
void drop_repeated(comm::Program& program) {
  std::vector<comm::Primitive> kept;
  std::map<std::pair<Kind, std::uint64_t>, std::uint64_t> reached;
  const std::vector<std::uint64_t> counts = awaited(program);
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const comm::Primitive& step = program.steps[i];
    if (step.kind == Kind::kSent || step.kind == Kind::kReceived) {
      std::uint64_t& max = reached[{step.kind, step.peer}];
      if (counts[i] <= max) continue;
      max = counts[i];
    }
    kept.push_back(step);
  }
  program.steps = kept;
}

struct Without {
  const comm::Schedule& schedule;
  int nranks;
  bool in_place, scales;
};

// Of the waits of a program: how many races show without one of them, and how many do not, because a later wait of the
// same link comes before the bytes are touched again. These keep ranks in step, and no more. Nothing else may be.
struct Waits {
  int needed = 0, pacing = 0;
};

Waits leave_out_each(const Without& how) {
  const comm::CommGraph graph = comm_graph(how.nranks);
  SCOPED_TRACE(schedule_name(how.schedule) + (how.in_place ? " in place" : "") + (how.scales ? " scaled" : ""));
  const comm::CallSpec spec = spec_of(how.schedule, 3 * 1024 + 300, 0, how.in_place, how.scales);
  std::vector<comm::RankPrograms> whole(2, comm::rank_programs(spec, graph));
  Waits result;
  for (std::size_t rank = 0; rank < whole[0].by_rank.size(); ++rank) {
    drop_repeated(whole[0].by_rank[rank]);
    const std::vector<comm::Primitive>& steps = whole[0].by_rank[rank].steps;
    const std::vector<std::uint64_t> counts = awaited(whole[0].by_rank[rank]);
    for (std::size_t step = 0; step < steps.size(); ++step) {
      if (counts[step] == 0) continue;
      std::vector<comm::RankPrograms> cut = whole;
      std::vector<comm::Primitive>& others = cut[0].by_rank[rank].steps;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(step));
      const std::string proof = proof_of(cut, comm::WireKind::kBuffered);
      if (proof.starts_with("race")) {
        ++result.needed;
        continue;
      }
      bool later = false;
      for (std::size_t i = step + 1; i < steps.size(); ++i)
        later = later || (same_link(steps[i], steps[step]) && counts[i] >= counts[step]);
      EXPECT_TRUE(later) << "rank " << rank << " step " << step << " of " << steps.size() << ": "
                         << (steps[step].kind == Kind::kSent ? "sent to " : "received from ") << steps[step].peer
                         << " but " << steps[step].value << ": " << proof.substr(0, 200);
      ++result.pacing;
    }
  }
  return result;
}

TEST(MessagePlanOf, AWaitLeftOutIsFound) {
  for (const comm::Schedule& schedule : comm::schedules()) {
    if (schedule.kind == comm::Collective::kBarrier) continue;  // has no bytes
    const bool by_levels = schedule.algorithm == Algorithm::kTree || schedule.algorithm == Algorithm::kDoubling ||
                           schedule.algorithm == Algorithm::kRelay;
    for (const bool in_place : {false, true}) {
      for (const bool scales : {false, true}) {
        if (scales && !comm::reduces(schedule.kind)) continue;
        const Waits waits = leave_out_each({schedule, by_levels ? 4 : 3, in_place, scales});
        EXPECT_GT(waits.needed, 0) << schedule_name(schedule);
        RecordProperty(schedule_name(schedule) + (in_place ? "_in_place" : "") + (scales ? "_scaled" : ""),
                       std::to_string(waits.needed) + " needed, " + std::to_string(waits.pacing) + " for pace");
      }
    }
  }
}

// A group of each rank: messages between two ranks in the same order on both sides, else any.
std::vector<std::vector<comm::UserMessage>> random_groups(int nranks, int messages, std::uint64_t max_bytes,
                                                          std::mt19937& random) {
  std::vector<std::vector<comm::UserMessage>> groups(static_cast<std::size_t>(nranks));
  std::vector<std::uint64_t> used(groups.size(), 0);
  const auto add = [&](std::size_t rank, bool out, std::size_t other, std::uint64_t bytes) {
    groups[rank].push_back({out, static_cast<int>(other), reinterpret_cast<std::byte*>(used[rank]), bytes});
    used[rank] += bytes;
  };
  for (int i = 0; i < messages; ++i) {
    const std::size_t from = random() % groups.size();
    const std::size_t to = (from + 1 + random() % (groups.size() - 1)) % groups.size();
    const std::uint64_t bytes = random() % 4 == 0 ? 0 : random() % max_bytes;
    add(from, true, to, bytes);
    add(to, false, from, bytes);
  }
  for (std::vector<comm::UserMessage>& group : groups) {
    std::vector<comm::UserMessage> mixed = group;
    std::shuffle(mixed.begin(), mixed.end(), random);
    std::map<std::pair<bool, int>, std::vector<comm::UserMessage>> in_order;
    for (auto parcel = group.rbegin(); parcel != group.rend(); ++parcel)
      in_order[{parcel->out, parcel->rank}].push_back(*parcel);
    for (comm::UserMessage& parcel : mixed) {
      std::vector<comm::UserMessage>& left = in_order[{parcel.out, parcel.rank}];
      parcel = left.back();
      left.pop_back();
    }
    group = mixed;
  }
  return groups;
}

// The programs of sends and receives. `messages`: by rank; their addresses are offsets into memory of the rank.
comm::RankPrograms message_programs(std::span<const std::vector<comm::UserMessage>> messages) {
  comm::RankPrograms programs;
  programs.call = {.kind = comm::Collective::kMessage, .type = DataType::kU8};
  for (const std::vector<comm::UserMessage>& own : messages) {
    const comm::MessageProgramBuilder builder(own);
    comm::Program& program = programs.by_rank.emplace_back();
    for (std::uint64_t piece = 0; piece < builder.pieces(0); ++piece) builder.write(0, piece, program);
  }
  return programs;
}

TEST(MessagePlanOf, GroupsOfSendsAndReceivesAreProven) {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    const int nranks = 2 + static_cast<int>(random() % 4), messages = 1 + static_cast<int>(random() % 60);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << nranks << " ranks, " << messages << " messages");
    std::vector<comm::RankPrograms> sequence;
    for (int call = 0; call < 2; ++call)
      sequence.push_back(message_programs(random_groups(nranks, messages, seed % 4 == 0 ? 3'000'000 : 3000, random)));
    sequence.push_back(comm::rank_programs(
        spec_of(*comm::find_schedule(Algorithm::kRing, comm::Collective::kAllReduce), 5000, 0, true, false),
        comm_graph(nranks)));
    expect_proven(sequence);
  }
}

// Both ways between two ranks, more than a link holds.
TEST(MessagePlanOf, GroupsOfMoreThanALinkHoldsAreProven) {
  for (const std::uint64_t count : {comm::LinkEnd::kDepth, comm::LinkEnd::kDepth + 1, 3 * comm::LinkEnd::kDepth + 5}) {
    std::vector<std::vector<comm::UserMessage>> groups(2);
    for (std::uint64_t i = 0; i < count; ++i) {
      for (const bool out : {true, false}) {
        auto* const place = reinterpret_cast<std::byte*>((2 * i + (out ? 1 : 0)) * 100);
        groups[0].push_back({out, 1, place, 100});
        groups[1].push_back({!out, 0, place, 100});
      }
    }
    expect_proven(std::vector<comm::RankPrograms>{message_programs(groups), message_programs(groups)});
  }
}

// What the checker must see: ranks that each wait for the other to receive first.
TEST(MessagePlanOf, ACircleIsFound) {
  comm::RankPrograms programs;
  programs.call = {.kind = comm::Collective::kMessage, .type = DataType::kU8};
  for (const int other : {1, 0}) {
    comm::Program& program = programs.by_rank.emplace_back();
    program.send(other, {comm::BufferSpace::kAddress, 0, 0}, 8);
    program.sent(other);
    program.receive(other, {comm::BufferSpace::kAddress, 0, 8}, 8);
    program.received(other);
  }
  EXPECT_TRUE(proof_of({&programs, 1}, comm::WireKind::kRendezvous).starts_with("deadlock"));
  EXPECT_EQ(proof_of({&programs, 1}, comm::WireKind::kBuffered), "proven");  // a link that holds a message is enough
}

}  // namespace
}  // namespace slip::test_message_plan
