// A child process that the test forks, can stop and can kill. It reports with a text. For a test program that has no
// threads when it forks. Ranks are not forked but started as new programs (processes.hpp).
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>
#include <utility>

namespace slip::test {

class Child {
 public:
  // Runs the body in a child process. The returned text, or the text of an exception, is the report.
  explicit Child(const std::function<std::string()>& body) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    std::fflush(nullptr);  // otherwise the child would print the buffered text again
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      std::string report;
      try {
        report = body();
      } catch (const std::exception& error) {
        report = error.what();
      }
      static_cast<void>(!::write(ends[1], report.data(), report.size()));
      ::_exit(0);
    }
    ::close(ends[1]);
    from_ = ends[0];
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)), from_(std::exchange(other.from_, -1)) {}
  Child& operator=(Child&&) = delete;
  ~Child() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(from_);
  }

  void signal(int number) const { ::kill(pid_, number); }
  // Waits until the child ends, or has written nothing for 60 s: then returns what it has written so far.
  std::string report() const {
    std::string result;
    char bytes[4096];
    pollfd ready{from_, POLLIN, 0};
    for (ssize_t got = 0; ::poll(&ready, 1, 60'000) == 1 && (got = ::read(from_, bytes, sizeof(bytes))) > 0;)
      result.append(bytes, static_cast<std::size_t>(got));
    return result;
  }

 private:
  pid_t pid_ = -1;
  int from_ = -1;
};

// Whether a forked child may start threads. TSan ends such a child if its parent had threads at the fork.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadsAfterFork = false;
#else
inline constexpr bool kThreadsAfterFork = true;
#endif

}  // namespace slip::test
