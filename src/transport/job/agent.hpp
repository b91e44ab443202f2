// The agent of a job on one host, for `slip launch --hosts`. The launcher starts `slip agent` there by ssh and talks
// with it over its standard input and output, see agent_channel.hpp. The agent runs the ranks of its host as the
// launcher asks. It ends them if the connection ends, or if the launcher gives no sign of life. If the agent itself is
// killed, its JobGuard kills the ranks.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace slip::transport {

struct AgentOptions {
  std::string version;  // of slip, for the error of a launcher with another protocol
  // Changes the variables of a job with the option --nccl.
  std::function<void(std::map<std::string, std::string>& variables)> preload_nccl;
};

// Returns the exit status of the program when the job is over. Call it from the main thread of a program without other
// threads. Takes the standard input and output for itself.
int run_agent(const AgentOptions& options);

}  // namespace slip::transport
