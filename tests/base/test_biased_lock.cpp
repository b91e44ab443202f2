// BiasedLock and the pair of fences it stands on.
#include <gtest/gtest.h>
#include <pthread.h>

#include <chrono>
#include <csignal>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/support.hpp"
#include "base/biased_lock.hpp"
#include "support/test_alarm.hpp"

namespace slip {
namespace {

[[maybe_unused]] const bool kWatched = test::TestAlarm::install();

// A word on a cache line of its own: a store to it takes a while when the other core has the line, and a load of the
// other word does not; without fences both then see the old value.
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
      light_fence();
      light_saw[static_cast<std::size_t>(round)] = heavy.value.load(std::memory_order_relaxed);
    }
  });
  for (int round = 1; round <= rounds; ++round) {
    meet(heavy_ready, light_ready, round);
    heavy.value.store(round, std::memory_order_relaxed);
    heavy_fence();
    heavy_saw[static_cast<std::size_t>(round)] = light.value.load(std::memory_order_relaxed);
  }
  other.join();
  int both_blind = 0;
  for (std::size_t round = 1; round < light_saw.size(); ++round)
    both_blind += light_saw[round] < static_cast<int>(round) && heavy_saw[round] < static_cast<int>(round);
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

// A thread is stopped by a signal anywhere in lock() or unlock(), and goes on when the favour has moved to another
// thread that is inside: what the first one still had to write must not open the door that the other one closed.
std::atomic<int> g_stopped{0}, g_go_on{0};  // rounds
void stop_here(int) {
  g_stopped.store(g_go_on.load() + 1);
  while (g_go_on.load() < g_stopped.load()) {}
}

TEST(BiasedLock, KeepsOthersOutWhileAnOldFavouriteIsLate) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer delivers a signal late, never between two instructions";
#endif
  if (!g_has_membarrier) GTEST_SKIP() << "this system has no membarrier: the lock never leans to a thread";
  std::signal(SIGUSR1, stop_here);
  const auto patience = [](const std::atomic<bool>& done) {  // a stopped thread may hold the lock: no waiting for ever
    for (int turn = 0; turn < 100 && !done.load(); ++turn) std::this_thread::sleep_for(std::chrono::microseconds(10));
  };
  int broken = 0;
  const int times = test::rounds(400);
  for (int round = 0; round < times; ++round) {
    BiasedLock lock;
    std::atomic<int> inside{0};
    std::atomic<bool> leaning{false}, end{false}, taken{false};
    std::atomic<int> crossings{0};
    std::thread old_favourite([&] {
      for (int i = 0; !end.load(std::memory_order_relaxed); ++i) {
        lock.lock();
        if (inside.fetch_add(1, std::memory_order_relaxed) != 0) crossings.fetch_add(1);
        inside.fetch_sub(1, std::memory_order_relaxed);
        lock.unlock();
        if (i == 100) leaning.store(true);
      }
    });
    while (!leaning.load()) std::this_thread::yield();
    pthread_kill(old_favourite.native_handle(), SIGUSR1);
    while (g_stopped.load() == g_go_on.load()) std::this_thread::yield();
    std::thread new_favourite([&] {
      for (int i = 0; i < 200; ++i) lock.lock(), lock.unlock();
      lock.lock();
      if (inside.fetch_add(1) != 0) crossings.fetch_add(1);
      taken.store(true);
      while (!end.load()) std::this_thread::yield();
      inside.fetch_sub(1);
      lock.unlock();
    });
    patience(taken);
    g_go_on.store(g_stopped.load());
    if (taken.load()) std::this_thread::sleep_for(std::chrono::microseconds(200));  // time for it to break in
    end.store(true);
    old_favourite.join();
    new_favourite.join();
    broken += crossings.load() != 0;
  }
  std::signal(SIGUSR1, SIG_DFL);
  EXPECT_EQ(broken, 0) << "rounds of " << times;
}

}  // namespace
}  // namespace slip
