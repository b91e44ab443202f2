// Parallel loops: every index runs once, also if another thread uses the team.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/team.hpp"

namespace slip::test_team {
namespace {

// How often each index was called.
std::vector<int> calls_of(std::size_t count) {
  std::vector<int> calls(count);
  base::for_each_index(count, [&](std::size_t index) { ++calls[index]; });
  return calls;
}

TEST(Team, CallsEveryIndexOnce) {
  for (const std::size_t count : {0, 1, 2, 3, 100, 10000}) EXPECT_EQ(calls_of(count), std::vector<int>(count, 1));
}

TEST(Team, WhatBodiesWroteIsSeen) {
  for (int round = 0; round < 2000; ++round) {
    std::vector<int> values(7, -1);
    base::for_each_index(values.size(), [&](std::size_t index) { values[index] = round; });
    EXPECT_EQ(values, std::vector<int>(7, round));
  }
}

TEST(Team, LoopsWithinLoopsRunOnTheirThread) {
  std::vector<std::vector<int>> inner(20);
  std::atomic<int> elsewhere{0};
  base::for_each_index(inner.size(), [&](std::size_t index) {
    const std::thread::id self = std::this_thread::get_id();
    inner[index].assign(50, 0);
    base::for_each_index(50, [&](std::size_t i) {
      ++inner[index][i];
      if (std::this_thread::get_id() != self) elsewhere.fetch_add(1, std::memory_order_relaxed);  // read after the loop
    });
  });
  EXPECT_EQ(elsewhere.load(), 0);
  for (const std::vector<int>& calls : inner) EXPECT_EQ(calls, std::vector<int>(50, 1));
}

TEST(Team, SeveralThreadsAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        if (calls_of(64) == std::vector<int>(64, 1)) right.fetch_add(1, std::memory_order_relaxed);  // read after join
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right.load(), 800);
}

TEST(Team, TheFirstExceptionComesBack) {
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> begun{0};
    const auto fail = [&] {
      base::for_each_index(100000, [&](std::size_t) {
        begun.fetch_add(1, std::memory_order_relaxed);  // read after the loop
        throw std::runtime_error("on purpose");
      });
    };
    EXPECT_THROW(fail(), std::runtime_error);
    EXPECT_LT(begun.load(), 100000);
  }
  EXPECT_EQ(calls_of(100), std::vector<int>(100, 1));
}

TEST(Team, AChildOfForkHasItsOwn) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer ends a child that starts threads";
#endif
  EXPECT_EQ(calls_of(100), std::vector<int>(100, 1));
  const pid_t child = fork();
  if (child == 0) _exit(calls_of(1000) == std::vector<int>(1000, 1) ? 0 : 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(calls_of(100), std::vector<int>(100, 1));
}

TEST(Team, WorkBetweenLoopsIsDoneOnceWithAndWithoutLoops) {
  std::vector<int> alone(1000, 0);
  base::for_each_background_piece(alone.size(), [&](std::size_t index) { ++alone[index]; });
  EXPECT_EQ(alone, std::vector<int>(1000, 1));
  std::atomic<bool> stop{false};
  std::thread loops([&] {
    while (!stop.load()) static_cast<void>(calls_of(16));
  });
  for (int round = 0; round < 300; ++round) {
    std::vector<int> calls(50, 0);
    base::for_each_background_piece(calls.size(), [&](std::size_t index) { ++calls[index]; });
    EXPECT_EQ(calls, std::vector<int>(50, 1));
  }
  stop.store(true);
  loops.join();
}

// A loop that never ends by itself: only its own threads can do the pieces, and the caller sleeps meanwhile.
TEST(Team, ALoopsThreadsDoTheWorkBetweenItsIndices) {
  std::atomic<bool> done{false};
  std::atomic<int> by_others{0};
  std::atomic<bool> runs{false};
  std::thread loop([&] {
    EXPECT_THROW(base::for_each_index(std::size_t{1} << 40,
                                      [&](std::size_t) {
                                        runs.store(true);
                                        if (done.load()) throw std::runtime_error("enough");
                                      }),
                 std::runtime_error);
  });
  while (!runs.load()) std::this_thread::yield();
  const std::thread::id self = std::this_thread::get_id();
  base::for_each_background_piece(20, [&](std::size_t) {
    if (std::this_thread::get_id() != self) by_others.fetch_add(1);
  });
  done.store(true);
  EXPECT_EQ(by_others.load(), 20);
  loop.join();
}

TEST(Team, WorkBetweenLoopsThatThrowsIsReportedToItsCaller) {
  EXPECT_THROW(base::for_each_background_piece(10,
                                               [](std::size_t index) {
                                                 if (index == 3) throw std::runtime_error("no");
                                               }),
               std::runtime_error);
  EXPECT_EQ(calls_of(10), std::vector<int>(10, 1));
}

}  // namespace
}  // namespace slip::test_team
