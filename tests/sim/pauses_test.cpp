// How long a thread sleeps while it waits for something outside the simulation.
#include "backend/sim/pauses.hpp"

#include <gtest/gtest.h>

namespace slip::sim {
namespace {

// A wait of minutes makes more pauses than an int of nanoseconds has room for.
TEST(SimPauses, GrowAndStayAtTheLongest) {
  Pauses pauses;
  std::int64_t last = 0;
  for (int i = 0; i < 2'000'000; ++i) {
    const std::int64_t sleep = pauses.next_ns();
    ASSERT_GE(sleep, last) << "pause " << i;
    ASSERT_LE(sleep, Pauses::kMaxNs) << "pause " << i;
    last = sleep;
  }
  EXPECT_EQ(last, Pauses::kMaxNs);
}

}  // namespace
}  // namespace slip::sim
