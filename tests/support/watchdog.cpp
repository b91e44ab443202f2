#include "support/watchdog.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

namespace slip::test {
namespace {

std::string current_test() {
  const testing::TestInfo* info = testing::UnitTest::GetInstance()->current_test_info();
  return info ? std::string(info->test_suite_name()) + "." + info->name() : "outside a test";
}

}  // namespace

Watchdog::Watchdog(std::chrono::seconds limit)
    : thread_([this, limit, test = current_test()] {
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, limit, [this] { return over_; })) return;
        std::fprintf(stderr, "[ WATCHDOG ] %s did not end within %lld s %s\n", test.c_str(),
                     static_cast<long long>(limit.count()), note_.c_str());
        std::abort();
      }) {}

void Watchdog::note(std::string text) {
  const std::lock_guard lock(mutex_);
  note_ = std::move(text);
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

}  // namespace slip::test
