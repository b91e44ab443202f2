// Watchdog: ends the program, with the name of the test, when a test takes too long. So a wait that never ends makes
// this test fail; the whole job does not hang.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace slip::test {

class Watchdog {
 public:
  explicit Watchdog(std::chrono::seconds limit);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Sets a text about the current step of the test, for the message.
  void note(std::string text);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;  // guarded by mutex_
  std::string note_;   // guarded by mutex_
  std::thread thread_;
};

}  // namespace slip::test
