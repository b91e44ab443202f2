// BiasedLock and the pair of fences it stands on.
#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <vector>

#include "backend/support.hpp"
#include "base/biased_lock.hpp"
#include "support/test_alarm.hpp"

namespace slip {
namespace {

[[maybe_unused]] const bool kWatched = test::TestAlarm::install();

TEST(Fences, OneOfTwoSeesTheOther) {
  const int rounds = test::rounds(20'000);
  std::atomic<int> go{0}, light{0}, heavy{0}, ended{0};
  int light_saw = 0, heavy_saw = 0;
  std::thread other([&] {
    for (int round = 1; round <= rounds; ++round) {
      while (go.load(std::memory_order_acquire) != round) {}
      light.store(round, std::memory_order_relaxed);
      light_fence();
      light_saw = heavy.load(std::memory_order_relaxed);
      ended.store(round, std::memory_order_release);
    }
  });
  int both_blind = 0;
  for (int round = 1; round <= rounds; ++round) {
    go.store(round, std::memory_order_release);
    heavy.store(round, std::memory_order_relaxed);
    heavy_fence();
    heavy_saw = light.load(std::memory_order_relaxed);
    while (ended.load(std::memory_order_acquire) != round) {}
    both_blind += heavy_saw != round && light_saw != round;
  }
  other.join();
  EXPECT_EQ(both_blind, 0);
}

TEST(BiasedLock, LeansToAThreadThatUsesItAlone) {
  BiasedLock lock;
  EXPECT_FALSE(lock.lock_if_mine()) << "nobody used it yet";
  for (int i = 0; i < 100; ++i) {
    lock.lock();
    lock.unlock();
  }
  if (!g_has_membarrier) GTEST_SKIP() << "this system has no membarrier: the lock never leans to a thread";
  ASSERT_TRUE(lock.lock_if_mine());
  lock.unlock();
  std::thread([&] { EXPECT_FALSE(lock.lock_if_mine()) << "it leans to the other thread"; }).join();
  std::thread([&] { lock.lock(), lock.unlock(); }).join();
  EXPECT_FALSE(lock.lock_if_mine()) << "another thread came";
}

TEST(BiasedLock, KeepsOthersOutWhileItLeansToOneThread) {
  BiasedLock lock;
  std::uint64_t sum = 0;  // not atomic: only the lock protects it
  const int times = test::rounds(500'000);
  const int visits = test::rounds(500);
  std::atomic<bool> lean{false};
  std::thread favourite([&] {
    for (int i = 0; i < times; ++i) {
      const std::lock_guard guard(lock);
      ++sum;
      if (i == 100) lean.store(true);
    }
  });
  while (!lean.load()) std::this_thread::yield();
  for (int i = 0; i < visits; ++i) {
    const std::lock_guard guard(lock);
    ++sum;
  }
  favourite.join();
  EXPECT_EQ(sum, static_cast<std::uint64_t>(times + visits));
}

// Short bursts by turns: the favour moves from thread to thread while others are at the door.
TEST(BiasedLock, KeepsOthersOutWhileTheFavourMoves) {
  std::vector<std::unique_ptr<BiasedLock>> locks;  // fresh ones: an old one no longer leans to anybody
  constexpr int kLocks = 64;
  for (int i = 0; i < kLocks; ++i) locks.push_back(std::make_unique<BiasedLock>());
  std::vector<std::uint64_t> sums(kLocks, 0);
  constexpr int kThreads = 3;
  const int burst = test::rounds(2'000);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int k = 0; k < kLocks; ++k) {
        const auto i = static_cast<std::size_t>((k + t) % kLocks);
        for (int n = 0; n < burst; ++n) {
          const std::lock_guard guard(*locks[i]);
          ++sums[i];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::uint64_t sum : sums) EXPECT_EQ(sum, static_cast<std::uint64_t>(kThreads * burst));
}

}  // namespace
}  // namespace slip
