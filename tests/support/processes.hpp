// Ranks as processes that the test can stop and kill. Each process is this test program, started again as one rank. It
// is not forked, for two reasons: locks that other threads hold at a fork stay locked in the child, and the thread
// sanitizer ends a forked child that starts threads.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "slip/unique_id.hpp"
#include "support/child.hpp"
#include "transport/job/launch_info.hpp"
#include "transport/socket/socket.hpp"

namespace slip::test {

inline constexpr int kLine = 3;  // in such a process, the descriptor of the socket to the test

inline std::string own_path() {
  std::array<char, 4096> path{};
  const ssize_t bytes = ::readlink("/proc/self/exe", path.data(), path.size() - 1);
  return {path.data(), static_cast<std::size_t>(std::max<ssize_t>(bytes, 0))};
}

class RankProcess {
 public:
  // Runs the child function `child` (child.hpp) as this rank, with the environment of a launcher and these variables.
  RankProcess(const std::string& child, const UniqueId& id, int nranks, int rank,
              std::map<std::string, std::string> variables_too = {}) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, ends[1], kLine);
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    std::vector<std::string> words{own_path(), child_argument(child)};
    variables_too["SLIP_RANK"] = std::to_string(rank);
    variables_too["SLIP_NRANKS"] = std::to_string(nranks);
    variables_too["SLIP_ID"] = id.text();
    std::vector<std::string> variables = base::env_with(variables_too);
    if (::posix_spawn(&pid_, words[0].c_str(), &actions, nullptr, pointers(words).data(), pointers(variables).data()) !=
        0)
      std::abort();
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    line_ = ends[0];
  }
  RankProcess(RankProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), line_(std::exchange(other.line_, -1)) {}
  RankProcess& operator=(RankProcess&&) = delete;
  ~RankProcess() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(line_);
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  void send(char byte) const { static_cast<void>(!::send(line_, &byte, 1, MSG_NOSIGNAL)); }
  // Up to `bytes` bytes from the process; fewer if it ends, or sends nothing for 60 s.
  std::string hear(std::size_t bytes) const {
    std::string result;
    for (char byte = 0; result.size() < bytes && arrives() && ::read(line_, &byte, 1) == 1;) result += byte;
    return result;
  }
  std::string report() const { return hear(std::string::npos); }

 private:
  static std::vector<char*> pointers(std::vector<std::string>& words) {
    std::vector<char*> result;
    for (std::string& word : words) result.push_back(word.data());
    result.push_back(nullptr);
    return result;
  }
  bool arrives() const {
    return transport::wait_for(line_, POLLIN, {base::deadline_after(60'000'000'000), nullptr}) ==
           transport::Waited::kReady;
  }

  pid_t pid_ = -1;
  int line_ = -1;
};

// Called in such a process: runs the part, sends the returned text or the text of the exception to the test, and ends.
[[noreturn]] inline void play(const std::function<std::string(const transport::LaunchInfo&)>& part) {
  std::string report;
  try {
    report = part(transport::launch_info().value());
  } catch (const std::exception& error) {
    report = error.what();
  }
  static_cast<void>(!::write(kLine, report.data(), report.size()));
  ::_exit(0);
}

}  // namespace slip::test
