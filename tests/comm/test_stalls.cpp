// Which ranks keep others waiting, according to the ledgers.
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "comm/api/call.hpp"
#include "comm/diagnose/stalls.hpp"

namespace slip::test_stalls {
namespace {

constexpr std::uint64_t kX = 0xaaaa1111, kY = 0xbbbb2222;
constexpr std::int64_t kSecond = 1'000'000'000;

// A rank that has ended `ended` calls and is outside.
comm::RankState outside(std::uint64_t communicator, int rank, std::uint64_t ended) {
  comm::RankState sight;
  transport::LedgerView& view = sight.view;
  view.life = transport::LedgerLife::kJoined;
  view.communicator = communicator;
  view.rank = rank;
  view.nranks = 3;
  view.pid = 100 + rank;
  view.enqueued = view.begun = view.ended = ended;
  const comm::Signature signature = comm::Signature::of({.kind = comm::Collective::kAllReduce, .elements = 10}, ended);
  view.call[0] = signature.elements;
  view.call[1] = signature.rest;
  view.ended_ns = 42 * kSecond / 10;
  view.opened_ns = 60 * kSecond;
  sight.process = 'S';
  return sight;
}

comm::RankState waits(std::uint64_t communicator, int rank, std::uint64_t number, int for_rank,
                      std::uint64_t stream = 7) {
  comm::RankState sight = outside(communicator, rank, number);
  sight.view.ended = number - 1;
  sight.view.waits_for = for_rank;
  sight.view.waits_ns = 4 * kSecond;
  sight.view.stream = stream;
  return sight;
}

comm::RankState enqueued(std::uint64_t communicator, int rank, std::uint64_t ended, std::uint64_t stream) {
  comm::RankState sight = outside(communicator, rank, ended);
  sight.view.enqueued = ended + 1;
  sight.view.next_stream = stream;
  return sight;
}

void expect_words(const std::string& text, std::initializer_list<const char*> words) {
  for (const char* word : words) EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
}

TEST(Stalls, NoRankIsReportedWhenAllAreOutsideOrWaitShortly) {
  EXPECT_TRUE(comm::find_stalls({}).empty());
  std::vector<comm::RankState> ranks{outside(kX, 0, 6), outside(kX, 1, 6)};
  EXPECT_TRUE(comm::find_stalls(ranks).empty());
  ranks[0] = waits(kX, 0, 7, 1);
  ranks[0].view.waits_ns = 1'000'000;
  EXPECT_TRUE(comm::find_stalls(ranks).empty());
}

TEST(Stalls, AMissingRankIsNamedWithItsLastCall) {
  const std::vector<comm::RankState> ranks{waits(kX, 0, 7, 2), waits(kX, 1, 7, 2), outside(kX, 2, 6)};
  const std::vector<comm::Stall> found = comm::find_stalls(ranks);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].kind, comm::Stall::Kind::kMissingRank);
  expect_words(found[0].text,
               {"rank 2 of aaaa1111 has not joined all_reduce of 10 F32 by sum, call 7: it ended all_reduce",
                "call 6, 4.2 s ago and is outside Slipstream since", "ranks 0, 1 wait for it, 4.0 s so far"});
}

TEST(Stalls, AStoppedProcessIsNamedAsStopped) {
  std::vector<comm::RankState> ranks{waits(kX, 0, 7, 1), waits(kX, 1, 7, 0)};
  ranks[1].process = 'T';
  ranks[1].view.waits_for = transport::kWaitsForNoRank;  // stopped in the middle of a copy
  const std::vector<comm::Stall> found = comm::find_stalls(ranks);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].kind, comm::Stall::Kind::kStopped);
  expect_words(found[0].text, {"rank 1 of aaaa1111 is waited for in", "is stopped (process 101", "moves data in"});
}

TEST(Stalls, FailedAndDepartedRanksAreNamedWithTheirText) {
  std::vector<comm::RankState> ranks{waits(kX, 0, 7, 1), outside(kX, 1, 6)};
  ranks[1].view.life = transport::LedgerLife::kFailed;
  std::snprintf(ranks[1].view.text, sizeof(ranks[1].view.text), "a kernel threw");
  EXPECT_EQ(comm::find_stalls(ranks).at(0).kind, comm::Stall::Kind::kEnded);
  expect_words(comm::find_stalls(ranks).at(0).text, {"it failed: a kernel threw"});
  ranks[1].view.life = transport::LedgerLife::kLeft;
  expect_words(comm::find_stalls(ranks).at(0).text, {"it has left the communicator after call 6"});
}

TEST(Stalls, ARankThatIsNotSeenIsNamedToo) {
  const std::vector<comm::RankState> ranks{waits(kX, 0, 7, 5)};
  expect_words(comm::find_stalls(ranks).at(0).text, {"for rank 5", "another host"});
}

// Rank 0 enqueued X, then Y; rank 1 Y, then X; each in one stream.
TEST(Stalls, TwoCommunicatorsInAnotherOrderAreADeadlock) {
  const std::vector<comm::RankState> ranks{waits(kX, 0, 1, 1, 7), enqueued(kX, 1, 0, 9), enqueued(kY, 0, 0, 7),
                                           waits(kY, 1, 1, 0, 9)};
  const std::vector<comm::Stall> found = comm::find_stalls(ranks);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].kind, comm::Stall::Kind::kDeadlock);
  expect_words(found[0].text, {"rank 0 of aaaa1111 waits in all_reduce", "for rank 1",
                               "rank 1 of aaaa1111 has that call enqueued in its stream behind its call in bbbb2222",
                               "rank 1 of bbbb2222 waits in", "rank 0 of bbbb2222 has that call enqueued"});
}

TEST(Stalls, InStreamsOfTheirOwnTheyAreNone) {
  const std::vector<comm::RankState> ranks{waits(kX, 0, 1, 1, 7), enqueued(kX, 1, 0, 10), enqueued(kY, 0, 0, 8),
                                           waits(kY, 1, 1, 0, 9)};
  for (const comm::Stall& one : comm::find_stalls(ranks))
    EXPECT_EQ(one.kind, comm::Stall::Kind::kMissingRank) << one.text;
}

// The host threads wait for each call before they make the next one: likely, but not proven.
TEST(Stalls, HostThreadsThatWaitInAnotherOrderAreACircle) {
  std::vector<comm::RankState> ranks{waits(kX, 0, 1, 1), outside(kX, 1, 0), outside(kY, 0, 0), waits(kY, 1, 1, 0)};
  ASSERT_EQ(comm::find_stalls(ranks).size(), 1U);
  EXPECT_EQ(comm::find_stalls(ranks)[0].kind, comm::Stall::Kind::kPossibleDeadlock);
  expect_words(comm::find_stalls(ranks)[0].text,
               {"rank 1 of aaaa1111 has not made that call and is meanwhile in a call of"});
  const auto expect_no_circle = [&] {
    for (const comm::Stall& one : comm::find_stalls(ranks))
      EXPECT_EQ(one.kind, comm::Stall::Kind::kMissingRank) << one.text;
  };
  const int pid = std::exchange(ranks[1].view.pid, 999);  // another process: nothing ties the two together
  expect_no_circle();
  ranks[1].view.pid = pid;  // a process with the same pid in a container of another host
  std::ranges::copy(std::string_view("another"), ranks[1].view.host);
  expect_no_circle();
}

// The ledger counts sends and receives, too: only the number in the signature tells whether a rank has joined.
TEST(Stalls, ARankThatMadeMoreMessagesThanTheWaiterHasNotJoined) {
  std::vector<comm::RankState> ranks{waits(kX, 0, 7, 1), outside(kX, 1, 6)};
  ranks[1].view.enqueued = ranks[1].view.begun = ranks[1].view.ended = 20;
  const std::vector<comm::Stall> found = comm::find_stalls(ranks);
  ASSERT_EQ(found.size(), 1U);
  expect_words(found[0].text, {"rank 1 of aaaa1111 has not joined all_reduce"});
}

// What ranks are at is read one after the other: two in the same call that seem to wait for each other do not.
TEST(Stalls, RanksInTheSameCallAreNoCircle) {
  const std::vector<comm::RankState> ranks{waits(kX, 0, 7, 1), waits(kX, 1, 7, 0)};
  for (const comm::Stall& one : comm::find_stalls(ranks))
    EXPECT_EQ(one.kind, comm::Stall::Kind::kMissingRank) << one.text;
}

// A receiver of a broadcast needs its root only.
TEST(Stalls, WithARootOnlyTheNeededRankIsNamed) {
  std::vector<comm::RankState> ranks{outside(kX, 0, 0), waits(kX, 1, 1, 0), outside(kX, 2, 0)};
  const comm::Signature signature = comm::Signature::of({.kind = comm::Collective::kBroadcast, .elements = 10}, 1);
  ranks[1].view.call[0] = signature.elements;
  ranks[1].view.call[1] = signature.rest;
  const std::vector<comm::Stall> found = comm::find_stalls(ranks);
  ASSERT_EQ(found.size(), 1U);
  expect_words(found[0].text,
               {"rank 0 of aaaa1111 has not joined broadcast", "has made no call since it joined 60.0 s"});
}

}  // namespace
}  // namespace slip::test_stalls
