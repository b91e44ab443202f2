// Jobs that a program starts itself, as `slip lab` does.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "transport/job/job.hpp"

namespace slip::test::test_local_job {
namespace {

// The program has another thread, which runs all the time and does not block SIGCHLD. The kernel gives it the signal of
// a rank that ends, and it ignores the signal.
TEST(LocalJob, EndsAlthoughAnotherThreadTakesTheSignalOfItsRanks) {
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop.load(std::memory_order_relaxed)) {}
  });
  transport::LocalJob job;
  job.command = {"sleep", "0.02"};
  job.nranks = 2;
  job.timeout = std::chrono::seconds(60);
  for (int i = 0; i < 20 && !testing::Test::HasFailure(); ++i) EXPECT_EQ(transport::run_local_job(job), 0);
  stop = true;
  other.join();
}

}  // namespace
}  // namespace slip::test::test_local_job
