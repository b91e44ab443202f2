// The policies of waits: the order and length of the phases of Backoff, and the times of IdleWait.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "base/wait.hpp"

namespace slip::test_wait {
namespace {

using base::Backoff, base::IdleWait, base::WaitPolicy;

constexpr std::int64_t kHugeIteration = 1 << 30;

// How often this thread gave up its core by itself.
long voluntary_switches() {
  rusage usage{};
  EXPECT_EQ(0, getrusage(RUSAGE_THREAD, &usage));
  return usage.ru_nvcsw;
}

std::uint64_t ticks_of(double us) { return static_cast<std::uint64_t>(us * base::ticks_per_us()); }

TEST(WaitPolicy, SleepsGrowFromTheFirstToTheMaximum) {
  constexpr WaitPolicy kGrowing{.spins = 3, .yields = 2, .sleep_ns = 10, .sleep_step_ns = 4, .max_sleep_ns = 20};
  EXPECT_EQ(kGrowing.sleep_at(5), 10);
  EXPECT_EQ(kGrowing.sleep_at(6), 14);
  EXPECT_EQ(kGrowing.sleep_at(7), 18);
  EXPECT_EQ(kGrowing.sleep_at(8), 20);
  EXPECT_EQ(kGrowing.sleep_at(kHugeIteration), 20);
}

TEST(WaitPolicy, SleepsStayEqualWithoutAStep) {
  constexpr WaitPolicy kEqual{.spins = 3, .sleep_ns = 10};
  EXPECT_EQ(kEqual.sleep_at(3), 10);
  EXPECT_EQ(kEqual.sleep_at(kHugeIteration), 10) << "max_sleep_ns, which is 0, is not used";
}

TEST(WaitPolicy, PausesOfSpinsGrowFromTheFirstToTheMaximum) {
  constexpr WaitPolicy kGrowing{.spins = 100, .relaxes = 1, .relax_step = 2, .max_relaxes = 6};
  EXPECT_EQ(kGrowing.relaxes_at(0), 1);
  EXPECT_EQ(kGrowing.relaxes_at(1), 3);
  EXPECT_EQ(kGrowing.relaxes_at(2), 5);
  EXPECT_EQ(kGrowing.relaxes_at(3), 6);
  EXPECT_EQ(kGrowing.relaxes_at(99), 6);
  EXPECT_EQ(base::kLockWait.relaxes_at(0), 1);
  EXPECT_EQ(base::kLockWait.relaxes_at(63), 1);
  EXPECT_EQ(base::kLaneWait.relaxes_at(0), 0) << "the first poll after the wait began comes at once";
  EXPECT_EQ(base::kLaneWait.relaxes_at(99), 32);
}

TEST(WaitPolicy, LocksAndYieldingWaitsNeverSleep) {
  for (const WaitPolicy& policy : {base::kLockWait, base::kYieldWait, base::kLaneWait})
    EXPECT_EQ(policy.yields, WaitPolicy::kUnlimited);
}

// A sleep longer than a second is no valid argument of nanosleep, which would then return at once.
TEST(WaitPolicy, EverySleepIsShorterThanASecond) {
  for (const WaitPolicy& policy : {base::kDeviceQueryWait, base::kKernelFlagWait, base::kPartWait, base::kLibraryWait,
                                   base::kOpWait, base::kProgramWait}) {
    for (const std::int64_t iteration : {std::int64_t{policy.spins + policy.yields}, kHugeIteration}) {
      EXPECT_GT(policy.sleep_at(static_cast<int>(iteration)), 0);
      EXPECT_LT(policy.sleep_at(static_cast<int>(iteration)), 1'000'000'000);
    }
  }
}

TEST(Backoff, SleepsAfterItsSpinsAndYieldsAndNotBefore) {
  constexpr int kSpins = 50, kSleeps = 20;
  constexpr WaitPolicy kPolicy{.spins = kSpins, .sleep_ns = 100'000};
  Backoff backoff(kPolicy);
  const long begun = voluntary_switches();
  for (int i = 0; i < kSpins; ++i) backoff.pause();
  EXPECT_EQ(voluntary_switches(), begun) << "a spin gave up the core";
  for (int i = 0; i < kSleeps; ++i) backoff.pause();
  EXPECT_GE(voluntary_switches(), begun + kSleeps / 2) << "the thread did not sleep";
  EXPECT_EQ(backoff.pauses(), kSpins + kSleeps);
}

TEST(Backoff, BeginsAgainAfterProgress) {
  constexpr int kSpins = 50;
  constexpr WaitPolicy kPolicy{.spins = kSpins, .sleep_ns = 100'000};
  Backoff backoff(kPolicy);
  const long begun = voluntary_switches();
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < kSpins; ++i) backoff.pause();
    EXPECT_EQ(backoff.pauses(), kSpins);
    backoff.restart();
    EXPECT_EQ(backoff.pauses(), 0);
  }
  EXPECT_EQ(voluntary_switches(), begun) << "the spins of one round counted for the next";
}

TEST(IdleWait, SpinsThenYieldsThenSleeps) {
  constexpr std::uint64_t kStart = 1'000'000'000;
  IdleWait idle({.spin_us = 50, .yield_us = 300}, kStart);
  EXPECT_EQ(idle.next(false, kStart), IdleWait::Next::kSpin);
  EXPECT_EQ(idle.next(false, kStart + ticks_of(49)), IdleWait::Next::kSpin);
  EXPECT_EQ(idle.next(false, kStart + ticks_of(51)), IdleWait::Next::kYield);
  EXPECT_EQ(idle.next(false, kStart + ticks_of(299)), IdleWait::Next::kYield);
  EXPECT_EQ(idle.next(false, kStart + ticks_of(301)), IdleWait::Next::kSleep);
  EXPECT_EQ(idle.next(false, kStart + ticks_of(1e9)), IdleWait::Next::kSleep);
}

TEST(IdleWait, CountsFromTheLastProgress) {
  constexpr std::uint64_t kStart = 1'000'000'000;
  IdleWait idle({.spin_us = 50, .yield_us = 300}, kStart);
  EXPECT_EQ(idle.next(true, kStart + ticks_of(1000)), IdleWait::Next::kSpin);
  EXPECT_EQ(idle.next(false, kStart + ticks_of(1040)), IdleWait::Next::kSpin);
  EXPECT_EQ(idle.next(false, kStart + ticks_of(1060)), IdleWait::Next::kYield);
  EXPECT_EQ(idle.next(false, kStart + ticks_of(1310)), IdleWait::Next::kSleep);
  EXPECT_EQ(idle.next(true, kStart + ticks_of(1320)), IdleWait::Next::kSpin);
}

TEST(IdleWait, NeverYieldsWithoutATimeForIt) {
  constexpr std::uint64_t kStart = 1'000'000'000;
  IdleWait idle({.spin_us = 20}, kStart);
  EXPECT_EQ(idle.next(false, kStart + ticks_of(19)), IdleWait::Next::kSpin);
  EXPECT_EQ(idle.next(false, kStart + ticks_of(21)), IdleWait::Next::kSleep);
}

}  // namespace
}  // namespace slip::test_wait
