#include "support/process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <stdexcept>

namespace slip::bench {

Child::Child(std::vector<std::string> words, Input input) {
  int in[2] = {-1, -1}, out[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || (input == Input::kPipe && ::pipe2(in, O_CLOEXEC) != 0))
    throw std::runtime_error("cannot make a pipe");
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  if (input == Input::kPipe) ::posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  const int error = ::posix_spawnp(&pid_, pointers[0], &actions, nullptr, pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (in[0] >= 0) ::close(in[0]);
  ::close(out[1]);
  to_ = in[1];
  from_ = out[0];
  if (error != 0) throw std::runtime_error("cannot start " + words[0] + ": " + std::strerror(error));
}

Child::~Child() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
  static_cast<void>(status());
  if (to_ >= 0) ::close(to_);
  ::close(from_);
}

bool Child::read(std::string& text) const {
  std::array<char, 4096> bytes;
  const ssize_t count = ::read(from_, bytes.data(), bytes.size());
  if (count > 0) text.append(bytes.data(), static_cast<std::size_t>(count));
  return count > 0;
}

std::string Child::read_all() const {
  std::string text;
  while (read(text)) {}
  return text;
}

int Child::status() {
  if (pid_ < 0) return status_;
  ::waitpid(pid_, &status_, 0);
  pid_ = -1;
  return status_ = WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
}

std::string shell_text(const std::string& command) {
  Child shell({"sh", "-c", command});
  std::string text = shell.read_all();
  static_cast<void>(shell.status());
  return text;
}

}  // namespace slip::bench
