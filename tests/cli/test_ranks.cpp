// `slip ranks`: what it shows of jobs that run, hang and are stopped; and the lab of deadlocks.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <thread>

#include "cli/program.hpp"
#include "slip/communicator.hpp"
#include "support/ledger_image.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"

namespace slip::cli_test::test_ranks {
namespace {

using nlohmann::json;
using test::kLine;
using test::RankProcess;

json data_of(const Outcome& outcome) {
  json data = json::parse(outcome.out, nullptr, false);
  EXPECT_FALSE(data.is_discarded()) << outcome.out << outcome.err;
  return data;
}

// The communicator that these processes are in; other tests may have theirs at the same time.
json communicator_of(const json& data, int pid) {
  for (const json& one : data["communicators"]) {
    for (const json& rank : one["ranks"]) {
      if (rank["pid"] == pid) return one;
    }
  }
  return nullptr;
}

std::string stalls_of(const json& data, const std::string& id) {
  std::string all;
  for (const json& one : data["held_up"]) {
    const auto text = one["text"].get<std::string>();
    if (text.find(id) != std::string::npos) all += one["kind"].get<std::string>() + ": " + text + "\n";
  }
  return all;
}

// What the table says of one communicator: its title, an empty line, and its rows.
std::string part_of(const std::string& table, const std::string& id) {
  const std::size_t from = table.find("communicator " + id + ":");
  if (from == std::string::npos) return "";
  return table.substr(from, table.find("\n\n", table.find("\n\n", from) + 2) - from);
}

// Meets the other; rank 1 then stays outside until the test sends it a byte, rank 0 goes to the next call at once.
SLIP_CHILD(CliRanks, Stall) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    const Device device = Device::open("cpu", {.compute_workers = 2});
    Communicator comm = Communicator::init(device, {.name = "tp"});
    const Stream stream = device.stream();
    comm.barrier(stream);
    stream.sync();
    static_cast<void>(!::write(kLine, "x", 1));
    char byte = 0;
    if (info.rank == 1) static_cast<void>(!::read(kLine, &byte, 1));
    comm.barrier(stream);
    stream.sync();
    return "came";
  });
}

TEST(CliRanks, OutsideAndStoppedRanksAreNamed) {
  const UniqueId id = test::local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.emplace_back("CliRanks.Stall", id, 2, rank);
  for (const RankProcess& rank : ranks) ASSERT_EQ(rank.hear(1), "x");
  std::string name, said;
  // Until rank 0 has waited for long enough to be worth a word.
  while (said.empty()) {
    const Outcome outcome = run("ranks --json");
    const json data = data_of(outcome);
    const json found = communicator_of(data, ranks[0].pid());
    ASSERT_EQ(found["ranks"].size(), 2U) << outcome.out;
    EXPECT_EQ(found["nranks"], 2);
    EXPECT_EQ(found["ranks"][1]["state"], "outside");
    EXPECT_EQ(found["ranks"][1]["ended"], 1);
    EXPECT_EQ(found["name"], "tp");
    name = "'tp' (" + found["id"].get<std::string>() + ")";
    said = stalls_of(data, name);
    if (!said.empty()) {
      EXPECT_EQ(outcome.status, 3);
      EXPECT_EQ(found["ranks"][0]["state"], "waits");
      EXPECT_EQ(found["ranks"][0]["waits_for"], 1);
      EXPECT_EQ(found["ranks"][0]["call"], "barrier, call 2");
    }
  }
  EXPECT_EQ(said.find("blocked: rank 1 of " + name + " has not joined barrier, call 2: it ended barrier, call 1"), 0U)
      << said;
  EXPECT_NE(said.find("outside Slipstream since"), std::string::npos) << said;
  ranks[1].signal(SIGSTOP);
  while (transport::process_state(std::to_string(ranks[1].pid())).state != 'T') std::this_thread::yield();
  const Outcome table = run("ranks");
  EXPECT_EQ(table.status, 3);
  const std::string own = part_of(table.out, name);  // other jobs of this host may have wider ones
  EXPECT_LE(max_line(own), 100U) << own;
  for (const std::string& words : {"communicator " + name, std::string("stopped"), std::to_string(ranks[1].pid())})
    EXPECT_NE(own.find(words), std::string::npos) << words << "\n" << table.out;
  ranks[1].signal(SIGCONT);
  ranks[1].send('x');
  for (const RankProcess& rank : ranks) EXPECT_EQ(rank.report(), "came");
}

TEST(CliRanks, WithoutRanksItSaysSo) {
  // Other tests may run ranks meanwhile; what is printed fits in any case.
  const Outcome outcome = run("ranks");
  EXPECT_TRUE(outcome.status == 0 || outcome.status == 3) << outcome.err;
  EXPECT_NE(outcome.out.find(outcome.out.find("communicator ") == std::string::npos ? "no ranks" : "rank"),
            std::string::npos)
      << outcome.out;
  EXPECT_EQ(run("ranks --watch --times 1").err, "");
  EXPECT_EQ(run("ranks --times 0").status, 2);
  const Outcome help = run("ranks --help");
  for (const char* word : {"slip-ledger", "--watch", "deadlock", "Status"})
    EXPECT_NE(help.out.find(word), std::string::npos) << word;
}

// A process whose ledger was written to do harm: the honest job beside it is shown all the same.
TEST(CliRanks, HostileLedgersHideNothingAndBreakNothing) {
  const UniqueId id = test::local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.emplace_back("CliRanks.Stall", id, 2, rank);
  for (const RankProcess& rank : ranks) ASSERT_EQ(rank.hear(1), "x");
  test::LedgerImage image;
  for (std::int32_t i = 0; i < transport::kLedgerEntries; ++i) {
    transport::LedgerEntry& entry = image.add(0xbadc0de, i, -5);
    test::put_words(entry.text, "\x1b[2J\x1b]0;owned\x07\xff\xc3\n\"}");
    test::put_words(entry.device, "\x1b[31m\xff");
    entry.call[1].store(~std::uint64_t{0});
    entry.check.store(transport::check_of_call(1, 0, ~std::uint64_t{0}));
    entry.waits_for.store(std::uint64_t{1} << 31);
    entry.life.store(static_cast<std::uint64_t>(i % 5));
  }
  std::ranges::fill(image.header().host, '\xff');
  const test::LedgerProcess hostile(image), huge(image, std::int64_t{24} << 30);
  const Outcome data = run("ranks --json");
  EXPECT_EQ(data.err, "");
  const json found = json::parse(data.out, nullptr, false);
  ASSERT_FALSE(found.is_discarded()) << data.out.substr(0, 2000);
  EXPECT_EQ(communicator_of(found, ranks[0].pid())["ranks"].size(), 2U);
  EXPECT_FALSE(communicator_of(found, hostile.pid()).is_null());
  EXPECT_TRUE(communicator_of(found, huge.pid()).is_null());
  const Outcome table = run("ranks");
  EXPECT_EQ(table.err, "");
  EXPECT_EQ(table.out.find_first_of("\x1b\x07\xff\xc3"), std::string::npos);
  ranks[1].send('x');
  for (const RankProcess& rank : ranks) EXPECT_EQ(rank.report(), "came");
}

class CliLabDeadlock : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(On, CliLabDeadlock, testing::Values("cpu", "sim:h200"),
                         [](const auto& one) { return std::string(one.param).substr(0, 3); });

TEST_P(CliLabDeadlock, IsPredictedAndNamedByTheLedger) {
  const json rows = lab_tables("deadlock", GetParam(), "--quick").at(0).at("rows");
  ASSERT_EQ(rows.size(), 4U);
  const char* verdicts[] = {"proven", "deadlock", "proven"};
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(rows.at(i).at("verdict"), verdicts[i]) << rows.at(i);
  const char* seen[] = {"went through", "deadlock", "went through", "blocked"};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(rows.at(i).at("seen"), seen[i]) << rows.at(i);
    EXPECT_EQ(rows.at(i).at("end"), i % 2 == 0 ? "done" : "error at the deadline") << rows.at(i);
  }
  const auto circle = rows.at(1).at("text").get<std::string>(), outside = rows.at(3).at("text").get<std::string>();
  EXPECT_NE(circle.find("has that call enqueued in its stream behind its call in"), std::string::npos) << circle;
  EXPECT_NE(outside.find("has not joined barrier, call 2: it ended barrier, call 1"), std::string::npos) << outside;
  EXPECT_NE(rows.at(1).at("error").get<std::string>().find("; deadlock: rank "), std::string::npos) << rows.at(1);
  EXPECT_NE(rows.at(3).at("error").get<std::string>().find("outside Slipstream"), std::string::npos) << rows.at(3);
}

}  // namespace
}  // namespace slip::cli_test::test_ranks
