// BiasedLock and the pair of fences it stands on.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/support.hpp"
#include "base/biased_lock.hpp"
#include "support/test_alarm.hpp"

namespace slip::base {

// The two steps of lock_if_biased, and what the others look at.
struct BiasedLockSteps {
  static constexpr int kSlots = BiasedLock::kSlots;
  static std::uint64_t own_bias(const BiasedLock& lock) { return lock.own_bias(); }
  static bool enter_with(BiasedLock& lock, std::uint64_t bias) { return lock.enter_with(bias); }
  static bool has_owner_inside(const BiasedLock& lock) {
    const std::uint64_t bias = lock.bias_.load();
    return bias != 0 && lock.taken_[bias % kSlots].load();
  }
};

}  // namespace slip::base

namespace slip::test_biased_lock {
namespace {

[[maybe_unused]] const bool kWatched = test::TestAlarm::install();

// A flag on its own cache line. A store is delayed while the other core has the line, but a load of the other flag is
// not; without fences both threads then see the old value.
struct alignas(64) Word {
  std::atomic<int> value{0};
};

TEST(Fences, OneOfTwoSeesTheOther) {
  const int rounds = test::rounds(50'000);
  Word light, heavy, light_ready, heavy_ready;
  std::vector<int> light_saw(static_cast<std::size_t>(rounds) + 1), heavy_saw(light_saw);
  const auto meet = [](Word& mine, const Word& other, int round) {
    mine.value.store(round, std::memory_order_release);
    for (int turn = 0; other.value.load(std::memory_order_acquire) < round; ++turn) {
      if (turn > 1000) std::this_thread::yield();  // one core: the other thread needs it
    }
  };
  std::thread other([&] {
    for (int round = 1; round <= rounds; ++round) {
      meet(light_ready, heavy_ready, round);
      light.value.store(round, std::memory_order_relaxed);
      base::light_fence();
      light_saw[static_cast<std::size_t>(round)] = heavy.value.load(std::memory_order_relaxed);
    }
  });
  for (int round = 1; round <= rounds; ++round) {
    meet(heavy_ready, light_ready, round);
    heavy.value.store(round, std::memory_order_relaxed);
    base::heavy_fence();
    heavy_saw[static_cast<std::size_t>(round)] = light.value.load(std::memory_order_relaxed);
  }
  other.join();
  int both_blind = 0;
  for (std::size_t round = 1; round < light_saw.size(); ++round)
    both_blind += light_saw[round] < static_cast<int>(round) && heavy_saw[round] < static_cast<int>(round);
  EXPECT_EQ(both_blind, 0);
}

TEST(BiasedLock, LeansToAThreadThatUsesItAlone) {
  base::BiasedLock lock;
  EXPECT_FALSE(lock.lock_if_biased()) << "nobody used it yet";
  for (int i = 0; i < 100; ++i) {
    lock.lock();
    lock.unlock();
  }
  if (!base::g_has_membarrier) GTEST_SKIP() << "this system has no membarrier: the lock is never biased to a thread";
  ASSERT_TRUE(lock.lock_if_biased());
  lock.unlock();
  std::thread([&] { EXPECT_FALSE(lock.lock_if_biased()) << "it is biased to the other thread"; }).join();
  std::thread([&] { lock.lock(), lock.unlock(); }).join();
  EXPECT_FALSE(lock.lock_if_biased()) << "another thread came";
}

TEST(BiasedLock, KeepsOthersOutWhileItLeansToOneThread) {
  base::BiasedLock lock;
  std::uint64_t sum = 0;  // not atomic: only the lock protects it
  const int times = test::rounds(500'000);
  const int visits = test::rounds(500);
  std::atomic<bool> become_biased{false};
  std::thread owner([&] {
    for (int i = 0; i < times; ++i) {
      const std::lock_guard guard(lock);
      ++sum;
      if (i == 100) become_biased.store(true);
    }
  });
  while (!become_biased.load()) std::this_thread::yield();
  for (int i = 0; i < visits; ++i) {
    const std::lock_guard guard(lock);
    ++sum;
  }
  owner.join();
  EXPECT_EQ(sum, static_cast<std::uint64_t>(times + visits));
}

// Short bursts in alternation: the bias moves from thread to thread while others wait for the lock.
TEST(BiasedLock, KeepsOthersOutWhileTheFavourMoves) {
  std::vector<std::unique_ptr<base::BiasedLock>> locks;  // fresh ones: an old one no longer becomes biased
  constexpr int kLocks = 64;
  for (int i = 0; i < kLocks; ++i) locks.push_back(std::make_unique<base::BiasedLock>());
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

// A former bias owner saw that the lock is biased to it and is late: it writes its flag when another thread is inside.
// That must not open the door which the other one closed.
TEST(BiasedLock, KeepsOthersOutWhileAnOldFavouriteIsLate) {
  if (!base::g_has_membarrier) GTEST_SKIP() << "this system has no membarrier: the lock is never biased to a thread";
  base::BiasedLock lock;
  const auto become_biased = [&lock] {
    for (int i = 0; i < 200; ++i) lock.lock(), lock.unlock();
  };
  become_biased();
  const std::uint64_t bias = base::BiasedLockSteps::own_bias(lock);
  ASSERT_NE(bias, 0u) << "it is biased to this thread";
  std::promise<void> inside, leave;
  std::thread other([&] {
    become_biased();
    EXPECT_NE(base::BiasedLockSteps::own_bias(lock), 0u) << "it is biased to the other thread now";
    lock.lock();
    inside.set_value();
    leave.get_future().wait();
    lock.unlock();
  });
  inside.get_future().wait();
  EXPECT_TRUE(base::BiasedLockSteps::has_owner_inside(lock));
  EXPECT_FALSE(base::BiasedLockSteps::enter_with(lock, bias)) << "too late";
  EXPECT_TRUE(base::BiasedLockSteps::has_owner_inside(lock)) << "a third thread would not wait for the one inside";
  leave.set_value();
  other.join();
  EXPECT_FALSE(base::BiasedLockSteps::has_owner_inside(lock));
  become_biased();
}

TEST(BiasedLock, LeansToSoManyThreadsAndThenToNobodyElse) {
  if (!base::g_has_membarrier) GTEST_SKIP() << "this system has no membarrier: the lock is never biased to a thread";
  base::BiasedLock lock;
  int biased = 0;
  for (int thread = 0; thread < base::BiasedLockSteps::kSlots + 2; ++thread) {
    std::thread([&] {
      for (int i = 0; i < 1 << 15; ++i) lock.lock(), lock.unlock();  // its patience grows each time
      biased += base::BiasedLockSteps::own_bias(lock) != 0;
    }).join();
  }
  EXPECT_EQ(biased, base::BiasedLockSteps::kSlots);
}

}  // namespace
}  // namespace slip::test_biased_lock
