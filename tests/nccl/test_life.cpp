// How communicators begin and end, and what wrong arguments give.
#include <gtest/gtest.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <span>
#include <string>

#include "nccl_ranks.hpp"
#include "slip/unique_id.hpp"

namespace slip::test_life {
namespace {

using test::as_nccl_ranks;
using test::failed;
using test::settled;
using test::with_nccl_ranks;

int sum_of(ncclComm_t comm, int value) {
  int sum = 0;
  EXPECT_EQ(ncclAllReduce(&value, &sum, 1, ncclInt32, ncclSum, comm, nullptr), ncclSuccess) << ncclGetLastError(comm);
  return sum;
}

TEST(NcclLife, SeveralRanksOfOneThreadInAGroup) {
  ncclUniqueId ids[2];
  for (ncclUniqueId& id : ids) ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclComm_t comms[2] = {};
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(ncclCommInitRankScalable(&comms[rank], 2, rank, 2, ids, nullptr), ncclSuccess);
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
  int rank = -1;
  EXPECT_EQ(ncclCommUserRank(comms[1], &rank), ncclSuccess);
  EXPECT_EQ(rank, 1);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (ncclComm_t comm : comms) EXPECT_EQ(ncclCommFinalize(comm), ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  for (ncclComm_t comm : comms) EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

// Connects to the root of the id and waits until it closes the connection. False: nobody listens.
bool outlives_a_connection(const UniqueId& id, int timeout_ms) {
  addrinfo* found = nullptr;
  if (getaddrinfo(id.host().c_str(), std::to_string(id.port()).c_str(), nullptr, &found) != 0) return false;
  pollfd client{::socket(found->ai_family, SOCK_STREAM, 0), POLLIN | POLLRDHUP, 0};
  const bool connected = ::connect(client.fd, found->ai_addr, found->ai_addrlen) == 0;
  if (connected) ::poll(&client, 1, timeout_ms);
  ::close(client.fd);
  freeaddrinfo(found);
  return connected;
}

// The root of an id ends when no init can use it any more: not after the 600 s that are the default.
TEST(NcclLife, TheIdIsValidForTheTimeoutOfInit) {
  setenv("SLIP_NCCL_INIT_TIMEOUT", "1", 1);
  ncclUniqueId id;
  const ncclResult_t made = ncclGetUniqueId(&id);
  unsetenv("SLIP_NCCL_INIT_TIMEOUT");
  ASSERT_EQ(made, ncclSuccess);
  const UniqueId own = UniqueId::from_bytes(std::as_bytes(std::span<const char, UniqueId::kBytes>(id.internal)));
  constexpr int kGiveUpMs = 300'000;
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::milliseconds(kGiveUpMs);
  while (outlives_a_connection(own, kGiveUpMs)) ASSERT_LT(std::chrono::steady_clock::now(), give_up);
}

TEST(NcclLife, Split) {
  with_nccl_ranks(4, [](int rank, ncclComm_t& comm) {
    ncclComm_t half = nullptr;
    const int color = rank == 3 ? NCCL_SPLIT_NOCOLOR : 7;
    ASSERT_EQ(ncclCommSplit(comm, color, -rank, &half, nullptr), ncclSuccess) << ncclGetLastError(comm);
    EXPECT_EQ(half == nullptr, rank == 3);
    if (half) {
      int count = 0, own = 0;
      EXPECT_EQ(ncclCommCount(half, &count), ncclSuccess);
      EXPECT_EQ(ncclCommUserRank(half, &own), ncclSuccess);
      EXPECT_EQ(count, 3);
      EXPECT_EQ(own, 2 - rank);
      EXPECT_EQ(sum_of(half, rank + 1), 6);
      EXPECT_EQ(ncclCommDestroy(half), ncclSuccess);
    }
    EXPECT_EQ(sum_of(comm, 1), 4);
    EXPECT_TRUE(failed(ncclCommSplit(comm, -5, 0, &half, nullptr), ncclInvalidArgument, {"color is -5"}));
  });
}

TEST(NcclLife, ShrinkWithoutALoss) {
  with_nccl_ranks(3, [](int rank, ncclComm_t& comm) {
    int excluded = 1;
    ncclComm_t rest = nullptr;
    if (rank == 1) return;
    ASSERT_EQ(ncclCommShrink(comm, &excluded, 1, &rest, nullptr, NCCL_SHRINK_DEFAULT), ncclSuccess)
        << ncclGetLastError(comm);
    EXPECT_EQ(sum_of(rest, rank + 1), 4);
    EXPECT_EQ(ncclCommDestroy(rest), ncclSuccess);
  });
}

// Rank 2 aborts while the others wait for it in a call. They end the call, shrink, and continue.
TEST(NcclLife, ShrinkAfterAnAbort) {
  with_nccl_ranks(3, [](int rank, ncclComm_t& comm) {
    if (rank == 2) {
      EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
      comm = nullptr;
      return;
    }
    int value = 1;
    EXPECT_TRUE(
        failed(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr), ncclRemoteError, {"rank 2"}));
    ncclResult_t state = ncclSuccess;
    EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    EXPECT_EQ(state, ncclRemoteError);
    int excluded = 2;
    ncclComm_t rest = nullptr;
    ASSERT_EQ(ncclCommShrink(comm, &excluded, 1, &rest, nullptr, NCCL_SHRINK_ABORT), ncclSuccess)
        << ncclGetLastError(comm);
    EXPECT_EQ(sum_of(rest, rank + 1), 3);
    EXPECT_EQ(ncclCommDestroy(rest), ncclSuccess);
  });
}

// %h and %p in the name; the file is opened anew after ncclResetDebugInit.
TEST(NcclLife, DebugLinesGoToTheFileOfNcclDebugFile) {
  const std::string folder = testing::TempDir() + "nccl-debug-" + std::to_string(::getpid());
  setenv("NCCL_DEBUG", "WARN", 1);
  setenv("NCCL_DEBUG_FILE", (folder + ".%%.%p.log").c_str(), 1);
  ncclResetDebugInit();
  EXPECT_EQ(ncclGetUniqueId(nullptr), ncclInvalidArgument);
  unsetenv("NCCL_DEBUG");
  unsetenv("NCCL_DEBUG_FILE");
  ncclResetDebugInit();
  const std::string name = folder + ".%." + std::to_string(::getpid()) + ".log";
  std::ifstream file(name);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_NE(text.find("NCCL WARN ncclGetUniqueId: uniqueId is a null pointer\n"), std::string::npos) << text;
  EXPECT_NE(text.find(":" + std::to_string(::getpid()) + " NCCL "), std::string::npos) << text;
  std::remove(name.c_str());
}

// As in NCCL: a communicator that was finalized cannot be revoked.
TEST(NcclLife, RevokeAfterFinalize) {
  with_nccl_ranks(2, [](int, ncclComm_t& comm) {
    EXPECT_EQ(ncclCommFinalize(comm), ncclSuccess) << ncclGetLastError(comm);
    EXPECT_TRUE(failed(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), ncclInvalidArgument, {"was finalized"}, comm));
    int value = 0;
    EXPECT_TRUE(
        failed(ncclBcast(&value, 1, ncclInt32, 0, comm, nullptr), ncclInvalidArgument, {"was finalized"}, comm));
  });
}

TEST(NcclLife, RevokeThenShrink) {
  with_nccl_ranks(3, [](int rank, ncclComm_t& comm) {
    EXPECT_EQ(ncclCommRevoke(comm, 3), ncclInvalidArgument);
    EXPECT_EQ(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), ncclSuccess);
    int value = 1, excluded = 0;
    EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr), ncclInvalidUsage);
    if (rank == 0) return;
    ncclComm_t rest = nullptr;
    ASSERT_EQ(ncclCommShrink(comm, &excluded, 1, &rest, nullptr, NCCL_SHRINK_ABORT), ncclSuccess)
        << ncclGetLastError(comm);
    EXPECT_EQ(sum_of(rest, 1), 2);
    EXPECT_EQ(ncclCommDestroy(rest), ncclSuccess);
  });
}

// The results are those of NCCL 2.28.9.
TEST(NcclLife, RevokeThenSplit) {
  with_nccl_ranks(3, [](int rank, ncclComm_t& comm) {
    EXPECT_EQ(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), ncclSuccess);
    EXPECT_TRUE(failed(ncclCommRevoke(comm, NCCL_REVOKE_DEFAULT), ncclInvalidArgument, {"revoked before"}, comm));
    ncclResult_t state = ncclInternalError;
    EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    EXPECT_EQ(state, ncclSuccess);
    EXPECT_TRUE(failed(ncclCommFinalize(comm), ncclInvalidArgument, {"was revoked"}, comm));
    ncclComm_t some = comm;
    const int color = rank == 1 ? NCCL_SPLIT_NOCOLOR : 0;
    ASSERT_EQ(ncclCommSplit(comm, color, -rank, &some, nullptr), ncclSuccess) << ncclGetLastError(comm);
    EXPECT_EQ(some == nullptr, rank == 1);
    if (rank == 1) return;
    int own = -1;
    EXPECT_EQ(ncclCommUserRank(some, &own), ncclSuccess);
    EXPECT_EQ(own, rank == 0 ? 1 : 0);
    EXPECT_EQ(sum_of(some, rank + 1), 4);
    EXPECT_EQ(ncclCommDestroy(some), ncclSuccess);
  });
}

TEST(NcclLife, NonBlocking) {
  with_nccl_ranks(
      2,
      [](int rank, ncclComm_t& comm) {
        int value = rank + 1;
        const ncclResult_t issued = ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr);
        EXPECT_TRUE(issued == ncclSuccess || issued == ncclInProgress);
        EXPECT_EQ(settled(comm), ncclSuccess);
        EXPECT_EQ(value, 3);
        ncclComm_t all = nullptr, none = comm;
        EXPECT_EQ(ncclCommSplit(comm, 0, 0, &all, nullptr), ncclInProgress);
        ASSERT_NE(all, nullptr);
        EXPECT_EQ(settled(all), ncclSuccess);
        EXPECT_EQ(settled(comm), ncclSuccess);
        EXPECT_EQ(ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &none, nullptr), ncclInProgress);
        EXPECT_EQ(none, nullptr);
        EXPECT_EQ(settled(comm), ncclSuccess);
        EXPECT_EQ(ncclCommFinalize(all), ncclInProgress);
        EXPECT_EQ(settled(all), ncclSuccess);
        EXPECT_EQ(ncclCommDestroy(all), ncclSuccess);
      },
      false);
}

// The parent decides whether split returns at once. The config decides it for the new communicator; without a config
// the parent does.
TEST(NcclLife, BlockingOfTheParentAndOfTheChild) {
  const auto end = [](ncclComm_t comm, ncclResult_t expected) {
    EXPECT_EQ(ncclCommFinalize(comm), expected);
    EXPECT_EQ(settled(comm), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  };
  with_nccl_ranks(2, [&](int, ncclComm_t& comm) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t child = nullptr, none = nullptr;
    ASSERT_EQ(ncclCommSplit(comm, 0, 0, &child, &config), ncclSuccess) << ncclGetLastError(comm);
    end(child, ncclInProgress);
    EXPECT_EQ(ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &none, &config), ncclSuccess);
    ASSERT_EQ(ncclCommShrink(comm, nullptr, 0, &child, &config, NCCL_SHRINK_DEFAULT), ncclSuccess);
    end(child, ncclInProgress);
  });
  with_nccl_ranks(
      2,
      [&](int, ncclComm_t& comm) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        ncclComm_t child = nullptr;
        ASSERT_EQ(ncclCommSplit(comm, 0, 0, &child, &config), ncclInProgress);
        EXPECT_EQ(settled(comm), ncclSuccess);
        end(child, ncclSuccess);
        ASSERT_EQ(ncclCommSplit(comm, 0, 0, &child, nullptr), ncclInProgress);
        EXPECT_EQ(settled(comm), ncclSuccess);
        end(child, ncclInProgress);
      },
      false);
}

// Rank 2 aborts instead of joining the split. Its error is reported, and the others can still shrink.
TEST(NcclLife, ShrinkAfterAFailedSplitWithoutColor) {
  with_nccl_ranks(
      3,
      [](int rank, ncclComm_t& comm) {
        if (rank == 2) {
          EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
          comm = nullptr;
          return;
        }
        ncclComm_t none = nullptr, rest = nullptr;
        EXPECT_EQ(ncclCommSplit(comm, NCCL_SPLIT_NOCOLOR, 0, &none, nullptr), ncclInProgress);
        EXPECT_EQ(settled(comm), ncclRemoteError);
        int excluded = 2;
        ASSERT_EQ(ncclCommShrink(comm, &excluded, 1, &rest, nullptr, NCCL_SHRINK_ABORT), ncclInProgress)
            << ncclGetLastError(comm);
        EXPECT_EQ(settled(rest), ncclSuccess) << ncclGetLastError(rest);
        EXPECT_EQ(ncclCommDestroy(rest), ncclSuccess);
      },
      false);
}

// One rank of two: init cannot end. Its communicator is not usable, and abort ends it.
TEST(NcclLife, AbortOfAnInitInProgress) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
  EXPECT_EQ(state, ncclInProgress);
  int value = 0;
  EXPECT_TRUE(failed(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr), ncclInvalidArgument,
                     {"in progress"}, comm));
  EXPECT_EQ(ncclCommDestroy(comm), ncclInvalidUsage);
  EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclInvalidArgument);
}

// A thread is inside a call that cannot end, and another one aborts the communicator.
TEST(NcclLife, AbortByAnotherThread) {
  with_nccl_ranks(2, [](int rank, ncclComm_t& comm) {
    if (rank == 1) {  // does not join the call, and ends when rank 0 has aborted
      ncclResult_t state = ncclSuccess;
      while (state == ncclSuccess) ASSERT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
      EXPECT_EQ(state, ncclRemoteError);
      return;
    }
    int value = 1;
    std::thread caller(
        [&] { EXPECT_NE(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr), ncclSuccess); });
    ncclResult_t state = ncclSuccess;
    while (state == ncclSuccess) ASSERT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    EXPECT_EQ(state, ncclInProgress);  // the call has begun
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
    caller.join();
    comm = nullptr;
  });
}

// A message that was sent before the sender destroyed its communicator still arrives.
TEST(NcclLife, DestroyAfterASend) {
  std::atomic<bool> destroyed{false};
  with_nccl_ranks(2, [&](int rank, ncclComm_t& comm) {
    int value = rank == 0 ? 42 : 0;
    if (rank == 0) {
      EXPECT_EQ(ncclBcast(&value, 1, ncclInt32, 0, comm, nullptr), ncclSuccess);
      EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
      comm = nullptr;
      destroyed = true;
      return;
    }
    while (!destroyed) std::this_thread::yield();
    EXPECT_EQ(ncclBcast(&value, 1, ncclInt32, 0, comm, nullptr), ncclSuccess) << ncclGetLastError(comm);
    EXPECT_EQ(value, 42);
  });
}

TEST(NcclBadInput, HandlesThatAreNone) {
  int value = 0;
  ncclComm_t comm = nullptr;
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ASSERT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  EXPECT_TRUE(failed(ncclCommDestroy(comm), ncclInvalidArgument, {"destroyed"}));
  EXPECT_TRUE(failed(ncclCommAbort(comm), ncclInvalidArgument, {"destroyed"}));
  EXPECT_TRUE(
      failed(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr), ncclInvalidArgument, {"destroyed"}));
  EXPECT_TRUE(failed(ncclCommCount(comm, &value), ncclInvalidArgument, {"destroyed"}));
  EXPECT_TRUE(failed(ncclCommCount(nullptr, &value), ncclInvalidArgument, {"comm is a null pointer"}));
  EXPECT_TRUE(
      failed(ncclCommCount(reinterpret_cast<ncclComm_t>(&value), &value), ncclInvalidArgument, {"not a communicator"}));
  EXPECT_EQ(ncclCommDestroy(nullptr), ncclSuccess);
  EXPECT_EQ(ncclCommAbort(nullptr), ncclSuccess);
}

TEST(NcclBadInput, Init) {
  ncclUniqueId id, none = {};
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  EXPECT_TRUE(failed(ncclGetUniqueId(nullptr), ncclInvalidArgument, {"uniqueId"}));
  EXPECT_TRUE(failed(ncclCommInitRank(nullptr, 1, id, 0), ncclInvalidArgument, {"comm"}));
  EXPECT_TRUE(failed(ncclCommInitRank(&comm, 0, id, 0), ncclInvalidArgument, {"nranks is 0"}));
  EXPECT_TRUE(failed(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument, {"rank is 2", "0 to 1"}));
  EXPECT_TRUE(failed(ncclCommInitRank(&comm, 2, id, -1), ncclInvalidArgument, {"rank is -1"}));
  EXPECT_TRUE(failed(ncclCommInitRank(&comm, 1, none, 0), ncclInvalidArgument, {"commId", "ncclGetUniqueId"}));
  EXPECT_TRUE(failed(ncclCommInitAll(&comm, 0, nullptr), ncclInvalidArgument, {"ndev is 0"}));
  const int gpu = -3;
  EXPECT_TRUE(failed(ncclCommInitAll(&comm, 1, &gpu), ncclInvalidArgument, {"GPU -3"}));
  EXPECT_TRUE(failed(ncclCommInitRankScalable(&comm, 1, 0, 2, &id, nullptr), ncclInvalidArgument, {"nId is 2"}));
  EXPECT_EQ(comm, nullptr);
  ASSERT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
  ncclComm_t second = nullptr;
  EXPECT_TRUE(failed(ncclCommInitRank(&second, 1, id, 0), ncclInvalidUsage, {"already used by rank 0"}));
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

// The group is refused because of its second init, so the id of the first one is still unused.
TEST(NcclBadInput, RefusedGroupUsesNoId) {
  ncclUniqueId id;
  ncclComm_t comm = nullptr, wrong = nullptr;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
  EXPECT_EQ(ncclCommInitRank(&wrong, 1, id, 1), ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  EXPECT_EQ(comm, nullptr);
  ASSERT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess) << ncclGetLastError(nullptr);
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

TEST(NcclBadInput, Calls) {
  with_nccl_ranks(1, [](int, ncclComm_t& comm) {
    int a[4] = {}, b[4] = {};
    const auto reduce = [&](const void* from, void* to, std::size_t count, int type, int op) {
      return ncclAllReduce(from, to, count, static_cast<ncclDataType_t>(type), static_cast<ncclRedOp_t>(op), comm,
                           nullptr);
    };
    const std::size_t huge = std::numeric_limits<std::size_t>::max() / 2;
    EXPECT_TRUE(failed(reduce(nullptr, b, 4, ncclInt32, ncclSum), ncclInvalidArgument, {"sendbuff"}, comm));
    EXPECT_TRUE(failed(reduce(a, nullptr, 4, ncclInt32, ncclSum), ncclInvalidArgument, {"recvbuff"}, comm));
    EXPECT_TRUE(
        failed(reduce(a, b, huge, ncclInt32, ncclSum), ncclInvalidArgument, {"count is " + std::to_string(huge)}));
    EXPECT_TRUE(failed(reduce(a, b, 4, 12, ncclSum), ncclInvalidArgument, {"datatype is 12"}));
    EXPECT_TRUE(failed(reduce(a, b, 4, -1, ncclSum), ncclInvalidArgument, {"datatype is -1"}));
    EXPECT_TRUE(failed(reduce(a, b, 4, ncclInt32, 5), ncclInvalidArgument, {"op is 5"}));
    EXPECT_TRUE(failed(reduce(a, a + 1, 3, ncclInt32, ncclSum), ncclInvalidArgument,
                       {"sendbuff", "recvbuff", "12 bytes", "overlap"}));
    EXPECT_TRUE(failed(ncclBcast(a, 4, ncclInt32, 1, comm, nullptr), ncclInvalidArgument, {"root is 1", "0 to 0"}));
    EXPECT_TRUE(failed(ncclSend(a, 4, ncclInt32, -2, comm, nullptr), ncclInvalidArgument, {"peer is -2"}));
    EXPECT_TRUE(failed(ncclAllReduce(a, b, 4, ncclInt32, ncclSum, comm, reinterpret_cast<cudaStream_t>(a)),
                       ncclInvalidArgument, {"stream"}));
    EXPECT_EQ(ncclCommCount(comm, nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclCommGetAsyncError(comm, nullptr), ncclInvalidArgument);
    EXPECT_EQ(sum_of(comm, 5), 5);  // still usable
  });
}

// Overlapping buffers and a stream without a GPU are found at the call: nothing of the group was issued, and the
// communicators still work.
TEST(NcclBadInput, RefusedBeforeTheGroupIsIssued) {
  with_nccl_ranks(2, [](int rank, ncclComm_t& comm) {
    int value = 1, data[8] = {};
    const auto no_stream = reinterpret_cast<cudaStream_t>(data);
    for (const bool overlapping : {true, false}) {
      ASSERT_EQ(ncclGroupStart(), ncclSuccess);
      EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr), ncclSuccess);
      if (overlapping)
        EXPECT_TRUE(failed(ncclAllGather(data + 1 - rank, data, 2, ncclInt32, comm, nullptr), ncclInvalidArgument,
                           {"overlap"}, comm));
      else
        EXPECT_TRUE(failed(ncclBcast(data, 8, ncclInt32, 0, comm, no_stream), ncclInvalidArgument, {"stream"}, comm));
      EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
      EXPECT_EQ(value, 1);
    }
    EXPECT_EQ(ncclAllGather(data + 2 * rank, data, 2, ncclInt32, comm, nullptr), ncclSuccess);  // in place
    EXPECT_EQ(ncclReduceScatter(data, data + 2 * rank, 2, ncclInt32, ncclSum, comm, nullptr), ncclSuccess);
    EXPECT_EQ(sum_of(comm, 1), 2);
  });
}

// The first call of the group is issued when the message of rank 0 to itself is refused.
TEST(NcclBadInput, RefusedAtTheEndOfAGroup) {
  with_nccl_ranks(2, [](int rank, ncclComm_t& comm) {
    int value = 1;
    EXPECT_EQ(ncclCommCount(comm, nullptr), ncclInvalidArgument);  // an older error of the communicator
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr), ncclSuccess);
    if (rank == 0) EXPECT_EQ(ncclSend(&value, 1, ncclInt32, 0, comm, nullptr), ncclSuccess);
    else EXPECT_EQ(ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr), ncclSuccess);
    const ncclResult_t result = ncclGroupEnd();
    if (rank == 0) EXPECT_TRUE(failed(result, ncclInvalidArgument, {"ncclGroupEnd", "to itself"}, comm));
    else EXPECT_TRUE(failed(result, ncclInvalidUsage, {"ncclGroupEnd", "a later call of the group was refused"}, comm));
  });
}

// The error of a failed init is reported as it was, however often it is asked for.
TEST(NcclBadInput, CallsAfterAFailedInit) {
  setenv("SLIP_NCCL_INIT_TIMEOUT", "1", 1);
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 2, id, 0, &config), ncclInProgress);
  EXPECT_EQ(settled(comm), ncclRemoteError);
  unsetenv("SLIP_NCCL_INIT_TIMEOUT");
  int count = 0;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(failed(ncclCommCount(comm, &count), ncclRemoteError, {"ncclCommCount: rank 0 of 2", "rank 1"}, comm));
    EXPECT_EQ(settled(comm), ncclRemoteError);
  }
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

// A caller may print the errors of several communicators in one statement.
TEST(NcclBadInput, TextsOfSeveralCommunicatorsAreValidTogether) {
  ncclComm_t comms[2];
  ASSERT_EQ(ncclCommInitAll(comms, 2, nullptr), ncclSuccess);
  for (ncclComm_t comm : comms) EXPECT_EQ(ncclCommCount(comm, nullptr), ncclInvalidArgument);
  int value = 0;
  EXPECT_EQ(ncclBcast(&value, 1, ncclInt32, 7, comms[1], nullptr), ncclInvalidArgument);
  const char* const first = ncclGetLastError(comms[0]);
  const char* const second = ncclGetLastError(comms[1]);
  EXPECT_NE(std::string(first).find("ncclCommCount"), std::string::npos) << first;
  EXPECT_NE(std::string(second).find("root is 7"), std::string::npos) << second;
  for (ncclComm_t comm : comms) EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

TEST(NcclBadInput, MismatchedCalls) {
  with_nccl_ranks(2, [](int rank, ncclComm_t& comm) {
    std::vector<float> data(64);
    EXPECT_TRUE(
        failed(ncclAllReduce(data.data(), data.data(), rank == 0 ? 32 : 64, ncclFloat32, ncclSum, comm, nullptr),
               ncclInvalidUsage, {"ncclAllReduce", "all_reduce of 32 F32", "all_reduce of 64 F32"}, comm));
    const std::string text = ncclGetLastError(comm);
    EXPECT_EQ(text.find(".cpp"), std::string::npos) << text;  // no line of this library
    ncclResult_t state = ncclSuccess;
    EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    EXPECT_EQ(state, ncclInvalidUsage);
  });
}

}  // namespace
}  // namespace slip::test_life
