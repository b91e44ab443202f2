// ClusterJob: runs the ranks of a job on several hosts, for `slip launch --hosts`. An agent (agent.hpp) on each host
// runs the ranks there; ssh, or another remote shell, starts it. No rank starts before all hosts have answered. If a
// rank fails, all others are ended. A signal to this process is passed on to all ranks. If this process is killed or a
// connection is lost, the agents end their ranks.
//
// The id of the job, with its secret, is sent over the connections; no command line contains it.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "transport/job/host_list.hpp"
#include "transport/job/local_job.hpp"

namespace slip::transport {

struct ClusterJob {
  LocalJob ranks;  // nranks: of all hosts; directory: must be given; tag_output: "[rank 3 host b] "
  std::vector<HostRanks> hosts;
  std::string shell = "ssh";  // see RemoteShell
  std::string program;        // slip on the other hosts; empty: the path of this one, then "slip" in their PATH
  std::chrono::milliseconds start_timeout{20'000};  // all hosts must answer within this time
  std::chrono::milliseconds silence{60'000};        // a host or launcher that is silent for longer counts as lost
  bool nccl = false;                                // preload Slipstream's libnccl.so.2
};

// Runs the job to its end. Returns as run_local_job() does. Throws kIo if a host cannot be used; the error names each
// such host, the reason, and what to try. Call it from the program's main thread: it handles the program's signals
// meanwhile.
int run_cluster_job(const ClusterJob& job);

}  // namespace slip::transport
