// SpinLock, Parker, and objects of the whole process.
#include <thread>
#include <vector>

#include "backend/child.hpp"
#include "backend/support.hpp"
#include "base/clock.hpp"
#include "base/sync.hpp"
#include "base/thread.hpp"
#include "support/test_alarm.hpp"

namespace slip::test_sync {
namespace {

[[maybe_unused]] const bool kWatched = test::TestAlarm::install();

constexpr std::int64_t kMillisecond = 1'000'000;

TEST(SpinLock, KeepsOthersOut) {
  base::SpinLock lock;
  std::uint64_t sum = 0;  // not atomic: only the lock protects it
  constexpr int kThreads = 4;
  const int times = test::rounds(100'000);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < times; ++k) {
        const std::lock_guard guard(lock);
        ++sum;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sum, static_cast<std::uint64_t>(kThreads) * static_cast<std::uint64_t>(times));
}

TEST(SpinLock, TryLockFailsWhileHeld) {
  base::SpinLock lock;
  ASSERT_TRUE(lock.try_lock());
  EXPECT_FALSE(lock.try_lock());
  std::thread([&] { EXPECT_FALSE(lock.try_lock()); }).join();
  lock.unlock();
  EXPECT_TRUE(lock.try_lock());
  lock.unlock();
}

TEST(SpinLock, UnlockPublishesWhatWasWritten) {
  base::SpinLock lock;
  int data[16] = {};
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int k = 1; !stop.load(); ++k) {
      const std::lock_guard guard(lock);
      for (int& value : data) value = k;
    }
  });
  for (int k = 0; k < test::rounds(20'000); ++k) {
    const std::lock_guard guard(lock);
    for (int value : data) ASSERT_EQ(value, data[0]);
  }
  stop.store(true);
  writer.join();
}

TEST(Parker, KeepsATokenGivenEarly) {
  base::Parker parker;
  parker.unpark();
  EXPECT_TRUE(parker.park(base::now_ns() + 1));
  EXPECT_FALSE(parker.park(base::now_ns() + kMillisecond)) << "the token was taken by the first call";
}

TEST(Parker, TokensDoNotAddUp) {
  base::Parker parker;
  parker.unpark();
  parker.unpark();
  EXPECT_TRUE(parker.park(base::now_ns() + 1));
  EXPECT_FALSE(parker.park(base::now_ns() + 1));
}

TEST(Parker, EndsAtItsDeadline) {
  base::Parker parker;
  const std::int64_t begun = base::now_ns();
  EXPECT_FALSE(parker.park(begun + 2 * kMillisecond));
  EXPECT_GE(base::now_ns() - begun, 2 * kMillisecond);
  EXPECT_FALSE(parker.park(begun)) << "a deadline in the past does not block";
}

TEST(Parker, ATokenInThePastDeadlineIsStillTaken) {
  base::Parker parker;
  parker.unpark();
  EXPECT_TRUE(parker.park(base::now_ns() - kMillisecond));
}

TEST(Parker, HandsOverBackAndForth) {
  base::Parker here, there;
  const int times = test::rounds(2'000);
  int value = 0;  // handed over by the tokens
  std::thread other([&] {
    for (int i = 0; i < times; ++i) {
      there.park();
      ++value;
      here.unpark();
    }
  });
  for (int i = 0; i < times; ++i) {
    ++value;
    there.unpark();
    ASSERT_TRUE(here.park(base::now_ns() + 30'000 * kMillisecond)) << "a wake-up was lost in round " << i;
    ASSERT_EQ(value, 2 * (i + 1));
  }
  other.join();
}

TEST(Clock, DeadlinesSaturate) {
  EXPECT_EQ(base::deadline_after(-1), 0);
  EXPECT_EQ(base::deadline_after(std::numeric_limits<std::int64_t>::max()), 0) << "no overflow into the past";
  const std::int64_t before = base::now_ns();
  const std::int64_t deadline = base::deadline_after(kMillisecond);
  EXPECT_GE(deadline, before + kMillisecond);
  EXPECT_LE(deadline, base::now_ns() + kMillisecond);
}

TEST(Clock, TicksGoForwardAtTheirRate) {
  const std::uint64_t first = base::ticks();
  const std::int64_t begun = base::now_ns();
  while (base::now_ns() - begun < 5 * kMillisecond) base::cpu_relax();
  const double measured =
      static_cast<double>(base::ticks() - first) / (static_cast<double>(base::now_ns() - begun) / 1e3);
  EXPECT_GT(measured, 0.5 * base::ticks_per_us());
  EXPECT_LT(measured, 2.0 * base::ticks_per_us());
}

// Its constructor says that it runs, and waits for the fork.
struct MadeDuringAFork {
  static inline std::atomic<int> makers{0};
  static inline std::atomic<bool> forked{false};
  MadeDuringAFork() {
    ++makers;
    while (!forked) std::this_thread::yield();
  }
};

TEST(ProcessWide, AChildMakesWhatAThreadOfItsParentWasMaking) {
  std::thread maker([] { static_cast<void>(base::process_wide<MadeDuringAFork>()); });
  while (MadeDuringAFork::makers == 0) std::this_thread::yield();
  EXPECT_EQ(0, test::child_exit([] {
              MadeDuringAFork::forked = true;
              static_cast<void>(base::process_wide<MadeDuringAFork>());
              return 0;
            }));
  MadeDuringAFork::forked = true;
  maker.join();
  EXPECT_EQ(&base::process_wide<MadeDuringAFork>(), &base::process_wide<MadeDuringAFork>());
}

TEST(ProcessWide, ThreadsGetTheSameObject) {
  struct Counted {
    std::atomic<int> uses{0};
  };
  constexpr int kThreads = 8;
  std::atomic<int> ready{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      ++ready;
      while (ready < kThreads) std::this_thread::yield();
      ++base::process_wide<Counted>().uses;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(base::process_wide<Counted>().uses, kThreads);
}

}  // namespace
}  // namespace slip::test_sync
