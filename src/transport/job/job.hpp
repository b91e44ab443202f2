// Jobs of `slip launch`: on this host, on several hosts, and the agent that runs the ranks of one of several hosts. The
// lists of hosts of such jobs.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace slip::transport {

// The hosts of a job, from `slip launch --hosts` or --hostfile, and the ranks that each host gets.
//
//   --hosts a,b:4,me@c,[fd00::1]:2      names or addresses; the number of ranks that a host takes (slots) is optional
//   --hostfile FILE                     one host per line: "a", "b:4" or "b slots=4"; # begins a comment
struct HostEntry {
  std::string name;
  int slots = 0;  // 0: not given
};

// Throw kInvalidValue, which names the wrong entry. `path` is for the error.
std::vector<HostEntry> parse_hosts(std::string_view list);
std::vector<HostEntry> parse_host_file(std::string_view text, const std::string& path);

// One host and its ranks; each host occurs once.
struct HostRanks {
  std::string name;
  std::vector<int> ranks;  // ascending; the index is the local rank
};

// Ranks are numbered in the order of the entries. An entry with slots takes that many ranks, the first entries first.
// The entries without slots share the rest evenly. `nranks` 0: as many as there are slots, one for an entry without.
// Hosts that get no rank are left out. Throws kInvalidValue if the ranks do not fit.
std::vector<HostRanks> place_ranks(std::span<const HostEntry> hosts, int nranks);

// The name is "localhost", the name of this host, or an address of one of its interfaces. Asks no name server.
bool is_this_host(const std::string& name);
std::string without_user(const std::string& name);  // "b" of "me@b"

// LocalJob: runs the ranks of a job on this host. Each rank is a process with the variables of launch_info.hpp. All
// ranks end together: if one fails, the others are ended. A signal to this process is passed on to all ranks. If this
// process is killed, the kernel and a JobGuard kill the ranks and their child processes.
struct LocalJob {
  std::vector<std::string> command;            // the program, searched in PATH, and its arguments
  std::map<std::string, std::string> changes;  // environment variables to set
  std::string directory;                       // where the program runs; empty: the directory of this process
  int nranks = 1;
  std::chrono::milliseconds timeout{0};   // the job is ended after this time; 0: no limit
  std::chrono::milliseconds grace{5000};  // from the signal that asks a rank to end until it is killed
  bool tag_output = false;                // each line begins with "[rank] "
};

// Runs the job to its end. Returns 0, the status of the first rank that failed (128 + signal if a signal killed it), or
// a status of rank_processes.hpp. Call it from the program's main thread: it handles the program's signals meanwhile.
int run_local_job(const LocalJob& job);

// ClusterJob: runs the ranks of a job on several hosts, for `slip launch --hosts`. An agent on each host runs
// the ranks there; ssh, or another remote shell, starts it. No rank starts before all hosts have answered. If a
// rank fails, all others are ended. A signal to this process is passed on to all ranks. If this process is killed or a
// connection is lost, the agents end their ranks.
//
// The id of the job, with its secret, is sent over the connections; no command line contains it.
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

// The agent of a job on one host, for `slip launch --hosts`. The launcher starts `slip agent` there by ssh and
// exchanges frames with it, see agent_channel.hpp. The agent starts and ends the ranks of its host as the launcher
// asks. It also ends them if the connection ends or the launcher is silent for too long. If the agent itself is killed,
// its JobGuard kills the ranks.
struct AgentOptions {
  std::string version;  // of slip; a launcher with another protocol names it in its error
  // For a job with --nccl: adds the variables that preload Slipstream's libnccl.so.2.
  std::function<void(std::map<std::string, std::string>& variables)> preload_nccl;
};

// Runs until the job is over, and returns the exit status of the program. Call it from the main thread of a program
// without other threads. It uses the standard input and output for its frames.
int run_agent(const AgentOptions& options);

}  // namespace slip::transport
