// The network transport over UCX, for the choice of the network (net_choice). Includes no header of UCX, so that it
// compiles without them.
#pragma once

#include <string>
#include <vector>

#include "transport/net/net.hpp"

namespace slip::transport {

// Throws if this build has no UCX, if UCX's library cannot be loaded, or if it has no transport that it may use.
const Net& net_ucx();

// The version and the transports of UCX in this process, for the automatic choice.
struct UcxReport {
  std::string version;                  // "UCX 1.13.1 (/usr/lib/libucp.so.0)"; "": UCX cannot be used
  std::string problem;                  // why it cannot be used
  std::vector<std::string> transports;  // "tcp/eth0"
  bool reaches_cuda = false;            // UCX was built with CUDA
};
UcxReport ask_ucx();

// The transports between hosts that are not plain TCP. The others move bytes within a host.
std::vector<std::string> fast_networks(const std::vector<std::string>& transports);

}  // namespace slip::transport
