// Ledgers that were written to harm the process that reads them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/json_text.hpp"
#include "base/terminal.hpp"
#include "comm/diagnose/stalls.hpp"
#include "support/ledger_image.hpp"
#include "transport/ledger/ledger.hpp"

namespace slip::test::test_hostile_ledgers {
namespace {

std::optional<transport::ProcessLedger> read(const LedgerImage& image, std::int64_t bytes = transport::kLedgerBytes) {
  const int file = ledger_file(image.bytes(), bytes);
  transport::LedgerLimits limits;
  std::optional<transport::ProcessLedger> result =
      transport::read_ledger_file(file, transport::Placement::own().started, limits);
  ::close(file);
  return result;
}

TEST(HostileLedgers, AGoodOneIsRead) {
  LedgerImage image;
  image.add(0xfeed, 3, 8);
  const std::optional<transport::ProcessLedger> ledger = read(image);
  ASSERT_TRUE(ledger);
  ASSERT_EQ(ledger->ranks.size(), 1U);
  EXPECT_EQ(ledger->user, ::geteuid());
  EXPECT_EQ(ledger->left_out, 0);
  EXPECT_EQ(ledger->ranks[0].rank, 3);
  EXPECT_STREQ(ledger->ranks[0].device, "cpu");
  EXPECT_STREQ(ledger->ranks[0].host, "host");
}

// A sparse file of 24 GB must cost no memory.
TEST(HostileLedgers, AnotherSizeIsRefused) {
  LedgerImage image;
  image.add(0xfeed, 3, 8);
  image.header().entries.store(INT32_MAX);
  constexpr auto kGood = static_cast<std::int64_t>(transport::kLedgerBytes);
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{8}, kGood - 1, kGood + 1, std::int64_t{24} << 30})
    EXPECT_FALSE(read(image, bytes)) << bytes;
  ASSERT_TRUE(read(image));  // as many entries as the size allows
  EXPECT_EQ(read(image)->ranks.size(), 1U);
  image.header().entries.store(-1);
  EXPECT_TRUE(read(image)->ranks.empty());
}

TEST(HostileLedgers, AnotherProcessesIsRefused) {
  LedgerImage image;
  ++image.header().started;
  EXPECT_FALSE(read(image));
  --image.header().started;
  ++image.header().magic;
  EXPECT_FALSE(read(image));
}

TEST(HostileLedgers, TextsEndAndCanBePrinted) {
  LedgerImage image;
  transport::LedgerEntry& entry = image.add(0xfeed, 3, 8);
  put_words(entry.text, std::string(500, '\x1b') + "\xff\xc3\xe2\x80\xae\n\t\xc2\x9b");
  put_words(entry.device, "\x1b[31mred\xff\x07 and longer than it may be");
  std::ranges::fill(image.header().host, '\xf0');
  const transport::LedgerView view = read(image)->ranks.at(0);
  const std::string texts[] = {view.text, view.device, view.host};
  for (const std::string& text : texts) {
    EXPECT_TRUE(base::is_utf8(text)) << text;
    EXPECT_EQ(base::single_line_text(text), text);
    EXPECT_TRUE(std::ranges::none_of(text, [](char letter) { return letter >= 0 && letter < ' '; })) << text;
  }
  EXPECT_EQ(texts[1], "?[31mred?? and longer th");
  EXPECT_EQ(texts[2].size(), 63U);
}

TEST(HostileLedgers, NumbersBeyondAnyRangeHaveWords) {
  LedgerImage image;
  transport::LedgerEntry& entry = image.add(~std::uint64_t{0}, -1, INT32_MIN);
  entry.call[0].store(~std::uint64_t{0});
  entry.call[1].store(~std::uint64_t{0} >> 4);  // a reduction of a type and by an op that do not exist
  entry.check.store(transport::check_of_call(1, ~std::uint64_t{0}, ~std::uint64_t{0} >> 4));
  entry.waits_for.store(std::uint64_t{1} << 31);
  entry.wait_ns.store(std::uint64_t{1} << 63);
  entry.opened_ns.store(~std::uint64_t{0});
  const transport::LedgerView view = read(image)->ranks.at(0);
  EXPECT_GE(view.rank, 0);
  EXPECT_GE(view.nranks, 0);
  EXPECT_EQ(view.waits_for, transport::kWaitsForNoRank);
  EXPECT_EQ(view.opened_ns, 0);
  EXPECT_NE(comm::call_text(view).find("unknown type"), std::string::npos) << comm::call_text(view);
  EXPECT_FALSE(comm::doing({view, 'R'}).empty());
  entry.life.store(77);
  EXPECT_TRUE(read(image)->ranks.empty());
}

TEST(HostileLedgers, AnEntryThatIsNeverWholeHidesNoOther) {
  LedgerImage image;
  image.add(1, 0, 4).version.store(3);
  image.add(2, 1, 4).check.store(5);
  image.add(3, 2, 4).ended.store(7);  // more than were begun
  image.add(4, 3, 4);
  const std::optional<transport::ProcessLedger> ledger = read(image);
  ASSERT_TRUE(ledger);
  ASSERT_EQ(ledger->ranks.size(), 1U);
  EXPECT_EQ(ledger->ranks[0].rank, 3);
}

TEST(HostileLedgers, AUserCanOnlyCrowdOutOwnEntries) {
  const std::uint32_t own = ::geteuid();
  transport::LedgerLimits limits;
  EXPECT_EQ(limits.take(own + 1, 512), 512);
  EXPECT_EQ(limits.take(own + 1, 1), 0);
  for (std::uint32_t user = 2; user < 20; ++user) limits.take(own + user, 512);
  EXPECT_EQ(limits.take(own + 20, 1), 0);  // the limit of all others together
  EXPECT_EQ(limits.take(own, transport::LedgerLimits::kOwn + 5), transport::LedgerLimits::kOwn);
  EXPECT_EQ(limits.take(own, 1), 0);
}

// In a process that has dropped root: it reads its own ledger, but not one that root made.
TEST(HostileLedgers, ThoseOfOtherUsersAreReadByRootAlone) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  constexpr uid_t kNobody = 65534;
  LedgerImage image;
  image.add(0xfeed, 0, 1);
  const int of_root = ledger_file(image.bytes());
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(9);
    const std::uint64_t started = transport::Placement::own().started;
    image.header().started = started;
    const int own = ledger_file(image.bytes());
    transport::LedgerLimits limits;
    const bool reads_own = transport::read_ledger_file(own, started, limits).has_value();
    if (::pwrite(of_root, &image.header(), sizeof(transport::LedgerHeader), 0) < 0) ::_exit(8);
    const bool reads_other = transport::read_ledger_file(of_root, started, limits).has_value();
    ::_exit((reads_own ? 1 : 0) + (reads_other ? 2 : 0));
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 1);
  // Root reads the ledger of another user.
  ASSERT_EQ(::fchown(of_root, kNobody, kNobody), 0);
  image.header().started = transport::Placement::own().started;
  ASSERT_EQ(::pwrite(of_root, &image.header(), sizeof(transport::LedgerHeader), 0),
            static_cast<ssize_t>(sizeof(transport::LedgerHeader)));
  transport::LedgerLimits limits;
  const std::optional<transport::ProcessLedger> other =
      transport::read_ledger_file(of_root, transport::Placement::own().started, limits);
  ASSERT_TRUE(other);
  EXPECT_EQ(other->user, kNobody);
  ::close(of_root);
}

TEST(Printable, KeepsWhatCanBePrintedAndNeverGrows) {
  EXPECT_EQ(base::single_line_text("plain, \xc3\xa9 and \xe4\xb8\xad"), "plain, \xc3\xa9 and \xe4\xb8\xad");
  EXPECT_EQ(base::single_line_text("a\nb\tc\rd"), "a b c d");
  EXPECT_EQ(base::single_line_text("\x1b[2J\x07\x7f"), "?[2J??");
  EXPECT_EQ(base::single_line_text("\xff\xc3"), "??");
  EXPECT_EQ(base::single_line_text("\xc2\x9b[2J"), "??[2J");  // the one-byte form of ESC [
  EXPECT_EQ(base::single_line_text("\xe2\x80\xae"
                                   "abc"),
            "???abc");  // right to left from here on
  EXPECT_EQ(base::single_line_text(std::string_view("\0x", 2)), "?x");
}

}  // namespace
}  // namespace slip::test::test_hostile_ledgers
