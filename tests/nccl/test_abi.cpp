// The binary interface of NCCL 2.28.9: values, sizes and offsets. check_exports.py compares the names.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>

#include "nccl_ranks.hpp"

namespace slip::test_abi {
namespace {

static_assert(NCCL_VERSION_CODE == 22809 && NCCL_VERSION(2, 28, 9) == 22809 && NCCL_VERSION(2, 8, 4) == 2804);
static_assert(sizeof(ncclUniqueId) == 128 && alignof(ncclUniqueId) == 1);

static_assert(sizeof(ncclResult_t) == 4 && sizeof(ncclRedOp_t) == 4 && sizeof(ncclDataType_t) == 4);
static_assert(ncclSuccess == 0 && ncclUnhandledCudaError == 1 && ncclSystemError == 2 && ncclInternalError == 3);
static_assert(ncclInvalidArgument == 4 && ncclInvalidUsage == 5 && ncclRemoteError == 6 && ncclInProgress == 7);
static_assert(ncclNumResults == 8);
static_assert(ncclSum == 0 && ncclProd == 1 && ncclMax == 2 && ncclMin == 3 && ncclAvg == 4 && ncclNumOps == 5);
static_assert(ncclMaxRedOp == 0x7fffffff);
static_assert(ncclInt8 == 0 && ncclChar == 0 && ncclUint8 == 1 && ncclInt32 == 2 && ncclInt == 2 && ncclUint32 == 3);
static_assert(ncclInt64 == 4 && ncclUint64 == 5 && ncclFloat16 == 6 && ncclHalf == 6 && ncclFloat32 == 7);
static_assert(ncclFloat == 7 && ncclFloat64 == 8 && ncclDouble == 8 && ncclBfloat16 == 9);
static_assert(ncclFloat8e4m3 == 10 && ncclFloat8e5m2 == 11 && ncclNumTypes == 12);
static_assert(ncclScalarDevice == 0 && ncclScalarHostImmediate == 1);
static_assert(NCCL_SPLIT_NOCOLOR == -1 && NCCL_SHRINK_DEFAULT == 0 && NCCL_SHRINK_ABORT == 1);
static_assert(NCCL_REVOKE_DEFAULT == 0 && NCCL_WIN_DEFAULT == 0 && NCCL_WIN_COLL_SYMMETRIC == 1);
static_assert(NCCL_WIN_REQUIRED_ALIGNMENT == 4096 && NCCL_CTA_POLICY_DEFAULT == 0);
static_assert(NCCL_CTA_POLICY_EFFICIENCY == 1 && NCCL_CTA_POLICY_ZERO == 2);

static_assert(offsetof(ncclConfig_t, size) == 0 && offsetof(ncclConfig_t, magic) == 8);
static_assert(offsetof(ncclConfig_t, version) == 12 && offsetof(ncclConfig_t, blocking) == 16);
static_assert(offsetof(ncclConfig_t, cgaClusterSize) == 20 && offsetof(ncclConfig_t, minCTAs) == 24);
static_assert(offsetof(ncclConfig_t, maxCTAs) == 28 && offsetof(ncclConfig_t, netName) == 32);
static_assert(offsetof(ncclConfig_t, splitShare) == 40 && offsetof(ncclConfig_t, trafficClass) == 44);
static_assert(offsetof(ncclConfig_t, commName) == 48 && offsetof(ncclConfig_t, collnetEnable) == 56);
static_assert(offsetof(ncclConfig_t, CTAPolicy) == 60 && offsetof(ncclConfig_t, shrinkShare) == 64);
static_assert(offsetof(ncclConfig_t, nvlsCTAs) == 68 && offsetof(ncclConfig_t, nChannelsPerNetPeer) == 72);
static_assert(offsetof(ncclConfig_t, nvlinkCentricSched) == 76 && sizeof(ncclConfig_t) == 80);
static_assert(offsetof(ncclSimInfo_t, size) == 0 && offsetof(ncclSimInfo_t, magic) == 8);
static_assert(offsetof(ncclSimInfo_t, version) == 12 && offsetof(ncclSimInfo_t, estimatedTime) == 16);
static_assert(sizeof(ncclSimInfo_t) == 24);

TEST(NcclAbi, VersionAndErrorStrings) {
  int version = 0;
  EXPECT_EQ(ncclGetVersion(&version), ncclSuccess);
  EXPECT_EQ(version, 22809);
  EXPECT_EQ(pncclGetVersion(&version), ncclSuccess);
  for (int i = 0; i <= ncclNumResults; ++i)
    EXPECT_GT(std::strlen(ncclGetErrorString(static_cast<ncclResult_t>(i))), 4U);
}

// Callers compiled with 2.14 (one option, then padding), 2.18 (the options up to splitShare) and a later version with
// more fields.
TEST(NcclAbi, ConfigsOfOtherVersions) {
  struct {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int more[4] = {1, 2, 3, 4};
  } caller;
  struct Version {
    std::size_t size;
    unsigned version;
  };
  for (const auto& [size, version] :
       {Version{24, NCCL_VERSION(2, 14, 3)}, Version{48, NCCL_VERSION(2, 18, 1)}, Version{sizeof(caller), 29901}}) {
    caller.config = NCCL_CONFIG_INITIALIZER;
    caller.config.size = size;
    caller.config.version = version;
    caller.config.blocking = 1;
    if (size == 24) caller.config.cgaClusterSize = -7;             // padding of the caller's struct
    if (size < sizeof(ncclConfig_t)) caller.config.nvlsCTAs = -7;  // beyond it
    ncclUniqueId id;
    ncclComm_t comm = nullptr;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &caller.config), ncclSuccess) << ncclGetLastError(nullptr);
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  }
}

TEST(NcclAbi, WrongConfigs) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclComm_t comm = nullptr;
  const auto refused = [&](const std::function<void(ncclConfig_t&)>& change, ncclResult_t expected, const char* word) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    change(config);
    return test::failed(ncclCommInitRankConfig(&comm, 1, id, 0, &config), expected, {word});
  };
  EXPECT_TRUE(refused([](ncclConfig_t& c) { c.magic = 0x1234; }, ncclInvalidArgument, "0x1234"));
  EXPECT_TRUE(refused([](ncclConfig_t& c) { c.size = 8; }, ncclInvalidArgument, "size 8"));
  EXPECT_TRUE(refused([](ncclConfig_t& c) { c.blocking = 2; }, ncclInvalidArgument, "blocking is 2"));
  EXPECT_TRUE(refused([](ncclConfig_t& c) { c.minCTAs = 9, c.maxCTAs = 8; }, ncclInvalidArgument, "minCTAs is 9"));
  EXPECT_TRUE(refused([](ncclConfig_t& c) { c.netName = "IB"; }, ncclInvalidUsage, "'IB'"));
  EXPECT_EQ(comm, nullptr);
}

}  // namespace
}  // namespace slip::test_abi
