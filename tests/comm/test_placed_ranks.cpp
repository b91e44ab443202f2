// Communicators of ranks whose places are in a topology file: every rank gets the error of a wrong file, and calls
// give the same whatever the order.
#include <gtest/gtest.h>

#include <functional>

#include "comm/api/options.hpp"
#include "every_call.hpp"
#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "topology_files.hpp"

namespace slip::test_placed_ranks {
namespace {

using test::as_ranks;
using test::data_file;
using test::EveryCall;
using test::expect_no_errors;
using test::Folder;
using test::Met;
using test::options_of;

// What each rank of a communicator with these options meets.
std::vector<Met> with_comms(const std::vector<CommunicatorOptions>& options,
                            const std::function<void(Communicator&, const Device&)>& body) {
  const auto nranks = static_cast<int>(options.size());
  const UniqueId id = test::local_id();
  return as_ranks(nranks, [&](int rank) {
    const Device device = Device::open("cpu", {.compute_workers = 2});  // its own: to free memory waits for all of it
    Communicator comm = Communicator::init(id, nranks, rank, device, options[static_cast<std::size_t>(rank)]);
    body(comm, device);
    comm.finalize();
  });
}

void expect_on_all(const std::vector<CommunicatorOptions>& options, ErrorCode code,
                   const std::vector<std::string>& words) {
  for (const Met& one : with_comms(options, [](Communicator&, const Device&) {})) {
    EXPECT_EQ(one.code, code) << one.text;
    for (const std::string& word : words) EXPECT_NE(one.text.find(word), std::string::npos) << word << ": " << one.text;
  }
}

TEST(PlacesErrors, AFileThatIsNotThere) {
  expect_on_all(options_of(1, 3, "/nowhere/machine.xml"), ErrorCode::kIo,
                {"rank 0", "/nowhere/machine.xml", "SLIP_TOPO_FILE"});
  std::vector<CommunicatorOptions> options = options_of(2, 2, data_file("crossed4.xml"));
  for (const std::size_t rank : {2U, 3U}) options[rank].topology = "/nowhere/machine.xml";
  expect_on_all(options, ErrorCode::kIo, {"rank 2", "/nowhere/machine.xml"});
}

TEST(PlacesErrors, AFileThatIsNone) {
  const Folder folder;
  expect_on_all(options_of(1, 3, folder.write("wrong.xml", "<system version=\"1\">\n<cpu numaid=\"x\"/></system>")),
                ErrorCode::kParse, {"wrong.xml", "line 2", "numaid"});
}

TEST(PlacesErrors, TooFewDevices) {
  expect_on_all(options_of(1, 5, data_file("crossed4.xml")), ErrorCode::kInvalidValue,
                {"rank 4 has topology device 4", "crossed4.xml", "which has 4", "SLIP_TOPO_DEVICE"});
  std::vector<CommunicatorOptions> options = options_of(1, 3, data_file("crossed4.xml"));
  options[1].topo_device = 9;
  expect_on_all(options, ErrorCode::kInvalidValue, {"rank 1 has topology device 9", "topo_device"});
  options[1].topo_device = -2;
  EXPECT_TRUE(
      test::fails([&] { comm::check_options(options[1], 3, {}); }, ErrorCode::kInvalidValue, {"topo_device", "-2"}));
}

TEST(PlacesErrors, RanksOfAHostWithDifferentFiles) {
  std::vector<CommunicatorOptions> options = options_of(1, 3, data_file("crossed4.xml"));
  options[2].topology = data_file("host_nic.xml");
  expect_on_all(options, ErrorCode::kMismatch, {"rank 0", "crossed4.xml", "rank 2", "host_nic.xml"});
  options[2].topology.clear();
  expect_on_all(options, ErrorCode::kMismatch, {"rank 0", "crossed4.xml", "rank 2", "no topology file"});
}

TEST(PlacesErrors, HostsWithoutAPort) {
  const Folder folder;
  const std::string file =
      folder.write("alone.xml", "<system version=\"1\"><cpu numaid=\"0\"/><cpu numaid=\"1\"/></system>");
  expect_on_all(options_of(2, 2, file), ErrorCode::kInvalidValue, {"alone.xml", "has no net", "add <nic>"});
  expect_no_errors(with_comms(options_of(1, 2, file), [](Communicator&, const Device&) {}));
}

// Results do not depend on the order; by every algorithm, and in communicators that are made from others.
void every_call(Communicator& comm, const Device& device) {
  for (const std::size_t words : {std::size_t{3}, std::size_t{20'001}})
    EXPECT_EQ(EveryCall(comm, device, words).wrong(), "");
  std::optional<Communicator> part = comm.split(comm.rank() % 2, -comm.rank());
  EXPECT_EQ(EveryCall(*part, device, 501).wrong(), "");
  if (comm.rank() == 0) return;
  Communicator less = comm.shrink({0});
  EXPECT_EQ(EveryCall(less, device, 501).wrong(), "");
}

class PlacesBy : public testing::TestWithParam<Algorithm> {};
INSTANTIATE_TEST_SUITE_P(Every, PlacesBy,
                         testing::Values(Algorithm::kAuto, Algorithm::kDirect, Algorithm::kRing, Algorithm::kTree,
                                         Algorithm::kDoubling, Algorithm::kRelay),
                         [](const auto& one) { return std::string(algorithm_name(one.param)); });

TEST_P(PlacesBy, EveryCallIsRight) {
  for (const auto& [hosts, each, file] :
       {std::tuple{1, 4, "crossed4.xml"}, {2, 4, "crossed4.xml"}, {2, 3, "host_memory.xml"}}) {
    SCOPED_TRACE(fmt::format("{} hosts, {}", hosts, file));
    std::vector<CommunicatorOptions> options = options_of(hosts, each, data_file(file));
    for (CommunicatorOptions& one : options) {
      one.algorithm = GetParam();
      one.min_channels = 2;
    }
    // Not in the order of the devices, either.
    for (std::size_t rank = 0; rank < options.size(); ++rank)
      options[rank].topo_device = static_cast<int>((rank * 3 + 1) % 4);
    expect_no_errors(with_comms(options, every_call));
  }
}

}  // namespace
}  // namespace slip::test_placed_ranks
