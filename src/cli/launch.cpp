// `slip launch -n N -- PROGRAM`: starts the ranks of a job on this host, and ends them together.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/env.hpp"
#include "cli/commands.hpp"
#include "cli/inputs.hpp"
#include "transport/job/local_job.hpp"

namespace slip::cli {
namespace {

struct LaunchOptions {
  transport::LocalJob job;
  double timeout = 0, grace = 5;  // seconds
  bool nccl = false;              // preload libnccl.so.2
  std::vector<std::string> changes;
};

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

// Our libnccl.so.2: beside the program in a build folder, in the library folder of an installation.
std::string nccl_library() {
  namespace fs = std::filesystem;
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  std::string searched;
  for (const char* const place : {SLIP_NCCL_BUILT, SLIP_NCCL_INSTALLED}) {
    const fs::path found = (folder / place / "libnccl.so.2").lexically_normal();
    if (fs::exists(found)) return found.string();
    searched += fmt::format("{}{}", searched.empty() ? "" : ", ", found.string());
  }
  throw Error(Code::kIo, fmt::format("--nccl: there is no libnccl.so.2 of Slipstream; searched: {}", searched), {});
}

// The first library that is preloaded wins, so ours comes before those of the caller.
void preload_nccl(std::map<std::string, std::string>& changes) {
  const auto given = changes.find("LD_PRELOAD");
  const std::string others = given != changes.end() ? given->second : base::env_text("LD_PRELOAD");
  changes["LD_PRELOAD"] = nccl_library() + (others.empty() ? "" : ":" + others);
}

int run_launch(LaunchOptions& options) {
  for (const std::string& change : options.changes) {
    const std::size_t equals = change.find('=');
    if (equals == 0 || equals == std::string::npos)
      throw UsageError(fmt::format("--env {}: NAME=VALUE is expected", change));
    options.job.changes[change.substr(0, equals)] = change.substr(equals + 1);
  }
  if (options.nccl) preload_nccl(options.job.changes);
  options.job.timeout = milliseconds(options.timeout);
  options.job.grace = milliseconds(options.grace);
  return transport::run_local_job(options.job);
}

}  // namespace

std::function<int()> add_launch(CLI::App& app) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* launch = app.add_subcommand("launch", "Start a program as several ranks that find each other");
  launch->footer(
      "\nEach of the N processes gets its rank (SLIP_RANK, 0 to N-1), the number of ranks (SLIP_NRANKS), its rank\n"
      "on this host (SLIP_LOCAL_RANK) and the address where ranks connect (SLIP_ID) in its environment.\n"
      "\n"
      "  slip launch -n 4 --tag-output -- sh -c 'echo I am $SLIP_RANK of $SLIP_NRANKS'\n"
      "  slip launch -n 8 --timeout 60 -- ./train --steps 100\n"
      "  slip launch -n 2 --nccl -- ./made_for_nccl\n"
      "\n"
      "With --nccl a program made for NCCL communicates by Slipstream: its libnccl.so.2 is preloaded (LD_PRELOAD).\n"
      "\n"
      "If a rank fails, the others get SIGTERM and, after the grace period, SIGKILL. A signal to this program goes\n"
      "to all ranks; a second one kills them. If this program is killed, all ranks and the processes that they have\n"
      "started are killed, too; they are found by the variable SLIP_JOB. Ranks do not read from the terminal.\n"
      "Status: that of the first rank that failed, or 128 + its signal; 124 after the timeout; 126 or 127 if\n"
      "the program cannot be started.\n"
      "\n"
      "On several hosts start the program with mpirun, srun or torchrun, whose variables are understood, too. Or\n"
      "start it yourself with the same SLIP_ID=host:port everywhere, an address where rank 0 can listen. Only\n"
      "processes with the same secret can join: SLIP_SECRET (at least 16 characters), the file SLIP_SECRET_FILE,\n"
      "or ~/.config/slipstream/secret, which is created on first use and must be the same on all hosts.");
  launch->add_option("-n,--ranks", options->job.nranks, "Number of processes")->required()->check(CLI::Range(1, 4096));
  launch->add_option("--timeout", options->timeout, "End the job after this many seconds")
      ->check(number_between(0.001, 1e9));
  launch->add_option("--grace", options->grace, "Seconds between SIGTERM and SIGKILL (5)")
      ->check(number_between(0.0, 1e6));
  launch->add_flag("--tag-output", options->job.tag_output, "Begin each line of output with the rank: [3] ...");
  launch->add_flag("--nccl", options->nccl, "Preload Slipstream's libnccl.so.2, for programs made for NCCL");
  launch->add_option("--env", options->changes, "NAME=VALUE for the ranks' environment; may be repeated")
      ->allow_extra_args(false);
  launch->add_option("PROGRAM", options->job.command, "The program and its arguments, after --")->required();
  return [options] { return run_launch(*options); };
}

}  // namespace slip::cli
