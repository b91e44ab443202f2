#include "cli/lab/one_queue.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/env.hpp"
#include "base/sync.hpp"
#include "cli/commands.hpp"
#include "cli/lab/bench.hpp"
#include "store/file.hpp"
#include "transport/job/job.hpp"
#include "transport/job/launch_info.hpp"

namespace slip::cli {
namespace {

constexpr std::uint64_t kMaxResultBytes = 1 << 16;

// An empty file in /tmp, into which the child process writes its result. The destructor removes it.
class ResultFile : base::NoCopy {
 public:
  ResultFile() : path_("/tmp/slip-lab-XXXXXX") {
    const int made = ::mkstemp(path_.data());
    if (made < 0) {
      const std::string why = std::strerror(errno);
      throw Error(ErrorCode::kIo, "cannot create a file in /tmp for the result of a lab: " + why, {});
    }
    ::close(made);
  }
  ~ResultFile() { ::unlink(path_.c_str()); }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct OneQueueCommand {
  LabOptions options;
  std::string lab, file;
};

int run_case(const OneQueueCommand& wanted) {
  base::set_cuda_connections(1);
  const Bench bench(wanted.options);
  const base::Json result = wanted.lab == "hook" ? hook_with_one_queue(bench) : gradients_with_one_queue(bench);
  const std::optional<transport::LaunchInfo> rank = transport::launch_info();
  if (!rank || rank->rank == 0) write_file(wanted.file, result.dump());
  return kSuccess;
}

}  // namespace

base::Json run_with_one_queue(const Bench& bench, std::string_view lab, int ranks) {
  const ResultFile file;
  const LabOptions& options = bench.options();
  transport::LocalJob job;
  job.command = {"/proc/self/exe", "one-queue", std::string(lab), file.path(), "--device", options.device};
  if (options.layers) job.command.insert(job.command.end(), {"--layers", std::to_string(*options.layers)});
  if (options.quick) job.command.emplace_back("--quick");
  job.changes["CUDA_DEVICE_MAX_CONNECTIONS"] = "1";
  job.changes["SLIP_MAX_CONNECTIONS"] = "1";  // the user's number would contradict the other variable
  job.nranks = ranks;
  job.timeout = std::chrono::minutes(2);
  if (const int status = transport::run_local_job(job); status != 0)
    throw Error(ErrorCode::kLaunchFailed,
                fmt::format("lab {}: the case with one hardware queue ended with status {}", lab, status), {});
  return base::parse_json(store::read_text(file.path(), kMaxResultBytes, "the result of a lab", {}), kResultOfCase,
                          kMaxResultBytes);
}

std::function<int()> add_one_queue(CLI::App& app) {
  auto wanted = std::make_shared<OneQueueCommand>();
  CLI::App* command = app.add_subcommand("one-queue", "One case of a lab on a GPU, for `slip lab`");
  command->group("");
  command->add_option("LAB", wanted->lab, "hook or gradients")->required()->check(CLI::IsMember({"hook", "gradients"}));
  command->add_option("FILE", wanted->file, "Where rank 0 writes its result")->required();
  command->add_option("--device", wanted->options.device, "cuda:0")->required();
  command->add_option("--layers", wanted->options.layers, "Layers of the model");
  command->add_flag("--quick", wanted->options.quick, "Shorter kernels and fewer runs");
  return [wanted] { return run_case(*wanted); };
}

}  // namespace slip::cli
