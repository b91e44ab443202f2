// Collectives in which the kernel copies from the peers' private buffers: every call with the single copy forced,
// forbidden and chosen by measurement, ranks that the kernel refuses at init and later, and a rank that is killed.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <map>

#include "base/env.hpp"
#include "comm/host/copy_choice.hpp"
#include "comm/plan/host_program.hpp"
#include "every_call.hpp"
#include "slip/communicator.hpp"
#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "support/share.hpp"

namespace slip::test_single_copy {
namespace {

using test::RankProcess;
using Variables = std::map<std::string, std::string>;

constexpr const char* kMode = "SLIP_SINGLE_COPY";
constexpr const char* kForbids = "SLIP_TEST_FORBIDS";  // "0 init": rank 0 forbids itself to read before init

// From now on process_vm_readv fails in all threads of this process, as in a container that does not allow it.
bool forbid_reads() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{std::size(steps), steps};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter) == 0;
}

// Bytes below and above the smallest read, of one and several chunks of scratch memory, of all halves of staging
// memory.
constexpr std::size_t kWords[] = {1000, 2048, 2049, 4096, 10'007, 300'001};

std::string every_call(Communicator& comm, const Device& device, int times) {
  for (const std::size_t words : kWords) {
    if (test::kShare > 1 && words > 20'000) continue;
    for (int time = 0; time < times; ++time) {
      if (const std::string wrong = test::EveryCall(comm, device, words).wrong(); !wrong.empty()) return wrong;
    }
  }
  return "fine";
}

SLIP_CHILD(SingleCopies, EveryCall) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    const std::string forbids = base::env_text(kForbids), own = std::to_string(info.rank);
    if (forbids == own + " init" && !forbid_reads()) return "no filter";
    const Device device = Device::open("cpu", {.compute_workers = 2});
    Communicator comm = Communicator::init(device);
    if (forbids == own + " later" && !forbid_reads()) return "no filter";
    return every_call(comm, device, 3);
  });
}

void expect_fine(int nranks, const Variables& variables) {
  const UniqueId id = test::local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < nranks; ++rank) ranks.emplace_back("SingleCopies.EveryCall", id, nranks, rank, variables);
  for (const RankProcess& rank : ranks) EXPECT_EQ(rank.report(), "fine");
}

TEST(SingleCopies, ForcedForbiddenAndMeasured) {
  for (const char* mode : {"always", "never", "auto"}) {
    for (const int nranks : {2, 3}) {
      SCOPED_TRACE(testing::Message() << mode << ", " << nranks << " ranks");
      expect_fine(nranks, {{kMode, mode}});
    }
  }
}

TEST(SingleCopies, AnotherWordIsAnError) {
  const RankProcess rank("SingleCopies.EveryCall", test::local_id(), 1, 0, {{kMode, "maybe"}});
  const std::string report = rank.report();
  EXPECT_NE(report.find("SLIP_SINGLE_COPY=maybe: auto, always or never is expected"), std::string::npos) << report;
}

// One rank may not read, the others may: at init no rank reads then. Later, the calls in which it refuses are staged.
TEST(SingleCopies, WhereTheKernelRefuses) {
  for (const char* forbids : {"0 init", "1 init", "0 later", "1 later", "2 later"}) {
    SCOPED_TRACE(forbids);
    expect_fine(3, {{kMode, "always"}, {kForbids, forbids}});
  }
}

SLIP_CHILD(SingleCopies, UntilOneIsKilled) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    const Device device = Device::open("cpu", {.compute_workers = 2});
    Communicator comm = Communicator::init(device);
    const Stream stream = device.stream();
    constexpr std::size_t kBytes = 3 << 20;
    Buffer from = device.alloc(kBytes, MemoryKind::kPinned), to = device.alloc(kBytes, MemoryKind::kPinned);
    try {
      for (int call = 0;; ++call) {
        comm.all_to_all(to, from, stream);
        comm.all_reduce(to, to, DataType::kU8, ReduceOp::kMax, stream);
        comm.broadcast(to, from, call % 3, stream);
        stream.sync();
        if (info.rank == 2 && call == 5) static_cast<void>(!::write(test::kLine, "!", 1));
      }
    } catch (const Error& error) {
      for (unsigned char& one : from.host_write<unsigned char>()) one = 1;  // no call uses it any more
      return error.what();
    }
  });
}

TEST(SingleCopies, AKilledRankIsReportedToTheOthers) {
  const UniqueId id = test::local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back("SingleCopies.UntilOneIsKilled", id, 3, rank, Variables{{kMode, "always"}});
  EXPECT_EQ(ranks[2].hear(1), "!");
  ranks[2].signal(SIGKILL);
  for (const std::size_t rank : {0U, 1U}) {
    const std::string report = ranks[rank].report();
    EXPECT_NE(report.find("rank 2 is gone"), std::string::npos) << report;
  }
}

// A staged broadcast copies in and out at the same time.
TEST(SingleCopies, ABroadcastIsAlwaysStaged) {
  comm::Call call{.kind = comm::Collective::kBroadcast, .type = DataType::kU8, .elements = 1 << 20};
  EXPECT_FALSE(comm::DirectProgramBuilder::can_read(call, 2));
  call.kind = comm::Collective::kScatter;
  EXPECT_TRUE(comm::DirectProgramBuilder::can_read(call, 2));
}

constexpr comm::Call kCall{.kind = comm::Collective::kAllGather, .type = DataType::kU8, .elements = 5000};

// Runs calls with these times, as all ranks do. Returns in how many of the last 64 calls the kernel copied.
int reads_of_64(comm::CopyChoice& choice, std::atomic<std::uint32_t>& hint, std::uint64_t read, std::uint64_t staged) {
  int reads = 0;
  for (int call = 0; call < 256; ++call) {
    const bool reads_now = choice.wants_read(kCall, hint);
    choice.note(kCall, reads_now, reads_now ? read : staged, hint);
    if (call >= 192 && reads_now) ++reads;
  }
  return reads;
}

TEST(CopyChoice, TakesTheQuickerWayAndTriesTheOtherNowAndThen) {
  comm::CopyChoice choice;
  std::atomic<std::uint32_t> hint{0};
  EXPECT_EQ(reads_of_64(choice, hint, 100, 200), 63);
  EXPECT_EQ(reads_of_64(choice, hint, 400, 200), 1) << "the times have changed";
}

TEST(CopyChoice, SizesAndKindsAreApart) {
  comm::CopyChoice choice;
  std::atomic<std::uint32_t> hint{0};
  reads_of_64(choice, hint, 100, 200);
  comm::Call larger = kCall;
  larger.elements = 50'000;
  EXPECT_FALSE(choice.wants_read(larger, hint)) << "small blocks are staged at first";
  larger.elements = 500'000;
  EXPECT_TRUE(choice.wants_read(larger, hint)) << "the kernel copies large blocks at first";
}

TEST(CopyChoice, OneLongCallDoesNotDecide) {
  comm::CopyChoice choice;
  std::atomic<std::uint32_t> hint{0};
  reads_of_64(choice, hint, 150, 200);
  choice.note(kCall, true, 4'000'000, hint);
  EXPECT_EQ(reads_of_64(choice, hint, 150, 200), 63);
}

TEST(CopyChoice, ASmallGainIsNotWorthAChange) {
  comm::CopyChoice choice;
  std::atomic<std::uint32_t> hint{0};
  EXPECT_EQ(reads_of_64(choice, hint, 190, 200), 1);
}

TEST(CopyChoice, FollowsTheUser) {
  std::atomic<std::uint32_t> hint{0};
  for (const comm::SingleCopy mode : {comm::SingleCopy::kAlways, comm::SingleCopy::kNever}) {
    comm::CopyChoice choice;
    choice.set_mode(mode);
    EXPECT_EQ(reads_of_64(choice, hint, 100, 100), mode == comm::SingleCopy::kAlways ? 64 : 0);
  }
}

}  // namespace
}  // namespace slip::test_single_copy
