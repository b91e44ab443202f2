// The kernel `decompress` on a GPU gives the same bits and finds the same faults as on the host.
#include <cuda_runtime_api.h>

#include "support/decompress_tests.hpp"

namespace slip {
namespace {

class CudaDecompress : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU here";
  }
};

TEST_F(CudaDecompress, BitsComeBack) { test::expect_bits_come_back(Device::open("cuda:0")); }
TEST_F(CudaDecompress, DamageIsReportedAndNotWritten) { test::expect_damage_is_reported(Device::open("cuda:0")); }
TEST_F(CudaDecompress, HostileBlocksDoNoHarm) { test::expect_hostile_blocks_do_no_harm(Device::open("cuda:0")); }

}  // namespace
}  // namespace slip
