// Runs part of a test in a forked child, with a deadline.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "backend/support.hpp"

namespace slip::test {

inline constexpr int kHung = -1;       // the child did not end in time and was killed
inline constexpr int kSignalled = -2;  // the child died of a signal

// Exit code of a child process that runs `body` and exits with what it returns.
template <class Body>
int child_exit(const Body& body) {
  fflush(nullptr);  // or the child would print it again
  const pid_t child = fork();
  if (child == 0) {
    int code = 99;
    try {
      code = body();
    } catch (const std::exception& error) {
      fprintf(stderr, "child: %s\n", error.what());
    }
    fflush(stderr);
    _exit(code);
  }
  int status = 0;
  if (!eventually([&] { return waitpid(child, &status, WNOHANG) == child; })) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return kHung;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : kSignalled;
}

// TSan stops a program that starts threads after a fork of a threaded one.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadsAfterFork = false;
#else
inline constexpr bool kThreadsAfterFork = true;
#endif

}  // namespace slip::test
