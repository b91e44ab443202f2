// Ends the program with the name of the test when one test takes too long. Unlike a Watchdog in the test, it also finds
// a hang in a destructor. One source of the test program includes it.
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
    signal(SIGALRM, end_program);
    return true;
  }

 private:
  static constexpr unsigned kLimitSeconds = 100;
  static inline const char* running = "";

  static void end_program(int) {
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
