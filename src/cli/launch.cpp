// `slip launch -n N -- PROGRAM`: starts the ranks of a job on this host, and ends them together.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/inputs.hpp"
#include "transport/job/local_job.hpp"

namespace slip::cli {
namespace {

struct LaunchOptions {
  LocalJob job;
  double timeout = 0, grace = 5;  // seconds
  std::vector<std::string> changes;
};

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

int run_launch(LaunchOptions& options) {
  for (const std::string& change : options.changes) {
    const std::size_t equals = change.find('=');
    if (equals == 0 || equals == std::string::npos)
      throw UsageError(fmt::format("--env {}: NAME=VALUE is expected", change));
    options.job.changes[change.substr(0, equals)] = change.substr(equals + 1);
  }
  options.job.timeout = milliseconds(options.timeout);
  options.job.grace = milliseconds(options.grace);
  return run_local_job(options.job);
}

}  // namespace

std::function<int()> add_launch(CLI::App& app) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* launch = app.add_subcommand("launch", "Start a program as several ranks that find each other");
  launch->footer(
      "\nEach of the N processes finds in its environment which one it is (SLIP_RANK, 0 to N-1), how many there\n"
      "are (SLIP_NRANKS), which one of this host it is (SLIP_LOCAL_RANK), and where all meet (SLIP_ID).\n"
      "\n"
      "  slip launch -n 4 --tag-output -- sh -c 'echo I am $SLIP_RANK of $SLIP_NRANKS'\n"
      "  slip launch -n 8 --timeout 60 -- ./train --steps 100\n"
      "\n"
      "The first rank that fails ends the others: they are asked (TERM) and, after the grace, killed. A signal to\n"
      "this program goes to all ranks; a second one kills them. When it is killed itself, so are they and all that\n"
      "they have started, which is known by the variable SLIP_JOB. Ranks read nothing from the terminal. Status:\n"
      "that of the first rank that failed, 128 + its signal if it died of one; 124 after the timeout; 126 or 127 if\n"
      "the program cannot be started.\n"
      "\n"
      "On several hosts start the program there yourself, with the same SLIP_ID=host:port on all, where rank 0\n"
      "can listen, or with mpirun, srun or torchrun, whose variables are understood, too. Only processes that know\n"
      "the same secret join: SLIP_SECRET (at least 16 characters), the file SLIP_SECRET_FILE, or else\n"
      "~/.config/slipstream/secret, which is made when it is needed and must be the same on all hosts.");
  launch->add_option("-n,--ranks", options->job.nranks, "How many processes")->required()->check(CLI::Range(1, 4096));
  launch->add_option("--timeout", options->timeout, "End the job after so many seconds")
      ->check(number_between(0.001, 1e9));
  launch->add_option("--grace", options->grace, "Seconds between asking a rank to end and killing it (5)")
      ->check(number_between(0.0, 1e6));
  launch->add_flag("--tag-output", options->job.tag_output, "Begin each line of output with the rank: [3] ...");
  launch->add_option("--env", options->changes, "NAME=VALUE for the ranks' environment; may be given again")
      ->allow_extra_args(false);
  launch->add_option("PROGRAM", options->job.command, "The program and its arguments, behind --")->required();
  return [options] { return run_launch(*options); };
}

}  // namespace slip::cli
