// `slip agent`: the program that `slip launch --hosts` starts on each host. Hidden: users do not call it.
#include <CLI/CLI.hpp>

#include "cli/commands.hpp"
#include "cli/preload.hpp"
#include "transport/job/job.hpp"

namespace slip::cli {

std::function<int()> add_agent(CLI::App& app) {
  CLI::App* command = app.add_subcommand("agent", "Run the ranks of one host for slip launch --hosts");
  command->group("");
  return [] { return transport::run_agent({.version = version_text(), .preload_nccl = preload_nccl}); };
}

}  // namespace slip::cli
