// The environment variables that the library reads. env() reads its variables once per process.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace slip::base {

// TCP ports at which ranks listen, for a firewall.
struct PortRange {
  int first = 0, last = 0;  // 0: any port that the kernel chooses
};
// "LOW-HIGH" or one port, as in SLIP_PORTS; empty: any. Throws kInvalidValue.
PortRange parse_ports(const std::string& text);

struct Env {
  bool launch_blocking = false;  // SLIP_LAUNCH_BLOCKING=1: every launch waits until its work is done
  int max_connections = 0;       // SLIP_MAX_CONNECTIONS=N: hardware queues (0: the device's default)
  std::string policy;            // SLIP_POLICY=concurrent|single|random[:SEED] for cpu devices
  bool strict = false;           // SLIP_STRICT=1: cpu devices check that ops access only the memory that they declare
  bool check = false;            // SLIP_CHECK=1: race check, reported at exit
  std::string trace;             // SLIP_TRACE=FILE: writes a trace at exit
  std::string topo_file;         // SLIP_TOPO_FILE=FILE: the machine's topology, not the one that hwloc detects
  int topo_device = -1;          // SLIP_TOPO_DEVICE=N: the topology device of this rank (-1: its number on the host)
  std::string algorithm;         // SLIP_ALGORITHM=auto|direct|ring|tree|doubling|relay for collectives
  std::string transport;         // SLIP_TRANSPORT=auto|net between ranks
  std::string net;               // SLIP_NET=tcp|ucx|plugin:NAME between hosts (empty: chosen automatically)
  std::string ucx_library;       // SLIP_UCX_LIBRARY=FILE: libucp.so.0, if the system's loader does not find it
  std::string host_id;           // SLIP_HOST_ID=NAME: ranks with different names count as on different hosts
  int min_channels = 0;  // SLIP_MIN_CHANNELS=N: minimum number of rings or trees of a call (0: chosen by the library)
  int max_channels = 0;  // SLIP_MAX_CHANNELS=N: maximum number of them
  int sockets = 0;  // SLIP_SOCKETS=N: sockets per network connection; large messages are striped over them (0: default)
  PortRange ports;  // SLIP_PORTS=LOW-HIGH: TCP ports at which ranks listen
  std::string nccl;          // SLIP_NCCL=auto|off|FILE: NVIDIA's library that carries the calls of ranks on GPUs
  bool nccl_polled = false;  // SLIP_NCCL_POLLED=1: NCCL runs each call in a thread of its own, as before 2.28
  int zero_copy = 0;  // SLIP_ZERO_COPY=BYTES: messages of at least this size are sent with MSG_ZEROCOPY (0: none)
  // SLIP_DEBUG=tune: prints the algorithm of each collective, and why it was chosen. SLIP_DEBUG=topo: prints the
  // placement of the ranks, and the rings, trees and relays chosen for it. SLIP_DEBUG=nccl: prints what carries the
  // calls of ranks on GPUs, and why. SLIP_DEBUG=net: prints which network the ranks use, and why. SLIP_DEBUG=tune,topo:
  // both.
  std::string debug;
};

const Env& env();
bool debugs(std::string_view topic);  // whether SLIP_DEBUG lists the topic

bool nvtx_wanted();  // a profiler that collects NVTX ranges is attached (it sets NVTX_INJECTION64_PATH)

// The current value of a variable, "" if it is not set. For the variables of launchers (transport/launch_info) and of
// NCCL (nccl).
std::string env_text(const char* variable);
// Which network interfaces are used: SLIP_SOCKET_IFNAME, or else NCCL_SOCKET_IFNAME, which has the same syntax.
std::string socket_interface_rule();
// The environment of this process with `changes`, as "NAME=value" each: for a child process.
std::vector<std::string> env_with(const std::map<std::string, std::string>& changes);
// The variables of this process whose names begin with the prefix.
std::map<std::string, std::string> env_named(std::string_view prefix);

// CUDA_DEVICE_MAX_CONNECTIONS, the number of hardware queues, which the CUDA driver reads when it starts. Default: 8.
int cuda_connections();
void set_cuda_connections(int count);  // does nothing if it is already set

// The rank of this process in a launched job, from the variables of its launcher. Never fails: it is used for file
// names and traces, where a malformed variable must not stop the program. Joining a job reads the same variables
// strictly (transport/launch_info).
struct JobRank {
  int rank = 0, ranks = 1;
};
// `variables` returns the value of a variable, "" if it is not set. Nothing: the process is not a rank of a job.
std::optional<JobRank> read_job_rank(const std::function<std::string(const char*)>& variables);
std::optional<JobRank> job_rank();  // reads this process's environment

}  // namespace slip::base
