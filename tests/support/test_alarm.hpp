// Ends the program when one test takes too long, with its name: a hang in a destructor fails, too.
// Included by one source of each test program.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

namespace slip::test {

class TestAlarm : public ::testing::EmptyTestEventListener {
 public:
  static bool install() {
    ::testing::UnitTest::GetInstance()->listeners().Append(new TestAlarm);
    signal(SIGALRM, bark);
    return true;
  }

 private:
  static constexpr unsigned kLimitSeconds = 100;
  static inline const char* running = "";

  static void bark(int) {
    const char text[] = "\nslip test hangs: ";
    [[maybe_unused]] ssize_t written = write(2, text, sizeof(text) - 1);
    written = write(2, running, strlen(running));
    written = write(2, "\n", 1);
    _exit(1);
  }
  void OnTestStart(const ::testing::TestInfo& test) override {
    running = test.name();
    alarm(kLimitSeconds);
  }
  void OnTestEnd(const ::testing::TestInfo&) override { alarm(0); }
};

}  // namespace slip::test
