// Communicators over each kind of network on one host, and ranks whose networks differ or do not work: all ranks get an
// error, no rank hangs.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <limits>
#include <map>

#include "every_call.hpp"
#include "plugins/wrapped_counts.h"
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

// Rank 0 sends to rank 1, first memory of a Buffer, then memory below a Buffer of all addresses. Reports how many
// registrations ended with each message.
SLIP_CHILD(Nets, UnownedMemory) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    CommunicatorOptions options;
    options.transport = Transport::kNet;
    options.silence = std::chrono::seconds(30);
    const Device device = Device::open("cpu", {.compute_workers = 2});
    Communicator comm = Communicator::init(info.id, info.nranks, info.rank, device, options);
    void* const library = ::dlopen(test::plugin_file("v9").c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (!library) return "the plug-in is not loaded";
    const auto& counts = *static_cast<const wrapped_counts_type*>(::dlsym(library, "wrapped_counts"));
    const Stream stream = device.stream();
    const auto ended_with = [&](Range range) {
      const int before = counts.deregistered;
      if (info.rank == 0) comm.send(range, 1, stream);
      else comm.recv(range, 0, stream);
      stream.sync();
      return counts.deregistered - before;
    };
    constexpr std::size_t kBytes = 64 << 10;
    constexpr std::uintptr_t kFirst = 4096;
    const Buffer own = device.alloc(kBytes, MemoryKind::kPinned);
    const Buffer all = device.wrap(reinterpret_cast<void*>(kFirst), std::numeric_limits<std::ptrdiff_t>::max() - kFirst,
                                   MemoryKind::kPinned);
    void* const mapped = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const int of_buffer = ended_with(own);
    const int of_address = ended_with(all.slice(reinterpret_cast<std::uintptr_t>(mapped) - kFirst, kBytes));
    comm.finalize();
    return fmt::format("{} and {}", of_buffer, of_address);
  });
}

// Starts a rank with each of these variables; returns their reports.
std::vector<std::string> run_ranks(const std::vector<Variables>& variables,
                                   const std::string& child = "Nets.EveryCall") {
  const UniqueId id = test::local_id();
  const int count = static_cast<int>(variables.size());
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < count; ++rank)
    ranks.emplace_back(child, id, count, rank, variables[static_cast<std::size_t>(rank)]);
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

// A program that gets only addresses, for example by the functions of NCCL, wraps all of them in one Buffer. It frees
// memory while this Buffer exists, so an adapter must not keep its pages after the call.
TEST(NetsOfRanks, KeepNoRegistrationOfMemoryWithoutABuffer) {
  const Variables plugin = test::net_variables("plugin:v9");
  for (const std::string& report : run_ranks({plugin, plugin}, "Nets.UnownedMemory")) EXPECT_EQ(report, "0 and 1");
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
