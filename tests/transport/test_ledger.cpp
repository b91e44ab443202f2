// The ledger: readers in this process and in others get consistent entries, also while they change.
#include <thread>

#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "support/share.hpp"
#include "transport/ledger/ledger.hpp"

namespace slip::test::test_ledger {
namespace {

std::optional<transport::LedgerView> find(const std::optional<transport::ProcessLedger>& ledger,
                                          std::uint64_t communicator, int rank) {
  if (!ledger) return std::nullopt;
  for (const transport::LedgerView& view : ledger->ranks) {
    if (view.communicator == communicator && view.rank == rank) return view;
  }
  return std::nullopt;
}

TEST(Ledgers, AreFoundByTheNumberOfTheProcess) {
  transport::LedgerSlot slot({0xfeed, 3, 8, "cpu:1"});
  slot.enqueue(1, 77, 64);
  slot.enqueue(2, 78, 64);
  slot.begin(1, 5, 6);
  const std::optional<transport::LedgerView> found = find(transport::read_ledger(::getpid()), 0xfeed, 3);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->nranks, 8);
  EXPECT_EQ(found->pid, ::getpid());
  EXPECT_STREQ(found->device, "cpu:1");
  EXPECT_EQ(found->life, transport::LedgerLife::kJoined);
  EXPECT_EQ(found->enqueued, 2U);
  EXPECT_EQ(found->begun, 1U);
  EXPECT_EQ(found->ended, 0U);
  EXPECT_EQ(found->call[0], 5U);
  EXPECT_EQ(found->call[1], 6U);
  EXPECT_EQ(found->stream, 77U);
  EXPECT_EQ(found->next_stream, 78U);
  EXPECT_EQ(found->bytes, 128U);
  EXPECT_TRUE(in_call(*found));
  EXPECT_EQ(found->waits_for, transport::kWaitsForNoRank);
  bool mine = false;
  for (const transport::ProcessLedger& one : transport::read_ledgers()) mine = mine || one.pid == ::getpid();
  EXPECT_TRUE(mine);
}

TEST(Ledgers, NameTheAwaitedRankAndTheWaitTime) {
  transport::LedgerSlot slot({0xfeed, 0, 2, "cpu"});
  slot.begin(1, 5, 6);
  slot.wait(1);
  const transport::LedgerView first = slot.view();
  EXPECT_EQ(first.waits_for, 1);
  slot.wait(1);  // still
  const transport::LedgerView second = slot.view();
  EXPECT_GE(second.waits_ns, first.waits_ns);
  EXPECT_GT(second.opened_ns, 0);
  slot.wait_over();
  EXPECT_EQ(slot.view().waits_for, transport::kWaitsForNoRank);
  EXPECT_EQ(slot.view().waits_ns, 0);
  slot.wait(0);
  slot.end(1);  // a call that ended waits for no rank, whatever the word says
  EXPECT_EQ(slot.view().waits_for, transport::kWaitsForNoRank);
}

TEST(Ledgers, KnowWhenACallEndedOnceSomebodyLooked) {
  transport::LedgerSlot slot({0xfeed, 0, 2, "cpu"});
  slot.begin(1, 5, 6);
  slot.end(1);
  EXPECT_EQ(slot.view().ended_ns, 0);  // nobody has looked
  slot.look();
  const std::int64_t first = slot.view().ended_ns;
  EXPECT_GT(first, 0);
  slot.look();  // nothing has changed since
  EXPECT_GE(slot.view().ended_ns, first);
  slot.begin(2, 5, 6);
  slot.end(2);
  EXPECT_EQ(slot.view().ended_ns, 0);
}

TEST(Ledgers, TheFirstFailureStays) {
  std::optional<transport::LedgerSlot> slot;
  slot.emplace(transport::LedgerSlot::Identity{0xfa11, 0, 2, "cpu"});
  slot->fail(transport::LedgerLife::kFailed, std::string(2000, 'x'));
  slot->fail(transport::LedgerLife::kAborted, "too late");
  EXPECT_EQ(slot->view().life, transport::LedgerLife::kFailed);
  EXPECT_EQ(slot->view().text, std::string(transport::LedgerEntry::kTextWords * 8, 'x'));
  slot.reset();
  EXPECT_EQ(find(transport::read_ledger(::getpid()), 0xfa11, 0)->life, transport::LedgerLife::kLeft);
}

TEST(Ledgers, EntriesAreUsedAgainAndNeverTwiceAtOnce) {
  for (int round = 0; round < transport::kLedgerEntries + 3; ++round)
    transport::LedgerSlot({0xabc, round, transport::kLedgerEntries, "cpu"});
  std::vector<std::unique_ptr<transport::LedgerSlot>> many;  // more than the ledger has entries
  for (int rank = 0; rank < transport::kLedgerEntries + 3; ++rank)
    many.push_back(std::make_unique<transport::LedgerSlot>(
        transport::LedgerSlot::Identity{0xdef, rank, transport::kLedgerEntries + 3, "cpu"}));
  int found = 0;
  const std::optional<transport::ProcessLedger> ledger = transport::read_ledger(::getpid());
  ASSERT_TRUE(ledger);
  for (const transport::LedgerView& view : ledger->ranks) found += view.communicator == 0xdef ? 1 : 0;
  EXPECT_EQ(found, transport::kLedgerEntries);
  EXPECT_EQ(many.back()->view().rank, transport::kLedgerEntries + 2);  // it can read its own entry anyway
}

// Words that belong together are read together, at whatever moment.
TEST(Ledgers, NothingIsTorn) {
  std::atomic<bool> over{false};
  transport::LedgerSlot slot({0x7042, 1, 2, "cpu"});
  std::thread writer([&] {
    for (std::uint64_t number = 1; !over.load(); ++number) {
      slot.enqueue(number, number * 3, 1);
      slot.begin(number, number * 7, number * 11);
      slot.end(number);
    }
  });
  std::thread other([&] {  // an entry that is taken and given back, with texts of one letter
    for (int i = 0; !over.load(); ++i) {
      const char letter = static_cast<char>('a' + i % 26);
      transport::LedgerSlot brief({0x7043, i % 26, 26, std::string(20, letter)});
      brief.fail(transport::LedgerLife::kFailed, std::string(500, letter));
    }
  });
  int texts = 0;
  for (unsigned round = 0; round < 200 / kShare || texts < 10; ++round) {
    const std::optional<transport::ProcessLedger> ledger = transport::read_ledger(::getpid());
    ASSERT_TRUE(ledger);
    for (const transport::LedgerView& view : ledger->ranks) {
      if (view.communicator == 0x7042 && view.life == transport::LedgerLife::kJoined) {
        ASSERT_EQ(view.call[0], view.begun * 7);
        ASSERT_EQ(view.call[1], view.begun * 11);
        ASSERT_LE(view.ended, view.enqueued);
      }
      if (view.communicator != 0x7043 || view.text[0] == 0) continue;
      ++texts;
      const char letter = static_cast<char>('a' + view.rank);
      ASSERT_EQ(view.text, std::string(500, letter));
      ASSERT_EQ(view.device, std::string(20, letter));
    }
  }
  over.store(true);
  writer.join();
  other.join();
}

SLIP_CHILD(Ledgers, Sit) {
  play([](const transport::LaunchInfo& info) -> std::string {
    transport::LedgerSlot slot({0x517, info.rank, info.nranks, "cpu"});
    slot.begin(1, 5, 6);
    char byte = 'x';
    static_cast<void>(!::write(kLine, &byte, 1));
    static_cast<void>(!::read(kLine, &byte, 1));
    return "";
  });
}

TEST(Ledgers, AStoppedProcessIsReadAndKnownAsStopped) {
  const RankProcess rank("Ledgers.Sit", local_id(), 2, 1);
  ASSERT_EQ(rank.hear(1), "x");
  const std::optional<transport::LedgerView> running = find(transport::read_ledger(rank.pid()), 0x517, 1);
  ASSERT_TRUE(running);
  EXPECT_EQ(running->pid, rank.pid());
  rank.signal(SIGSTOP);
  while (transport::process_state(std::to_string(rank.pid())).state != 'T') std::this_thread::yield();
  const std::optional<transport::ProcessLedger> ledger = transport::read_ledger(rank.pid());
  ASSERT_TRUE(find(ledger, 0x517, 1));
  EXPECT_EQ(ledger->process.state, 'T');
  rank.signal(SIGCONT);
  rank.send('x');
  EXPECT_EQ(rank.report(), "");
  EXPECT_FALSE(transport::read_ledger(-1));
}

}  // namespace
}  // namespace slip::test::test_ledger
