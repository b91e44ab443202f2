// Ranks that have too few descriptors for their connections: the error says how many are needed, and how to get them.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <vector>

#include "slip/communicator.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"

namespace slip::test::test_open_files {
namespace {

constexpr rlim_t kLimit = 256;

// Uses up all descriptors of this process except `left` ones.
void leave_descriptors(int left) {
  const rlimit limit{kLimit, kLimit};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) std::abort();
  std::vector<int> taken;
  for (int one = 0; (one = ::dup(kLine)) >= 0;) taken.push_back(one);
  for (int i = 0; i < left; ++i) {
    ::close(taken.back());
    taken.pop_back();
  }
}

// The left descriptors of rank 0 are not enough. Rank 1 has enough.
void run(int rank, int left, bool only_receives) {
  const Device device = Device::open("cpu", {.compute_workers = 2});
  Communicator comm = Communicator::init(device);
  const Stream stream = device.stream();
  const Buffer data = device.alloc(1 << 20, MemoryKind::kPinned);
  if (rank == 0) leave_descriptors(left);
  if (only_receives) {
    comm.broadcast(data, data, 1, stream);
    comm.barrier(stream);  // rank 1 waits for rank 0, too
  } else {
    comm.all_reduce(data, data, DataType::kF32, ReduceOp::kSum, stream);
  }
  stream.sync();
}

SLIP_CHILD(OpenFiles, AllReduce) {
  play([](const transport::LaunchInfo& info) {
    run(info.rank, 5, false);
    return std::string("went on");
  });
}

SLIP_CHILD(OpenFiles, Receive) {
  play([](const transport::LaunchInfo& info) {
    run(info.rank, 0, true);
    return std::string("went on");
  });
}

void expect_error(const char* child, const char* call) {
  const UniqueId id = local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back(child, id, 2, rank,
                       std::map<std::string, std::string>{{"SLIP_TRANSPORT", "net"},
                                                          {"SLIP_ALGORITHM", "ring"},
                                                          {"SLIP_MIN_CHANNELS", "4"},
                                                          {"SLIP_MAX_CHANNELS", "4"},
                                                          {"SLIP_SOCKETS", "3"}});
  for (const RankProcess& rank : ranks) {
    const std::string report = rank.report();
    for (const char* words : {call, "Too many open files: this process may have 256", "ulimit -n",
                              "Rank 0 needs up to 32 descriptors", "1 ranks, over 4 channels of 3 sockets"})
      EXPECT_NE(report.find(words), std::string::npos) << words << ": " << report;
  }
}

TEST(OpenFiles, TooFewToConnectAreAnErrorThatNamesTheNumber) { expect_error("OpenFiles.AllReduce", "cannot make a"); }

// The listener waits a few seconds, because the program may close files.
TEST(OpenFiles, TooFewToAcceptAreAnErrorThatNamesTheNumber) {
  expect_error("OpenFiles.Receive", "cannot accept the connections of other ranks at 127.0.0.1:");
}

}  // namespace
}  // namespace slip::test::test_open_files
