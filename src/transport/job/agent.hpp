// The agent of a job on one host, for `slip launch --hosts`. The launcher starts `slip agent` there by ssh and
// exchanges frames with it, see agent_channel.hpp. The agent starts and ends the ranks of its host as the launcher
// asks. It also ends them if the connection ends or the launcher is silent for too long. If the agent itself is killed,
// its JobGuard kills the ranks.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace slip::transport {

struct AgentOptions {
  std::string version;  // of slip; a launcher with another protocol names it in its error
  // For a job with --nccl: adds the variables that preload Slipstream's libnccl.so.2.
  std::function<void(std::map<std::string, std::string>& variables)> preload_nccl;
};

// Runs until the job is over, and returns the exit status of the program. Call it from the main thread of a program
// without other threads. It uses the standard input and output for its frames.
int run_agent(const AgentOptions& options);

}  // namespace slip::transport
