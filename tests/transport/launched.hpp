// `slip launch` as a process of a test: its two outputs, its signals and its exit status.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "transport/socket/socket.hpp"

namespace slip::test {

// A folder of this test, removed at its end.
class Folder {
 public:
  Folder() {
    std::string path = std::filesystem::temp_directory_path() / "slip-test-XXXXXX";
    if (!::mkdtemp(path.data())) std::abort();
    path_ = path;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path(const std::string& name = {}) const { return name.empty() ? path_ : path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }

 private:
  std::string path_;
};

// The end of a pipe from which the test reads.
class ReadEnd {
 public:
  explicit ReadEnd(int descriptor) : descriptor_(descriptor) {}
  ~ReadEnd() { ::close(descriptor_); }
  ReadEnd(const ReadEnd&) = delete;
  ReadEnd& operator=(const ReadEnd&) = delete;

  // Reads until the text is there, or all writers have closed the pipe. "nothing in time" ends it after a minute.
  const std::string& until(const std::string& text) {
    return read([&] { return got_.find(text) != std::string::npos; });
  }
  const std::string& bytes(std::size_t count) {
    return read([&] { return got_.size() >= count; });
  }
  const std::string& all() {
    return read([] { return false; });
  }

 private:
  template <class Enough>
  const std::string& read(const Enough& enough) {
    while (!ended_ && !enough()) {
      const transport::Deadline deadline{base::deadline_after(60'000'000'000), nullptr};
      if (transport::wait_for(descriptor_, POLLIN, deadline) != transport::Waited::kReady) {
        got_ += "nothing in time";
        break;
      }
      std::array<char, 4096> bytes;
      const ssize_t count = ::read(descriptor_, bytes.data(), bytes.size());
      if (count < 0 && errno == EAGAIN) continue;
      ended_ = count <= 0;
      if (count > 0) got_.append(bytes.data(), static_cast<std::size_t>(count));
    }
    return got_;
  }

  int descriptor_;
  bool ended_ = false;
  std::string got_;
};

// A FIFO that all processes of a job hold open: it ends when the last of them has ended, wherever it ran. In a shell:
// exec 9>FIFO; printf x >&9
class HeldFifo {
 public:
  explicit HeldFifo(const Folder& folder) : path_(folder.path("held")), end_(make(path_)) {}
  const std::string& path() const { return path_; }
  std::string hold() const { return "exec 9>" + path_ + "; printf x >&9; "; }  // the first commands of a rank
  // Waits until so many processes hold it.
  bool held_by(std::size_t count) { return end_.bytes(count) == std::string(count, 'x'); }
  // Waits until none does.
  bool is_free() { return end_.all().find("nothing in time") == std::string::npos; }

 private:
  static int make(const std::string& path) {
    if (::mkfifo(path.c_str(), 0600) != 0) std::abort();
    return ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  }
  const std::string path_;
  ReadEnd end_;
};

class Launched {
 public:
  // Runs slip with the words of `arguments`, in the network namespace of the calling thread.
  explicit Launched(std::vector<std::string> arguments, const std::map<std::string, std::string>& variables = {})
      : Launched(std::move(arguments), variables, pipe(), pipe()) {}
  ~Launched() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

  ReadEnd out, err;
  void signal(int number) const { ::kill(pid_, number); }
  pid_t pid() const { return pid_; }
  // Reads both outputs to their ends; the status, or minus the signal that ended it.
  int status() {
    out.all();
    err.all();
    return reap();
  }
  int reap() {
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  using Ends = std::pair<int, int>;
  static Ends pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    return {ends[0], ends[1]};
  }
  Launched(std::vector<std::string> arguments, const std::map<std::string, std::string>& variables, Ends outs,
           Ends errs)
      : out(outs.first), err(errs.first) {
    arguments.insert(arguments.begin(), SLIP_PROGRAM);
    std::vector<std::string> environment = base::env_with(variables);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, outs.second, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, errs.second, STDERR_FILENO);
    // A shell that runs the tests in the background ignores SIGINT, and all processes here would inherit that.
    posix_spawnattr_t attributes;
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGINT);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setsigdefault(&attributes, &defaults);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    if (::posix_spawn(&pid_, SLIP_PROGRAM, &actions, &attributes, pointers(arguments).data(),
                      pointers(environment).data()) != 0)
      std::abort();
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(outs.second);
    ::close(errs.second);
  }
  static std::vector<char*> pointers(std::vector<std::string>& words) {
    std::vector<char*> result;
    for (std::string& word : words) result.push_back(word.data());
    result.push_back(nullptr);
    return result;
  }

  pid_t pid_ = -1;
};

}  // namespace slip::test
