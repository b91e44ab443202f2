// What reductions cost on many machines, beside simulating all of them.
#include <gtest/gtest.h>

#include "flow/gradients/cluster_cost.hpp"
#include "support/share.hpp"

namespace slip {
namespace {

TopoSystem machine() { return read_topology(SLIP_SOURCE_DIR "/tests/topo/data/nvswitch8.xml"); }

// Rings of six machines and trees of sixteen, simulated whole: as many as take a second. A sanitizer takes a hundred,
// and sees the smallest.
TEST(ClusterCost, GoesOnFromFewerMachines) {
  const TopoSystem one = machine();
  const bool slow = test::kShare > 1;
  for (const bool by_tree : {false, true}) {
    if (slow && !by_tree) continue;
    const int machines = slow ? 8 : by_tree ? 16 : 6;
    constexpr std::uint64_t kBytes = std::uint64_t{1} << 18;
    const double all = all_reduce_us(one, machines, kBytes, by_tree, machines, {}),
                 extended = all_reduce_us(one, machines, kBytes, by_tree, 4, {});
    EXPECT_NEAR(extended, all, 0.1 * all) << (by_tree ? "tree" : "ring");
  }
}

TEST(ClusterCost, MoreBytesCostMore) {
  const ClusterCost few = cluster_cost(machine(), 1);
  EXPECT_EQ(few.ranks, 8);
  EXPECT_FALSE(few.extended);
  EXPECT_GT(few.cost.points.back().time, few.cost.points.front().time);
}

}  // namespace
}  // namespace slip
