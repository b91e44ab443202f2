// Ranks as threads that use libnccl.so.2 over host memory.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "nccl/nccl.h"

namespace slip::test {

inline const int kHostMode = setenv("SLIP_NCCL_DEVICE", "cpu", 1);  // on a machine with a GPU, too

// Runs body(rank, id) in a thread for each rank.
inline void as_nccl_ranks(int n, const std::function<void(int, const ncclUniqueId&)>& body) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < n; ++rank) threads.emplace_back([&, rank] { body(rank, id); });
  for (std::thread& thread : threads) thread.join();
}

// The same with a communicator, which is destroyed at the end unless the body has set it to null.
inline void with_nccl_ranks(int n, const std::function<void(int, ncclComm_t&)>& body, bool blocking = true) {
  std::latch made(n);  // a rank that aborts at once would fail the init of a slower one
  as_nccl_ranks(n, [&](int rank, const ncclUniqueId& id) {
    ncclComm_t comm = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking ? 1 : 0;
    ncclResult_t state = ncclCommInitRankConfig(&comm, n, id, rank, &config);
    while (state == ncclInProgress) {
      std::this_thread::yield();
      EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    }
    made.arrive_and_wait();
    ASSERT_EQ(state, ncclSuccess) << ncclGetLastError(comm);
    body(rank, comm);
    if (!comm) return;
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  });
}

// Polls a non-blocking communicator until its last call has ended.
inline ncclResult_t settled(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) return ncclInternalError;
    std::this_thread::yield();
  }
  return state;
}

// Whether the call failed with this result, and its text has all these words.
inline testing::AssertionResult failed(ncclResult_t result, ncclResult_t expected,
                                       const std::vector<std::string>& words, ncclComm_t comm = nullptr) {
  const std::string text = ncclGetLastError(comm);
  if (result != expected) return testing::AssertionFailure() << "result " << result << ": " << text;
  for (const std::string& word : words) {
    if (text.find(word) == std::string::npos) return testing::AssertionFailure() << "no '" << word << "' in: " << text;
  }
  return testing::AssertionSuccess();
}

}  // namespace slip::test
