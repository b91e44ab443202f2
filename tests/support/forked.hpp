// A child forked by the test, which it can stop and kill, and which reports in words. For a child that starts no
// threads before it is alone; ranks are better started anew (processes.hpp).
#pragma once

#include <gtest/gtest.h>
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
  // Runs the body in a child; what it returns, or the text of what it throws, is its report.
  explicit Child(const std::function<std::string()>& body) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    std::fflush(nullptr);  // or the child would print it again
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
  // Until the child ends: its own deadlines see to that.
  std::string report() const {
    std::string result;
    char bytes[4096];
    for (ssize_t got = 0; (got = ::read(from_, bytes, sizeof(bytes))) > 0;)
      result.append(bytes, static_cast<std::size_t>(got));
    return result;
  }

 private:
  pid_t pid_ = -1;
  int from_ = -1;
};

// TSan stops a program that starts threads after a fork of a threaded one.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadsAfterFork = false;
#else
inline constexpr bool kThreadsAfterFork = true;
#endif

}  // namespace slip::test
