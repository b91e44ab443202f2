// The programs of all ranks as one plan: each rank is a stream, what they share are buffers, posts and phases are
// words. The checker proves that no two ranks touch the same bytes at the same time, and that they do not wait in a
// cycle.
#include <gtest/gtest.h>

#include "proof.hpp"

namespace slip::test_shared_plan {
namespace {

using Layout = comm::StagingLayout;

void expect_proven(const std::vector<comm::Call>& calls, int nranks, const comm::Reachable& reachable = {}) {
  EXPECT_EQ(test::proof_of(comm::host_rank_programs(calls, nranks, reachable), comm::WireKind::kRendezvous), "proven");
}

// Without one of its waits each of these ranks' programs races. Returns how many waits there are.
int expect_all_waits_needed(const std::vector<comm::RankPrograms>& whole, std::size_t rank) {
  EXPECT_EQ(test::proof_of(whole, comm::WireKind::kRendezvous), "proven");
  int found = 0;
  for (std::size_t call = 0; call < whole.size(); ++call) {
    const std::vector<comm::Primitive>& steps = whole[call].by_rank[rank].steps;
    for (std::size_t step = 0; step < steps.size(); ++step) {
      const bool waits =
          steps[step].kind == comm::Primitive::Kind::kMeet || steps[step].kind == comm::Primitive::Kind::kWait;
      if (!waits) continue;
      std::vector<comm::RankPrograms> cut = whole;
      std::vector<comm::Primitive>& others = cut[call].by_rank[rank].steps;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(step));
      EXPECT_TRUE(test::proof_of(cut, comm::WireKind::kRendezvous).starts_with("race"))
          << "rank " << rank << " of " << whole[call].by_rank.size() << ", call " << call << ", step " << step;
      ++found;
    }
  }
  return found;
}

constexpr comm::Collective kAll[] = {
    comm::Collective::kAllReduce,     comm::Collective::kReduce,   comm::Collective::kBroadcast,
    comm::Collective::kAllGather,     comm::Collective::kAllToAll, comm::Collective::kGather,
    comm::Collective::kReduceScatter, comm::Collective::kScatter,  comm::Collective::kBarrier};

comm::Call call_of(comm::Collective kind, std::uint64_t bytes) {
  return {.kind = kind, .type = DataType::kU8, .root = 1, .elements = kind == comm::Collective::kBarrier ? 0 : bytes};
}

class SharedPlans : public testing::TestWithParam<comm::Collective> {};

// Twice, so that what one call leaves behind is met by the next; of one, two and several chunks.
TEST_P(SharedPlans, NoTwoRanksAreInEachOthersWay) {
  for (const int nranks : {2, 3, 4}) {
    for (const std::uint64_t bytes : {100U, 5000U, 300'000U, 1'100'000U, 2'700'001U}) {
      SCOPED_TRACE(testing::Message() << nranks << " ranks, " << bytes << " bytes");
      expect_proven(std::vector<comm::Call>(3, call_of(GetParam(), bytes)), nranks);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, SharedPlans, testing::ValuesIn(kAll),
                         [](const auto& of) { return std::string(comm::collective_name(of.param)); });

// Slots and boxes go round: more calls than there are, of kinds in which somebody gives and waits for nobody.
TEST_P(SharedPlans, BoxesAreUsedAgainOnlyWhenEmpty) {
  for (const std::uint64_t bytes : {30U, 5000U}) {
    SCOPED_TRACE(testing::Message() << bytes << " bytes");
    expect_proven(std::vector<comm::Call>(3 * Layout::kTurns, call_of(GetParam(), bytes)), 3);
  }
}

TEST(SharedPlanOf, CallsOfAllKindsOneAfterTheOther) {
  std::vector<comm::Call> calls;
  for (const std::uint64_t bytes : {40U, 700'000U, 9000U, 1'600'000U}) {
    for (const comm::Collective kind : kAll) calls.push_back(call_of(kind, bytes));
  }
  expect_proven(calls, 3);
}

// Roots that change, and that do not: the sender may be ahead of the receiver.
TEST(SharedPlanOf, BroadcastsFromSeveralRoots) {
  std::vector<comm::Call> calls;
  for (const std::uint64_t bytes : {40'000U, 700'000U, 100U, 1'700'000U, 40'000U}) {
    for (const int root : {0, 0, 1, 2, 2, 0}) {
      calls.push_back(call_of(comm::Collective::kBroadcast, bytes));
      calls.back().root = root;
    }
    calls.push_back(call_of(comm::Collective::kAllReduce, bytes));
  }
  expect_proven(calls, 3);
}

// The checker sees what it should: without one of its waits a program of several chunks races.
TEST(SharedPlanOf, AWaitLeftOutIsFound) {
  const std::vector<comm::Call> calls(2, call_of(comm::Collective::kAllReduce, 2'100'000));
  EXPECT_GT(expect_all_waits_needed(comm::host_rank_programs(calls, 2), 0), 8);
}

// A root that waits for nobody would write what others still read.
TEST(SharedPlanOf, RoomLeftOutIsFound) {
  for (const std::uint64_t bytes : {5000U, 40'000U}) {
    const std::vector<comm::Call> calls(3 * Layout::kTurns, call_of(comm::Collective::kBroadcast, bytes));
    std::vector<comm::RankPrograms> sequence = comm::host_rank_programs(calls, 3);
    EXPECT_EQ(test::proof_of(sequence, comm::WireKind::kRendezvous), "proven");
    for (comm::RankPrograms& programs : sequence) {
      for (comm::Program& program : programs.by_rank)
        std::erase_if(program.steps,
                      [](const comm::Primitive& step) { return step.kind == comm::Primitive::Kind::kRoom; });
    }
    EXPECT_TRUE(test::proof_of(sequence, comm::WireKind::kRendezvous).starts_with("race")) << bytes << " bytes";
  }
}

// Where buffers lie: all offered, of some ranks only, in place and not.
TEST_P(SharedPlans, BuffersInReachAreNotInEachOthersWay) {
  const comm::Collective kind = GetParam();
  const comm::Reachable all[] = {{[](std::size_t, int) { return true; }, false},
                                 {[](std::size_t, int) { return true; }, true},
                                 {[](std::size_t, int rank) { return rank != 1; }, false},
                                 {[](std::size_t, int rank) { return rank == 1; }, true}};
  for (const int nranks : {2, 3, 4}) {
    for (const std::uint64_t bytes : {100U, 30'000U, 1'100'001U}) {
      for (const comm::Reachable& one : all) {
        SCOPED_TRACE(testing::Message() << nranks << " ranks, " << bytes << " bytes, offered by 0: " << one.offers(0, 0)
                                        << ", by 1: " << one.offers(0, 1) << ", in place " << one.in_place);
        const std::vector<comm::Call> calls(3, call_of(kind, bytes));
        expect_proven(calls, nranks, one);
        const bool enough =
            comm::DirectProgramBuilder::from_root(kind) ? one.offers(0, 1) : one.offers(0, 0) && one.offers(0, 1);
        const bool possible =
            kind != comm::Collective::kBarrier && !(one.in_place && kind == comm::Collective::kAllToAll);
        EXPECT_EQ(comm::host_rank_programs(calls, nranks, one).back().direct, enough && possible && bytes > 100);
      }
    }
  }
}

// The kernel copies from the buffers of all ranks, of some, or refuses to.
TEST_P(SharedPlans, BuffersThatTheKernelReadsAreNotInEachOthersWay) {
  const auto all = [](std::size_t, int) { return true; };
  const comm::Reachable ways[] = {{all, false, true},
                                  {all, true, true},
                                  {all, false, true, true},
                                  {all, true, true, true},
                                  {[](std::size_t, int rank) { return rank == 1; }, false, true},
                                  {[](std::size_t call, int rank) { return call % 2 == 0 || rank != 1; }, true, true}};
  for (const int nranks : {2, 3, 4}) {
    for (const std::uint64_t bytes : {100U, 3000U, 8192U, 30'000U, 1'100'001U}) {
      for (const comm::Reachable& one : ways) {
        SCOPED_TRACE(testing::Message() << nranks << " ranks, " << bytes << " bytes, in place " << one.in_place
                                        << ", refused " << one.refused);
        expect_proven(std::vector<comm::Call>(3, call_of(GetParam(), bytes)), nranks, one);
      }
    }
  }
}

// Each wait of a call in which the kernel reads is needed. (In a broadcast and a scatter some ranks wait only to know
// whether a peer was refused.)
TEST(SharedPlanOf, AWaitForAReadLeftOutIsFound) {
  for (const comm::Collective kind : {comm::Collective::kAllGather, comm::Collective::kAllToAll}) {
    const std::vector<comm::Call> calls(2, call_of(kind, 100'000));
    const std::vector<comm::RankPrograms> whole =
        comm::host_rank_programs(calls, 2, {[](std::size_t, int) { return true; }, false, true});
    ASSERT_TRUE(whole.back().direct);
    for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_GE(expect_all_waits_needed(whole, rank), 4);
  }
}

TEST(SharedPlanOf, CallsOfBothWaysOneAfterTheOther) {
  std::vector<comm::Call> calls;
  for (const std::uint64_t bytes : {700'000U, 40U, 1'600'000U, 9000U}) {
    for (const comm::Collective kind : kAll) calls.push_back(call_of(kind, bytes));
  }
  // Some ranks, all or none, changing from call to call.
  const auto offers = [](std::size_t call, int rank) { return (call * 5 + static_cast<std::size_t>(rank)) % 4 != 0; };
  for (const bool in_place : {false, true}) {
    for (const bool by_kernel : {false, true}) expect_proven(calls, 3, {offers, in_place, by_kernel});
  }
}

// Each wait of a call that is done where buffers lie keeps somebody's buffer from being used too early. (In gather,
// ranks that do not touch each other's wait, too, to know the same.)
TEST_P(SharedPlans, AWaitForABufferLeftOutIsFound) {
  if (GetParam() == comm::Collective::kBarrier || GetParam() == comm::Collective::kGather) return;
  const std::vector<comm::Call> calls(2, call_of(GetParam(), 100'000));
  for (const int nranks : {2, 3}) {
    const std::vector<comm::RankPrograms> whole =
        comm::host_rank_programs(calls, nranks, {[](std::size_t, int) { return true; }, false});
    ASSERT_TRUE(whole.back().direct);
    for (int rank = 0; rank < nranks; ++rank)
      EXPECT_GE(expect_all_waits_needed(whole, static_cast<std::size_t>(rank)), 2);
  }
}

}  // namespace
}  // namespace slip::test_shared_plan
