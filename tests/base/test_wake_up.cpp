// WakeUp and SleepFlag: no wake-up is lost, and only a sleeping thread is woken.
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <functional>
#include <thread>

#include "backend/support.hpp"
#include "base/clock.hpp"
#include "base/sync.hpp"
#include "base/wait.hpp"
#include "support/test_alarm.hpp"

namespace slip::test_wake_up {
namespace {

[[maybe_unused]] const bool kWatched = test::TestAlarm::install();

constexpr int kLongMs = 30'000;  // a wait that takes so long has lost its wake-up

bool is_readable(const base::WakeUp& wake_up, int timeout_ms = 0) {
  pollfd watched{wake_up.descriptor(), POLLIN, 0};
  return ::poll(&watched, 1, timeout_ms) == 1;
}

TEST(WakeUp, IsReadableFromSignalToDrain) {
  const base::WakeUp wake_up;
  EXPECT_FALSE(is_readable(wake_up));
  wake_up.signal();
  EXPECT_TRUE(is_readable(wake_up));
  EXPECT_TRUE(is_readable(wake_up)) << "poll does not consume the signal";
  wake_up.drain();
  EXPECT_FALSE(is_readable(wake_up));
}

TEST(WakeUp, OneDrainTakesAllSignals) {
  const base::WakeUp wake_up;
  for (int i = 0; i < 1000; ++i) wake_up.signal();
  wake_up.drain();
  EXPECT_FALSE(is_readable(wake_up));
}

TEST(WakeUp, DrainDoesNotBlockWithoutASignal) {
  const base::WakeUp wake_up;
  wake_up.drain();
  EXPECT_FALSE(is_readable(wake_up));
}

TEST(WakeUp, EndsThePollOfAnotherThread) {
  const base::WakeUp wake_up;
  bool woken = false;
  std::thread sleeper([&] { woken = is_readable(wake_up, kLongMs); });
  wake_up.signal();
  sleeper.join();
  EXPECT_TRUE(woken);
}

TEST(SleepFlag, IsTakenOnceInEachSleep) {
  base::SleepFlag flag;
  EXPECT_FALSE(flag.take()) << "no thread sleeps";
  flag.set();
  EXPECT_TRUE(flag.take());
  EXPECT_FALSE(flag.take()) << "the first taker wakes the thread";
  flag.clear();
  EXPECT_FALSE(flag.take());
  flag.set();
  EXPECT_TRUE(flag.take());
  flag.set();
  flag.clear();
  EXPECT_FALSE(flag.take()) << "the thread went on by itself";
}

TEST(SleepFlag, OnlyOneOfManyThreadsTakesIt) {
  base::SleepFlag flag;
  for (int round = 0; round < test::rounds(200); ++round) {
    std::atomic<int> taken{0}, ready{0};
    flag.set();
    const auto take = [&] {
      ready.fetch_add(1);
      for (base::Backoff backoff; ready.load() < 3; backoff.pause()) {}
      if (flag.take()) taken.fetch_add(1);
    };
    std::thread one(take), two(take);
    take();
    one.join();
    two.join();
    ASSERT_EQ(taken.load(), 1) << "round " << round;
  }
}

// The two sides begin at the same time, many times. Were one of the fences missing, both would read before the other's
// write is visible in some rounds.
TEST(SleepFlag, OneOfTheTwoSidesSeesTheOther) {
  struct alignas(64) Line {
    std::atomic<int> value{0};
  };
  const int times = test::rounds(5'000);
  alignas(64) base::SleepFlag flag;
  Line condition, arrived, slept;
  const auto meet = [&](int round) {  // returns when both threads are in this round
    arrived.value.fetch_add(1);
    for (base::Backoff backoff; arrived.value.load() < 2 * round; backoff.pause()) {}
  };
  std::thread sleeper([&] {
    for (int round = 1; round <= times; ++round) {
      meet(2 * round - 1);
      flag.set();
      slept.value.store(condition.value.load(std::memory_order_relaxed) < round ? round : 0);
      meet(2 * round);
    }
  });
  int lost = 0;
  for (int round = 1; round <= times; ++round) {
    meet(2 * round - 1);
    condition.value.store(round, std::memory_order_relaxed);
    base::full_fence();
    const bool taken = flag.take();
    meet(2 * round);
    if (slept.value.load() == round && !taken) ++lost;
    flag.clear();
  }
  sleeper.join();
  EXPECT_EQ(lost, 0) << "of " << times << " sleeps";
}

// One thread counts up to `times`. The other one sleeps until it sees the next number, and answers with it. `sleep`
// returns false if no wake-up came; then the count ends. Returns the last answer.
int count_with_a_sleeper(int times, base::SleepFlag& flag, const std::function<bool()>& sleep,
                         const std::function<void()>& wake) {
  std::atomic<int> asked{0}, answered{0};
  std::atomic<bool> lost{false};
  std::thread sleeper([&] {
    for (int next = 1; next <= times && !lost; ++next) {
      // relaxed: the fences in set() and before take() order it against the flag.
      while (asked.load(std::memory_order_relaxed) < next && !lost) {
        flag.set();
        if (asked.load(std::memory_order_relaxed) < next && !sleep()) lost = true;
        flag.clear();
      }
      answered.store(next, std::memory_order_relaxed);
    }
  });
  for (int next = 1; next <= times && !lost; ++next) {
    asked.store(next, std::memory_order_relaxed);
    base::full_fence();
    if (flag.take()) wake();
    for (base::Backoff backoff; answered.load(std::memory_order_relaxed) < next && !lost; backoff.pause()) {}
  }
  sleeper.join();
  return lost ? answered - 1 : answered.load();
}

TEST(SleepFlag, LosesNoWakeUpOfAParker) {
  base::SleepFlag flag;
  base::Parker parker;
  const auto sleep = [&] { return parker.park(base::now_ns() + std::int64_t{kLongMs} * 1'000'000); };
  const int times = test::rounds(5'000);
  EXPECT_EQ(count_with_a_sleeper(times, flag, sleep, [&] { parker.unpark(); }), times);
}

TEST(SleepFlag, LosesNoWakeUpOfAPoll) {
  base::SleepFlag flag;
  const base::WakeUp wake_up;
  const auto sleep = [&] {
    const bool woken = is_readable(wake_up, kLongMs);
    wake_up.drain();
    return woken;
  };
  const int times = test::rounds(5'000);
  EXPECT_EQ(count_with_a_sleeper(times, flag, sleep, [&] { wake_up.signal(); }), times);
}

}  // namespace
}  // namespace slip::test_wake_up
