// The kernel `decompress` on the cpu device, and a simulated one.
#include "support/decompress_tests.hpp"

namespace slip::test_decompress {
namespace {

TEST(Decompress, BitsComeBack) { test::expect_bits_come_back(Device::open("cpu")); }
TEST(Decompress, BitsComeBackOnASimulatedDevice) { test::expect_bits_come_back(Device::open("sim:h200")); }
TEST(Decompress, DamageIsReportedAndNotWritten) { test::expect_damage_is_reported(Device::open("cpu")); }
TEST(Decompress, HostileBlocksDoNoHarm) { test::expect_hostile_blocks_do_no_harm(Device::open("cpu")); }

}  // namespace
}  // namespace slip::test_decompress
