// The environment variables that the library reads, all of them, once per process.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace slip {

struct Env {
  bool launch_blocking = false;  // SLIP_LAUNCH_BLOCKING=1: every launch waits for its work
  int max_connections = 0;       // SLIP_MAX_CONNECTIONS=N: hardware queues (0: the device's default)
  std::string policy;            // SLIP_POLICY=concurrent|single|random[:SEED] for cpu devices
  bool strict = false;           // SLIP_STRICT=1: cpu devices check what ops touch
  bool check = false;            // SLIP_CHECK=1: race check, reported at exit
  std::string trace;             // SLIP_TRACE=FILE: writes a trace at exit
  std::string topo_file;         // SLIP_TOPO_FILE=FILE: the machine's topology, instead of what hwloc sees
  int topo_device = -1;   // SLIP_TOPO_DEVICE=N: which device of it a rank stands for (-1: its number on the host)
  std::string algorithm;  // SLIP_ALGORITHM=auto|direct|ring|tree|doubling|relay for collectives
  std::string transport;  // SLIP_TRANSPORT=auto|net between ranks
  std::string host_id;    // SLIP_HOST_ID=NAME: ranks with another one are taken to be on another host
  int min_channels = 0;   // SLIP_MIN_CHANNELS=N: rings and trees of a call (0: chosen)
  int max_channels = 0;   // SLIP_MAX_CHANNELS=N
  int sockets = 0;        // SLIP_SOCKETS=N: of a line to another rank, that share large messages (0: default)
  int zero_copy = 0;      // SLIP_ZERO_COPY=BYTES: messages from there on leave without a copy (0: none)
  // SLIP_DEBUG=tune: how each collective is done, and why; topo: where ranks are, and the rings, trees and relays that
  // follow; or both, with a comma between them.
  std::string debug;

  bool debugs(std::string_view word) const;
};

const Env& env();

bool nvtx_wanted();  // a profiler that collects NVTX ranges is attached: it names itself in NVTX_INJECTION64_PATH

// One variable as it is now, "" when it is not set: for those that launchers set, whose names transport/launch_info
// knows, and for SLIP_SOCKET_IFNAME.
std::string env_text(const char* variable);
// The environment for a process to start, "NAME=value" each: this one's with these changed.
std::vector<std::string> env_with(const std::map<std::string, std::string>& changes);

// CUDA's own variable for the number of hardware queues, which its driver reads when it starts. The default is 8.
int cuda_connections();
void set_cuda_connections(int count);  // unless it is set already

}  // namespace slip
