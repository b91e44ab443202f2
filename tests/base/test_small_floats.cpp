// All values of the small floats, and all boundaries of rounding.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/small_floats.hpp"

namespace slip::test_small_floats {
namespace {

template <class T>
class SmallFloats : public testing::Test {
 public:
  static constexpr unsigned kValues = 1U << (8 * sizeof(T));
  static constexpr unsigned kSign = kValues / 2;
  static T of(unsigned bits) { return {static_cast<decltype(T::bits)>(bits)}; }
};
using Types = testing::Types<base::F16, base::Bf16, base::F8E4M3, base::F8E5M2>;
TYPED_TEST_SUITE(SmallFloats, Types);

TYPED_TEST(SmallFloats, EveryValueComesBack) {
  using Self = TestFixture;
  for (unsigned bits = 0; bits < Self::kValues; ++bits) {
    const float value = base::to_float(Self::of(bits));
    const auto back = base::from_float<TypeParam>(value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(base::to_float(back))) << bits;
      continue;
    }
    const bool held = std::isinf(value) && sizeof(TypeParam) == 1;  // an infinity becomes the largest number
    EXPECT_EQ(back.bits, held ? bits - 1 : bits);
    EXPECT_EQ(std::signbit(value), bits >= Self::kSign) << bits;
  }
}

TYPED_TEST(SmallFloats, RoundsToTheNearestAndTiesToEven) {
  using Self = TestFixture;
  for (unsigned bits = 0; bits + 1 < Self::kSign; ++bits) {
    const float low = base::to_float(Self::of(bits)), high = base::to_float(Self::of(bits + 1));
    if (!std::isfinite(high)) break;
    ASSERT_LT(low, high) << bits;
    const auto tie = static_cast<float>((static_cast<double>(low) + high) / 2);
    for (const float sign : {1.0F, -1.0F}) {
      const unsigned offset = sign < 0 ? Self::kSign : 0;
      EXPECT_EQ(base::from_float<TypeParam>(sign * tie).bits, offset + bits + bits % 2) << tie;
      EXPECT_EQ(base::from_float<TypeParam>(sign * std::nextafter(tie, low)).bits, offset + bits) << tie;
      EXPECT_EQ(base::from_float<TypeParam>(sign * std::nextafter(tie, high)).bits, offset + bits + 1) << tie;
    }
  }
}

TEST(SmallFloat, KnownValues) {
  EXPECT_EQ(base::to_float(base::F16{0x3c00}), 1);
  EXPECT_EQ(base::to_float(base::F16{0x0001}), 0x1p-24F);
  EXPECT_EQ(base::to_float(base::F16{0x7bff}), 65504);
  EXPECT_EQ(base::to_float(base::F16{0xfc00}), -INFINITY);
  EXPECT_EQ(base::to_float(base::F8E4M3{0x38}), 1);
  EXPECT_EQ(base::to_float(base::F8E4M3{0x01}), 0x1p-9F);
  EXPECT_EQ(base::to_float(base::F8E4M3{0x7e}), 448);
  EXPECT_TRUE(std::isnan(base::to_float(base::F8E4M3{0xff})));
  EXPECT_EQ(base::to_float(base::F8E5M2{0x3c}), 1);
  EXPECT_EQ(base::to_float(base::F8E5M2{0x01}), 0x1p-16F);
  EXPECT_EQ(base::to_float(base::F8E5M2{0x7b}), 57344);
  EXPECT_EQ(base::to_float(base::F8E5M2{0x7c}), INFINITY);
  EXPECT_EQ(base::to_float(base::Bf16{0x3f80}), 1);
}

TEST(SmallFloat, SixteenBitsOverflowAndEightDoNot) {
  EXPECT_EQ(base::from_float<base::F16>(65519.996F).bits, 0x7bff);
  EXPECT_EQ(base::from_float<base::F16>(65520).bits, 0x7c00);
  EXPECT_EQ(base::from_float<base::Bf16>(std::numeric_limits<float>::max()).bits, 0x7f80);
  for (const float large : {464.0F, 465.0F, 480.0F, 1e30F, INFINITY}) {
    EXPECT_EQ(base::from_float<base::F8E4M3>(large).bits, 0x7e) << large;
    EXPECT_EQ(base::from_float<base::F8E4M3>(-large).bits, 0xfe) << large;
  }
  for (const float large : {61439.0F, 61440.0F, 65536.0F, 1e30F, INFINITY}) {
    EXPECT_EQ(base::from_float<base::F8E5M2>(large).bits, 0x7b) << large;
    EXPECT_EQ(base::from_float<base::F8E5M2>(-large).bits, 0xfb) << large;
  }
}

}  // namespace
}  // namespace slip::test_small_floats
