// Results that the C client (client.c) does not check: averages, factors, groups, memory.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "nccl_ranks.hpp"

namespace slip::test_calls {
namespace {

using test::failed;
using test::with_nccl_ranks;

// 1/3 is rounded first: 3 * (1/3 of x), each product rounded, differs from the rounded mean of three times x.
TEST(NcclCalls, FloatAverageMultipliesFirst) {
  constexpr int kRanks = 3;
  with_nccl_ranks(kRanks, [](int rank, ncclComm_t& comm) {
    std::vector<float> values(1000);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i * 7 + 1) / 3 + static_cast<float>(rank);
    ASSERT_EQ(ncclAllReduce(values.data(), values.data(), values.size(), ncclFloat32, ncclAvg, comm, nullptr),
              ncclSuccess);
    const float third = 1.0F / kRanks;
    int differs = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      volatile float sum = 0, product = 0, plain = 0;  // volatile: no fused multiply-add
      for (int r = 0; r < kRanks; ++r) {
        const float value = static_cast<float>(i * 7 + 1) / 3 + static_cast<float>(r);
        product = value * third;
        sum = r == 0 ? product : sum + product;
        plain = r == 0 ? value : plain + value;
      }
      ASSERT_EQ(values[i], sum) << i;
      differs += values[i] != plain / kRanks ? 1 : 0;
    }
    EXPECT_GT(differs, 0);
  });
}

TEST(NcclCalls, IntegerAverageDividesLast) {
  with_nccl_ranks(3, [](int rank, ncclComm_t& comm) {
    const std::int32_t values[] = {rank, -rank, rank + 1, 7};  // sums 3, -3, 6, 21, and 1, 5 below
    std::int32_t out[4] = {};
    ASSERT_EQ(ncclAllReduce(values, out, 4, ncclInt32, ncclAvg, comm, nullptr), ncclSuccess);
    EXPECT_EQ(std::vector<std::int32_t>(out, out + 4), (std::vector<std::int32_t>{1, -1, 2, 7}));
    const std::uint8_t small[] = {static_cast<std::uint8_t>(rank == 2 ? 1 : 0),
                                  static_cast<std::uint8_t>(rank == 0 ? 5 : 0)};
    std::uint8_t quotient[2] = {};
    ASSERT_EQ(ncclAllReduce(small, quotient, 2, ncclUint8, ncclAvg, comm, nullptr), ncclSuccess);
    EXPECT_EQ(quotient[0], 0);
    EXPECT_EQ(quotient[1], 1);
  });
}

TEST(NcclCalls, PreMulSum) {
  with_nccl_ranks(2, [](int rank, ncclComm_t& comm) {
    float factor = rank == 0 ? 0.5F : 3.0F;
    ncclRedOp_t immediate, later;
    ASSERT_EQ(ncclRedOpCreatePreMulSum(&immediate, &factor, ncclFloat32, ncclScalarHostImmediate, comm), ncclSuccess);
    ASSERT_EQ(ncclRedOpCreatePreMulSum(&later, &factor, ncclFloat32, ncclScalarDevice, comm), ncclSuccess);
    factor = 10;
    float value = 4, sum = 0;
    EXPECT_EQ(ncclAllReduce(&value, &sum, 1, ncclFloat32, immediate, comm, nullptr), ncclSuccess);
    EXPECT_EQ(sum, 14);
    EXPECT_EQ(ncclAllReduce(&value, &sum, 1, ncclFloat32, later, comm, nullptr), ncclSuccess) << ncclGetLastError(comm);
    EXPECT_EQ(sum, 80);
    EXPECT_TRUE(failed(ncclAllReduce(&value, &sum, 1, ncclInt32, immediate, comm, nullptr), ncclInvalidArgument,
                       {"datatype 7", "datatype 2"}));
    EXPECT_EQ(ncclRedOpDestroy(immediate, comm), ncclSuccess);
    EXPECT_TRUE(failed(ncclAllReduce(&value, &sum, 1, ncclFloat32, immediate, comm, nullptr), ncclInvalidArgument,
                       {"op is " + std::to_string(immediate)}));
    EXPECT_TRUE(failed(ncclRedOpDestroy(immediate, comm), ncclInvalidArgument, {"no operator"}));
    EXPECT_TRUE(failed(ncclRedOpDestroy(ncclSum, comm), ncclInvalidArgument, {"built in"}));
    std::int64_t large = (std::int64_t{1} << 60) + 1;
    EXPECT_TRUE(failed(ncclRedOpCreatePreMulSum(&later, &large, ncclInt64, ncclScalarHostImmediate, comm),
                       ncclInvalidUsage, {"1152921504606846977"}));
  });
}

// One thread has both ranks. A call that reads its factor from device memory waits for the earlier call of its rank,
// and that one for the other rank.
TEST(NcclCalls, FactorsInDeviceMemoryInAGroupOfSeveralRanks) {
  ncclComm_t comms[2];
  ASSERT_EQ(ncclCommInitAll(comms, 2, nullptr), ncclSuccess);
  ncclRedOp_t ops[2];
  float factors[2] = {2, 3}, values[2] = {1, 2}, sums[2] = {};
  int counts[2] = {1, 1};
  for (int rank = 0; rank < 2; ++rank)
    ASSERT_EQ(ncclRedOpCreatePreMulSum(&ops[rank], &factors[rank], ncclFloat32, ncclScalarDevice, comms[rank]),
              ncclSuccess);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ncclAllReduce(&counts[rank], &counts[rank], 1, ncclInt32, ncclSum, comms[rank], nullptr), ncclSuccess);
    EXPECT_EQ(ncclAllReduce(&values[rank], &sums[rank], 1, ncclFloat32, ops[rank], comms[rank], nullptr), ncclSuccess);
  }
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(counts[rank], 2);
    EXPECT_EQ(sums[rank], 8);
    EXPECT_EQ(ncclCommDestroy(comms[rank]), ncclSuccess);
  }
}

// Ranks of one thread, collectives and messages in one group, nested groups, an empty group, a count of 0.
TEST(NcclCalls, Groups) {
  ncclComm_t comms[3];
  const int gpus[] = {0, 0, 0};  // several ranks on one device are allowed
  ASSERT_EQ(ncclCommInitAll(comms, 3, gpus), ncclSuccess);
  int sums[3] = {1, 2, 3}, out[3] = {10, 20, 30}, in[3] = {};
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclSend(&out[rank], 1, ncclInt32, (rank + 1) % 3, comms[rank], nullptr), ncclSuccess);
    EXPECT_EQ(ncclAllReduce(&sums[rank], &sums[rank], 1, ncclInt32, ncclSum, comms[rank], nullptr), ncclSuccess);
    EXPECT_EQ(ncclRecv(&in[rank], 1, ncclInt32, (rank + 2) % 3, comms[rank], nullptr), ncclSuccess);
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    EXPECT_EQ(in[rank], 0);  // nothing runs before the outermost end
  }
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess) << ncclGetLastError(nullptr);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(sums[rank], 6);
    EXPECT_EQ(in[rank], out[(rank + 2) % 3]);
  }
  EXPECT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  EXPECT_EQ(ncclAllReduce(nullptr, nullptr, 0, ncclInt32, ncclSum, comms[0], nullptr), ncclSuccess);
  for (ncclComm_t comm : comms) EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

TEST(NcclCalls, RefusedCallCancelsItsGroup) {
  ncclComm_t comms[2];
  ASSERT_EQ(ncclCommInitAll(comms, 2, nullptr), ncclSuccess);
  int value[2] = {1, 1};
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(ncclAllReduce(&value[0], &value[0], 1, ncclInt32, ncclSum, comms[0], nullptr), ncclSuccess);
  EXPECT_EQ(ncclAllReduce(&value[1], &value[1], 1, ncclInt32, static_cast<ncclRedOp_t>(99), comms[1], nullptr),
            ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
  EXPECT_EQ(value[0], 1);
  EXPECT_TRUE(failed(ncclGroupEnd(), ncclInvalidUsage, {"ncclGroupStart"}));
  // Nothing was submitted, so the communicators still work.
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(ncclAllReduce(&value[rank], &value[rank], 1, ncclInt32, ncclSum, comms[rank], nullptr), ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  EXPECT_EQ(value[0] + value[1], 4);
  for (ncclComm_t comm : comms) EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

// A null buffer is found at the call, before anything is issued.
TEST(NcclCalls, NullBufferCancelsItsGroup) {
  with_nccl_ranks(2, [](int rank, ncclComm_t& comm) {
    int value = 1, sum = 0;
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    EXPECT_EQ(ncclAllReduce(&value, &sum, 1, ncclInt32, ncclSum, comm, nullptr), ncclSuccess);
    EXPECT_TRUE(failed(ncclReduce(&value, rank == 0 ? nullptr : &sum, 1, ncclInt32, ncclSum, rank, comm, nullptr),
                       rank == 0 ? ncclInvalidArgument : ncclSuccess, {}));
    EXPECT_TRUE(failed(ncclAllGather(nullptr, &sum, 1, ncclInt32, comm, nullptr), ncclInvalidArgument, {"sendbuff"}));
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidArgument);
    EXPECT_EQ(sum, 0);
    EXPECT_EQ(ncclReduce(&value, rank == 0 ? &sum : nullptr, 1, ncclInt32, ncclSum, 0, comm, nullptr), ncclSuccess);
    EXPECT_EQ(sum, rank == 0 ? 2 : 0);
  });
}

TEST(NcclCalls, SimulatedGroup) {
  ncclComm_t comms[2];
  ASSERT_EQ(ncclCommInitAll(comms, 2, nullptr), ncclSuccess);
  int value[2] = {1, 1};
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(ncclAllReduce(&value[rank], &value[rank], 1, ncclInt32, ncclSum, comms[rank], nullptr), ncclSuccess);
  EXPECT_EQ(ncclGroupSimulateEnd(&info), ncclSuccess) << ncclGetLastError(nullptr);
  EXPECT_GT(info.estimatedTime, 0);
  EXPECT_EQ(value[0], 1);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  info.magic = 1;
  EXPECT_EQ(ncclAllReduce(&value[0], &value[0], 1, ncclInt32, ncclSum, comms[0], nullptr), ncclSuccess);
  EXPECT_EQ(ncclGroupSimulateEnd(&info), ncclInvalidArgument);
  EXPECT_TRUE(failed(ncclGroupEnd(), ncclInvalidUsage, {"ncclGroupStart"}));  // the group has ended
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
  EXPECT_EQ(value[0], 1);
  for (ncclComm_t comm : comms) EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

TEST(NcclCalls, Memory) {
  void* data = nullptr;
  ASSERT_EQ(ncclMemAlloc(&data, 100), ncclSuccess);
  with_nccl_ranks(1, [&](int, ncclComm_t& comm) {
    void* handle = nullptr;
    ASSERT_EQ(ncclCommRegister(comm, data, 100, &handle), ncclSuccess);
    EXPECT_NE(handle, nullptr);
    EXPECT_EQ(ncclCommDeregister(comm, handle), ncclSuccess);
    EXPECT_EQ(ncclCommDeregister(comm, handle), ncclInvalidArgument);
    ncclWindow_t window = nullptr;
    EXPECT_TRUE(failed(ncclCommWindowRegister(comm, data, 100, &window, 0), ncclInvalidUsage, {"windows"}));
  });
  EXPECT_EQ(ncclMemFree(data), ncclSuccess);
  EXPECT_TRUE(failed(ncclMemFree(data), ncclInvalidArgument, {"freed"}));
  EXPECT_EQ(ncclMemFree(nullptr), ncclSuccess);
}

}  // namespace
}  // namespace slip::test_calls
