// Communicators over each kind of network on one host, and ranks whose networks differ or do not work: all ranks get an
// error, no rank hangs.
#include <gtest/gtest.h>

#include <map>

#include "every_call.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "transport/net_ends.hpp"

namespace slip::test_nets {
namespace {

using test::RankProcess;
using Variables = std::map<std::string, std::string>;

// Ranks that use the network between each other, though they are on one host.
SLIP_CHILD(Nets, EveryCall) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    CommunicatorOptions options;
    options.transport = Transport::kNet;
    options.silence = std::chrono::seconds(30);
    const Device device = Device::open("cpu", {.compute_workers = 2});
    Communicator comm = Communicator::init(info.id, info.nranks, info.rank, device, options);
    std::string wrong;
    for (const std::size_t words : {std::size_t{3}, std::size_t{70'001}}) {
      if (wrong.empty()) wrong = test::EveryCall(comm, device, words).wrong();
    }
    comm.finalize();
    return wrong.empty() ? "fine" : wrong;
  });
}

// Starts a rank with each of these variables; returns their reports.
std::vector<std::string> run_ranks(const std::vector<Variables>& variables) {
  const UniqueId id = test::local_id();
  const int count = static_cast<int>(variables.size());
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < count; ++rank)
    ranks.emplace_back("Nets.EveryCall", id, count, rank, variables[static_cast<std::size_t>(rank)]);
  std::vector<std::string> reports;
  for (const RankProcess& rank : ranks) reports.push_back(rank.report());
  return reports;
}

void expect_words(const std::string& report, const std::vector<std::string>& words) {
  for (const std::string& one : words) EXPECT_NE(report.find(one), std::string::npos) << "'" << one << "': " << report;
}

class Nets : public test::NetTest {};
INSTANTIATE_TEST_SUITE_P(Over, Nets, test::every_net(), test::net_test_name);

TEST_P(Nets, CarryEveryCall) {
  for (const std::string& report : run_ranks(std::vector<Variables>(3, test::net_variables(GetParam()))))
    EXPECT_EQ(report, "fine");
}

// One rank names another network than the others: all of them fail, and say which.
TEST_P(Nets, MustBeTheSameForAllRanks) {
  const Variables own = test::net_variables(GetParam());
  const bool is_tcp = std::string(GetParam()) == "tcp";
  const Variables other = is_tcp ? test::net_variables("plugin:v9") : Variables{{"SLIP_NET", "tcp"}};
  for (const std::string& report : run_ranks({own, own, other})) {
    expect_words(report, {"rank 0 uses the network " + std::string(is_tcp ? "tcp" : GetParam()).substr(0, 3),
                          "rank 2 uses the network ", "all ranks of a communicator need the same network"});
  }
}

// TCP because it was named, and TCP because of an automatic choice.
TEST(NetsOfRanks, AreTheSameForDifferentReasons) {
  for (const std::string& report : run_ranks({{{"SLIP_NET", "tcp"}}, {}})) EXPECT_EQ(report, "fine");
}

TEST(NetsOfRanks, ARankWithAWrongNameFailsForAll) {
  for (const std::string& report : run_ranks({{}, {{"SLIP_NET", "udp"}}}))
    expect_words(report, {"SLIP_NET=udp", "tcp, ucx or plugin:NAME"});
}

TEST(NetsOfRanks, ARankWithoutTheLibraryFailsForAll) {
  const Variables without{{"SLIP_NET", "plugin:/nowhere/libnccl-net.so"}};
  const std::vector<std::string> reports = run_ranks({test::net_variables("plugin:slip"), without});
  for (const std::string& report : reports) expect_words(report, {"/nowhere/libnccl-net.so", "LD_LIBRARY_PATH"});
  expect_words(reports[0], {"rank 0 of 2: rank 1 failed: the network plug-in"});
  if (const test::NamedNet ucx = test::net_named("ucx"); !ucx.net) GTEST_SKIP() << ucx.problem;
  for (const std::string& report :
       run_ranks({{{"SLIP_NET", "ucx"}}, {{"SLIP_NET", "ucx"}, {"SLIP_UCX_LIBRARY", "/nowhere/libucp.so.0"}}}))
    expect_words(report, {"UCX cannot be used", "/nowhere/libucp.so.0", "SLIP_UCX_LIBRARY"});
}

TEST(NetsOfRanks, APluginThatFailsIsNamedOnBothRanks) {
  Variables faulty = test::net_variables("plugin:v9");
  for (const char* const fault : {"connect=fail", "isend=fail", "irecv=fail", "regMr=fail"}) {
    faulty["SLIP_PLUGIN_FAULT"] = fault;
    for (const std::string& report : run_ranks({test::net_variables("plugin:v9"), faulty}))
      expect_words(report, {"libnccl-net-v9.so", "has an injected failure"});
  }
}

// A plug-in that loses a byte: the rank that receives says so.
TEST(NetsOfRanks, APluginThatReportsAShortMessageIsNoticed) {
  Variables faulty = test::net_variables("plugin:v9");
  faulty["SLIP_PLUGIN_FAULT"] = "size=short";
  const std::vector<std::string> reports = run_ranks({test::net_variables("plugin:v9"), faulty});
  expect_words(reports[1], {"mismatch between ranks", "rank 1", "rank 0", "bytes"});
}

TEST(NetsOfRanks, AUcxThatFindsNoWaySaysSo) {
  if (const test::NamedNet ucx = test::net_named("ucx"); !ucx.net) GTEST_SKIP() << ucx.problem;
  const Variables own{{"SLIP_NET", "ucx"}, {"UCX_TLS", "self"}};
  const std::vector<std::string> reports = run_ranks({own, own});
  expect_words(reports[0] + reports[1], {"UCX 1.", "UCX_TLS=self", "SLIP_NET=tcp"});
  for (const std::string& report : reports) EXPECT_NE(report, "fine");
}

}  // namespace
}  // namespace slip::test_nets
