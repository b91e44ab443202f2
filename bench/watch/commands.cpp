// Whole commands on a trace file, from the start of the process to its end.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "bars.hpp"
#include "program.hpp"

namespace slip::bench {
namespace {

constexpr std::size_t kOps = 1'000'000;
constexpr double kMinPerSecond = 500'000;
constexpr int kUsageStatus = 2;  // exit status of `slip` for arguments that it does not understand

// The exit status of `slip` with these arguments; its output is discarded.
int run_slip(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), SLIP_PROGRAM);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO})
    posix_spawn_file_actions_addopen(&actions, stream, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int error = posix_spawn(&child, SLIP_PROGRAM, &actions, nullptr, pointers.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error(std::string("cannot start " SLIP_PROGRAM ": ") + std::strerror(error));
  int status = 0;
  if (::waitpid(child, &status, 0) != child) throw std::runtime_error("waitpid failed");
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// The trace file, written at first use and removed at the end.
class TraceFile {
 public:
  explicit TraceFile(std::size_t ops)
      : path_(std::filesystem::temp_directory_path() / ("slip-bench-" + std::to_string(::getpid()) + ".json")) {
    write_program_trace(path_.string(), ops);
  }
  ~TraceFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;
  std::string path() const { return path_.string(); }
  std::uintmax_t bytes() const { return std::filesystem::file_size(path_); }

 private:
  std::filesystem::path path_;
};

Measure command_rate(const std::string& command) {
  return [command](Context& context) -> std::optional<double> {
    const std::size_t ops = context.iterations(kOps);
    static const TraceFile kFile(ops);
    context.note("a file of " + std::to_string(ops) + " ops, " + format_bytes(static_cast<double>(kFile.bytes())));
    const Timer timer;
    const int status = run_slip({command, kFile.path()});
    const double elapsed = timer.elapsed_s();
    if (status == kUsageStatus) return context.skip("there is no command `slip " + command + "`");
    if (status != 0) throw std::runtime_error("slip " + command + " ended with status " + std::to_string(status));
    return static_cast<double>(ops) / elapsed;
  };
}

}  // namespace

void add_command_bars(Harness& harness) {
  for (const char* command : {"check", "stats"}) {
    harness.add({.area = "watch",
                 .name = std::string(command) + "_ops_per_s",
                 .unit = Unit::kPerSecond,
                 .better = Better::kHigher,
                 .ours = command_rate(command),
                 .limit = kMinPerSecond,
                 .max_repeat = 5});
  }
}

}  // namespace slip::bench
