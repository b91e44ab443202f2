// The programs of all ranks as one plan: each rank is a stream, what they share are buffers, posts and phases are
// words. The checker proves that no two ranks touch the same bytes at the same time, and that they do not wait in a
// circle.
#include <gtest/gtest.h>

#include "proof.hpp"

namespace slip {
namespace {

using Layout = StagingLayout;

void expect_proven(const std::vector<Call>& calls, int nranks, const Reachable& reachable = {}) {
  EXPECT_EQ(test::proof_of(host_rank_programs(calls, nranks, reachable), WireKind::kRendezvous), "proven");
}

// Without one of its waits each of these ranks' programs races. Returns how many waits there are.
int expect_all_waits_needed(const std::vector<RankPrograms>& whole, std::size_t rank) {
  EXPECT_EQ(test::proof_of(whole, WireKind::kRendezvous), "proven");
  int found = 0;
  for (std::size_t call = 0; call < whole.size(); ++call) {
    const std::vector<Primitive>& steps = whole[call].by_rank[rank].steps;
    for (std::size_t step = 0; step < steps.size(); ++step) {
      const bool waits = steps[step].kind == Primitive::Kind::kMeet || steps[step].kind == Primitive::Kind::kWait;
      if (!waits) continue;
      std::vector<RankPrograms> cut = whole;
      std::vector<Primitive>& others = cut[call].by_rank[rank].steps;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(step));
      EXPECT_TRUE(test::proof_of(cut, WireKind::kRendezvous).starts_with("race"))
          << "rank " << rank << " of " << whole[call].by_rank.size() << ", call " << call << ", step " << step;
      ++found;
    }
  }
  return found;
}

constexpr Collective kAll[] = {Collective::kAllReduce,     Collective::kReduce,   Collective::kBroadcast,
                               Collective::kAllGather,     Collective::kAllToAll, Collective::kGather,
                               Collective::kReduceScatter, Collective::kScatter,  Collective::kBarrier};

Call call_of(Collective kind, std::uint64_t bytes) {
  return {.kind = kind, .type = DataType::kU8, .root = 1, .elements = kind == Collective::kBarrier ? 0 : bytes};
}

class SharedPlans : public testing::TestWithParam<Collective> {};

// Twice, so that what one call leaves behind is met by the next; of one, two and several chunks.
TEST_P(SharedPlans, NoTwoRanksAreInEachOthersWay) {
  for (const int nranks : {2, 3, 4}) {
    for (const std::uint64_t bytes : {100U, 5000U, 300'000U, 1'100'000U, 2'700'001U}) {
      SCOPED_TRACE(testing::Message() << nranks << " ranks, " << bytes << " bytes");
      expect_proven(std::vector<Call>(3, call_of(GetParam(), bytes)), nranks);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, SharedPlans, testing::ValuesIn(kAll),
                         [](const auto& of) { return std::string(collective_name(of.param)); });

// Slots and boxes go round: more calls than there are, of kinds in which somebody gives and waits for nobody.
TEST_P(SharedPlans, BoxesAreUsedAgainOnlyWhenEmpty) {
  for (const std::uint64_t bytes : {30U, 5000U}) {
    SCOPED_TRACE(testing::Message() << bytes << " bytes");
    expect_proven(std::vector<Call>(3 * Layout::kTurns, call_of(GetParam(), bytes)), 3);
  }
}

TEST(SharedPlanOf, CallsOfAllKindsOneAfterTheOther) {
  std::vector<Call> calls;
  for (const std::uint64_t bytes : {40U, 700'000U, 9000U, 1'600'000U}) {
    for (const Collective kind : kAll) calls.push_back(call_of(kind, bytes));
  }
  expect_proven(calls, 3);
}

// Roots that change, and that do not: who gives may be ahead of who takes.
TEST(SharedPlanOf, BroadcastsFromSeveralRoots) {
  std::vector<Call> calls;
  for (const std::uint64_t bytes : {40'000U, 700'000U, 100U, 1'700'000U, 40'000U}) {
    for (const int root : {0, 0, 1, 2, 2, 0}) {
      calls.push_back(call_of(Collective::kBroadcast, bytes));
      calls.back().root = root;
    }
    calls.push_back(call_of(Collective::kAllReduce, bytes));
  }
  expect_proven(calls, 3);
}

// The checker sees what it should: without one of its waits a program of several chunks races.
TEST(SharedPlanOf, AWaitLeftOutIsFound) {
  const std::vector<Call> calls(2, call_of(Collective::kAllReduce, 2'100'000));
  EXPECT_GT(expect_all_waits_needed(host_rank_programs(calls, 2), 0), 8);
}

// A root that waits for nobody would write what others still read.
TEST(SharedPlanOf, RoomLeftOutIsFound) {
  for (const std::uint64_t bytes : {5000U, 40'000U}) {
    const std::vector<Call> calls(3 * Layout::kTurns, call_of(Collective::kBroadcast, bytes));
    std::vector<RankPrograms> sequence = host_rank_programs(calls, 3);
    EXPECT_EQ(test::proof_of(sequence, WireKind::kRendezvous), "proven");
    for (RankPrograms& programs : sequence) {
      for (Program& program : programs.by_rank)
        std::erase_if(program.steps, [](const Primitive& step) { return step.kind == Primitive::Kind::kRoom; });
    }
    EXPECT_TRUE(test::proof_of(sequence, WireKind::kRendezvous).starts_with("race")) << bytes << " bytes";
  }
}

// Where buffers lie: all offered, of some ranks only, in place and not.
TEST_P(SharedPlans, BuffersInReachAreNotInEachOthersWay) {
  const Collective kind = GetParam();
  const Reachable all[] = {{[](std::size_t, int) { return true; }, false},
                           {[](std::size_t, int) { return true; }, true},
                           {[](std::size_t, int rank) { return rank != 1; }, false},
                           {[](std::size_t, int rank) { return rank == 1; }, true}};
  for (const int nranks : {2, 3, 4}) {
    for (const std::uint64_t bytes : {100U, 30'000U, 1'100'001U}) {
      for (const Reachable& one : all) {
        SCOPED_TRACE(testing::Message() << nranks << " ranks, " << bytes << " bytes, offered by 0: " << one.offers(0, 0)
                                        << ", by 1: " << one.offers(0, 1) << ", in place " << one.in_place);
        const std::vector<Call> calls(3, call_of(kind, bytes));
        expect_proven(calls, nranks, one);
        const bool enough =
            DirectProgramBuilder::from_root(kind) ? one.offers(0, 1) : one.offers(0, 0) && one.offers(0, 1);
        const bool possible = kind != Collective::kBarrier && !(one.in_place && kind == Collective::kAllToAll);
        EXPECT_EQ(host_rank_programs(calls, nranks, one).back().direct, enough && possible && bytes > 100);
      }
    }
  }
}

TEST(SharedPlanOf, CallsOfBothWaysOneAfterTheOther) {
  std::vector<Call> calls;
  for (const std::uint64_t bytes : {700'000U, 40U, 1'600'000U, 9000U}) {
    for (const Collective kind : kAll) calls.push_back(call_of(kind, bytes));
  }
  // Some ranks, all or none, changing from call to call.
  const auto offers = [](std::size_t call, int rank) { return (call * 5 + static_cast<std::size_t>(rank)) % 4 != 0; };
  for (const bool in_place : {false, true}) expect_proven(calls, 3, {offers, in_place});
}

// Each wait of a call that is done where buffers lie keeps somebody's buffer from being used too early. (In gather,
// ranks that do not touch each other's wait, too, to know the same.)
TEST_P(SharedPlans, AWaitForABufferLeftOutIsFound) {
  if (GetParam() == Collective::kBarrier || GetParam() == Collective::kGather) return;
  const std::vector<Call> calls(2, call_of(GetParam(), 100'000));
  for (const int nranks : {2, 3}) {
    const std::vector<RankPrograms> whole =
        host_rank_programs(calls, nranks, {[](std::size_t, int) { return true; }, false});
    ASSERT_TRUE(whole.back().direct);
    for (int rank = 0; rank < nranks; ++rank)
      EXPECT_GE(expect_all_waits_needed(whole, static_cast<std::size_t>(rank)), 2);
  }
}

}  // namespace
}  // namespace slip
