#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "watch/trace/containers.hpp"

namespace slip::test_time_order {
namespace {

void expect_sorted_like_the_standard(std::vector<watch::TimeKey> keys) {
  std::vector<watch::TimeKey> expected = keys;
  std::stable_sort(expected.begin(), expected.end(),
                   [](const watch::TimeKey& a, const watch::TimeKey& b) { return a.at < b.at; });
  watch::sort_by_time(keys);
  ASSERT_EQ(keys.size(), expected.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    ASSERT_EQ(keys[i].at, expected[i].at) << i;
    ASSERT_EQ(keys[i].index, expected[i].index) << i << ": equals keep their order";
  }
}

// Few keys and more than the radix sort needs; times close together, far apart, and at both limits of Picos.
TEST(TimeOrder, IsThatOfAStableSort) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    for (const std::uint32_t count : {0U, 1U, 100U, 5000U, 30000U}) {
      for (const std::uint64_t range :
           {std::uint64_t{1}, std::uint64_t{50}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
        std::vector<watch::TimeKey> keys(count);
        for (std::uint32_t i = 0; i < count; ++i) keys[i] = {static_cast<Picos>(random() % range), i};
        if (count > 1) keys[count / 2].at = std::numeric_limits<Picos>::min();
        expect_sorted_like_the_standard(std::move(keys));
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace slip::test_time_order
