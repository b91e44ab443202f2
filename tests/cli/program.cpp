#include "cli/program.hpp"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace slip::cli_test {
namespace {

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("slip_cli_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace

std::string scratch(const std::string& name) {
  static const Folder kFolder;
  return (kFolder.path() / name).string();
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Outcome run(const std::string& arguments) {
  const std::string out = scratch("out"), err = scratch("err");
  const std::string command = std::string(SLIP_PROGRAM) + " " + arguments + " >" + out + " 2>" + err;
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
}

Interrupted interrupt_when(const std::string& arguments, const std::string& shown) {
  int terminal = -1;
  const std::string command = "exec " + std::string(SLIP_PROGRAM) + " " + arguments;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  Interrupted result;
  bool pressed = false;
  char bytes[4096];
  // Ends with an error when the program has closed the terminal.
  for (ssize_t got = 0; (got = ::read(terminal, bytes, sizeof(bytes))) > 0;) {
    result.terminal.append(bytes, static_cast<std::size_t>(got));
    if (pressed || result.terminal.find(shown) == std::string::npos) continue;
    pressed = true;
    ::kill(child, SIGINT);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  EXPECT_TRUE(pressed) << "never shown: " << shown << result.terminal.substr(0, 1000);
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  if (result.terminal.size() > 1000) result.terminal.erase(0, result.terminal.size() - 1000);
  return result;
}

std::string on_terminal(const std::string& arguments, unsigned short columns) {
  int terminal = -1;
  struct winsize size {};
  size.ws_col = columns;
  size.ws_row = 25;
  const std::string command = "exec " + std::string(SLIP_PROGRAM) + " " + arguments;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    ::_exit(127);
  }
  std::string text;
  char bytes[4096];
  for (ssize_t got = 0; (got = ::read(terminal, bytes, sizeof(bytes))) > 0;)
    text.append(bytes, static_cast<std::size_t>(got));
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << text;
  std::erase(text, '\r');  // the terminal puts one before each newline
  return text;
}

nlohmann::json lab_tables(const std::string& name, const std::string& device, const std::string& more) {
  const std::string file = scratch("lab.json");
  const Outcome outcome = run("lab " + name + " --device " + device + " --json " + file + " " + more);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_LE(max_line(outcome.out), 100U) << outcome.out;
  const nlohmann::json data = nlohmann::json::parse(read_file(file), nullptr, false);
  EXPECT_FALSE(data.is_discarded());
  EXPECT_EQ(data.at("labs").at(0).at("name"), name);
  return data.at("labs").at(0).at("tables");
}

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

std::size_t max_line(const std::string& text) {
  std::istringstream in(text);
  std::size_t max = 0;
  for (std::string line; std::getline(in, line);) max = std::max(max, line.size());
  return max;
}

}  // namespace slip::cli_test
